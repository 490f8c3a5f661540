"""A newcomer's pages run as written: the blocks of README.md, the first of docs/operations.md, and the Python client's. The
README's first command, on programs that are built already, gives an answer and exit code 0, and leaves nothing running."""
import importlib.util
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

from cluster.harness import BIN, ROOT, Cluster, alive, children, expected, free_ports, tiny, wait_until
from cluster.harness.page_blocks import Machine, blocks_of
from cluster.harness.python_client import CLIENT, InstalledClient

QUICKSTART = os.path.join(ROOT, "tools", "quickstart.sh")
# The block that installs and tests has other cases (Quickstart).
ELSEWHERE = ("tools/quickstart.sh", "pip install")
RL_MODEL = "llama-uneven"


def serves(text):
    return "somnus serve " in text


class Readme(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("openai"), "the openai package is not installed: tools/setup.sh tests")
    def test_every_block_runs_as_written(self):
        blocks = [(language, text) for language, text in blocks_of("README.md") if not text.startswith(ELSEWHERE)]
        self.assertEqual([serves(text) for _, text in blocks], [True, False, False, False, True, False, False])
        with Machine() as machine:
            written = []
            for language, text in blocks:
                if serves(text):
                    machine.serve(text)
                else:
                    written.append(machine.run(language, text, PYTHONPATH=CLIENT))
        terminal, curl, python, models, offline = written
        for words in ("smollm2", "Q4_1", "freed", "mapped"):
            self.assertIn(words, terminal)
        events = [line.removeprefix("data: ") for line in curl.splitlines() if line]
        self.assertEqual(events[-1], "[DONE]")
        self.assertIn("content", json.loads(events[1])["choices"][0]["delta"])
        self.assertEqual(python, "")
        self.assertIn("Paris", offline)
        self.assertEqual([line.split()[0] for line in models.splitlines()], ["model", "small", "chat", "code"])


class Operations(unittest.TestCase):
    def test_the_first_blocks_run_as_written(self):
        first, *others = blocks_of("docs/operations.md", "## Starting")
        by_hand = [text for _, text in others if serves(text)]
        self.assertEqual(len(by_hand), 1)
        (_, sleeping), = blocks_of("docs/operations.md", "## Sleeping")
        with Machine() as machine:
            machine.serve(first[1])
            said = machine.run("bash", sleeping)
            self.assertRegex(said, r"^freed .*\n")
            self.assertRegex(said, r"\npaused after [\d.]+ s\nresumed; the engine is awake\n")
            machine.run("bash", "somnus stop")
        with Machine() as machine:
            machine.serve(by_hand[0])
            self.assertNotEqual(machine.run("bash", "somnus chat --temperature 0 --max-tokens 4 Hello"), "")


class PythonClient(unittest.TestCase):
    def test_its_first_block_with_the_server_of_the_readme(self):
        server = next(text for _, text in blocks_of("README.md") if serves(text))
        generate, *_ = [text for language, text in blocks_of("clients/python/README.md") if language == "python"]
        with InstalledClient() as client, Machine() as machine:
            machine.serve(server)
            self.assertIn("Paris", machine.run("python", generate, PYTHONPATH=client.path))

    def test_its_step_of_reinforcement_learning(self):
        _, step, *_ = [text for language, text in blocks_of("clients/python/README.md") if language == "python"]
        case = next(one for one in expected(RL_MODEL) if not one["ambiguous"])
        # The trainer changes nothing: the tensors are the checkpoint's.
        program = step + f"""
import json, os, sys
sys.path.insert(0, {os.path.dirname(os.path.dirname(os.path.abspath(__file__)))!r})
from cluster.harness.other_weights import tensors_of
from somnus import Client
class Model:
    def state_dict(self):
        return {{name: (data, "float32", shape) for name, shape, data in tensors_of({tiny(RL_MODEL)!r})}}
with Client(os.environ["GRPC"], os.environ["CONTROL"]) as client:
    completion = step(client, Model(), lambda model: None, {case["prompt"]!r})
    print(json.dumps(completion.weights_version))
"""
        with InstalledClient() as client, Cluster(tiny(RL_MODEL), "--dtype=float32", workers=2) as cluster:
            self.assertEqual(client.run(cluster, "-c", program), 2)


@unittest.skipUnless(BIN == os.path.join(ROOT, "bazel-bin"), "builds into bazel-bin, and other programs are tested here")
class Quickstart(unittest.TestCase):
    def environment(self):
        return {**os.environ, **dict(zip(("PORT", "ADMIN_PORT", "GRPC_PORT"), map(str, free_ports(3))))}

    def test_once_answers_and_leaves_nothing(self):
        # Files: the script would wait for a pipe that is not read before the script's end.
        with tempfile.TemporaryFile("w+", encoding="utf-8") as stdout, tempfile.TemporaryFile("w+", encoding="utf-8") as stderr:
            started = subprocess.Popen([QUICKSTART, "--once"], env=self.environment(), stdin=subprocess.DEVNULL,
                                       stdout=stdout, stderr=stderr)
            seen = set()
            while started.poll() is None:
                seen.update(pid for pid in children(started.pid) if "somnus" in self.command(pid) or "worker" in self.command(pid))
                time.sleep(0.05)
            stdout.seek(0)
            stderr.seek(0)
            answer, log = stdout.read(), stderr.read()
        self.assertEqual(started.returncode, 0, log)
        self.assertIn("Paris", answer)
        self.assertTrue(seen)
        self.assertFalse([pid for pid in seen if alive(pid)])

    def command(self, pid):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def test_serves_until_interrupted(self):
        environment = self.environment()
        started = subprocess.Popen([QUICKSTART], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True, start_new_session=True)
        log = []
        try:
            for line in started.stderr:
                log.append(line)
                if "until Ctrl-C" in line:
                    break
            self.assertIsNone(started.poll(), "".join(log))
            family = children(started.pid)
            os.killpg(started.pid, signal.SIGINT)  # as a terminal's Ctrl-C: to everyone
            self.assertEqual(started.wait(60), 0)
            wait_until(lambda: not [pid for pid in family if alive(pid)], 10, "everything has ended")
        finally:
            started.stderr.close()
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGTERM)
                started.wait()

    def test_unknown_argument_is_refused(self):
        done = subprocess.run([QUICKSTART, "--twice"], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--twice", done.stderr)


if __name__ == "__main__":
    unittest.main()

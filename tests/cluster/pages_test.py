"""A newcomer's pages run as written: the blocks of README.md, the first of docs/operations.md, and the Python client's."""
import importlib.util
import json
import os
import unittest

from cluster.harness import Cluster, expected, tiny
from cluster.page_blocks import Machine, blocks_of
from cluster.python_client import InstalledClient

# The block that installs and tests has a test of its own (quickstart_test.py).
ELSEWHERE = ("tools/quickstart.sh", "pip install")
RL_MODEL = "llama-uneven"


def serves(text):
    return "somnus serve " in text


class Readme(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("openai"), "the openai package is not installed: tools/setup.sh tests")
    def test_every_block_runs_as_written(self):
        blocks = [(language, text) for language, text in blocks_of("README.md") if not text.startswith(ELSEWHERE)]
        self.assertEqual([serves(text) for _, text in blocks], [True, False, False, False, True, False])
        with Machine() as machine:
            written = []
            for language, text in blocks:
                if serves(text):
                    machine.serve(text)
                else:
                    written.append(machine.run(language, text))
        terminal, curl, python, models = written
        for words in ("smollm2", "Q4_1", "freed", "mapped"):
            self.assertIn(words, terminal)
        events = [line.removeprefix("data: ") for line in curl.splitlines() if line]
        self.assertEqual(events[-1], "[DONE]")
        self.assertIn("content", json.loads(events[1])["choices"][0]["delta"])
        self.assertEqual(python, "")
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
        # The trainer changes nothing: its tensors are the checkpoint's.
        program = step + f"""
import json, os, sys
sys.path.insert(0, {os.path.dirname(os.path.dirname(os.path.abspath(__file__)))!r})
from cluster.other_weights import tensors_of
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


if __name__ == "__main__":
    unittest.main()

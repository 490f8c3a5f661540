"""The Python client, installed by pip from its folder, in processes of its own."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

from cluster.harness import ROOT, Cluster, tiny
from cluster.other_weights import swapped_layers

CLIENT = os.path.join(ROOT, "clients", "python")
PROMPT = list(range(3, 40))


def setUpModule():
    try:
        import grpc_tools  # noqa: F401 pylint: disable=unused-import
        import setuptools  # noqa: F401 pylint: disable=unused-import
    except ImportError as error:
        raise unittest.SkipTest("grpcio-tools is not installed: tools/setup.sh tests") from error
    global folder
    temporary = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(temporary.cleanup)
    folder = os.path.join(temporary.name, "client")
    # What the tests' environment has will do: nothing is downloaded. pip builds in the folder that it is given.
    source = os.path.join(temporary.name, "checkout")
    for name in ("clients", "proto", "base"):
        os.makedirs(os.path.join(source, name))
    subprocess.run(["cp", "-r", CLIENT, os.path.join(source, "clients")], check=True)
    subprocess.run(["cp", "-r", os.path.join(ROOT, "proto"), source], check=True)
    subprocess.run(["cp", os.path.join(ROOT, "base", "version.h"), os.path.join(source, "base")], check=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation",
                    "--disable-pip-version-check", "--target", folder, os.path.join(source, "clients", "python")],
                   check=True, stdin=subprocess.DEVNULL)


def run(cluster, *command):
    """What the client prints, as JSON."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                          env={**os.environ, "PYTHONPATH": folder, "GRPC": f"127.0.0.1:{cluster.grpc_port}",
                               "CONTROL": f"127.0.0.1:{cluster.control_port}"})
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.stderr}\n{cluster.log()}")
    return json.loads(done.stdout)


CALLS = """
import json, os, sys, grpc
from somnus import Client
answers = []
with Client(os.environ["GRPC"], os.environ["CONTROL"], admin_api_key="key", timeout=60) as client:
    prompt = json.loads(sys.argv[1])
    answers.append(client.generate(prompt, max_tokens=8, temperature=0)[0].token_ids)
    answers.append(client.sleep(level=1, mode="wait").level)
    answers.append(client.wake_up(["weights"]).awake)
    answers.append(client.wake_up().awake)
    client.pause()
    answers.append(client.status().paused)
    client.resume()
    answers.append(client.status().paused)
    try:
        client.sleep(level=3)
    except grpc.RpcError as error:
        answers.append(error.code().name)
    try:
        client.sleep(mode="never")
    except ValueError as error:
        answers.append(str(error))
    answers.append(client.generate(prompt, max_tokens=8, temperature=0)[0].token_ids)
print(json.dumps(answers))
"""

BROKEN = """
import json, os, sys, grpc
from somnus import Client
with Client(os.environ["GRPC"], os.environ["CONTROL"], timeout=60) as client:
    try:
        client.update_weights([("model.norm.weight", (b"12345678", "float64", (1,)))])
    except TypeError as error:
        print(json.dumps([str(error), client.status().weights_version]))
"""


class PythonClient(unittest.TestCase):
    def test_calls(self):
        with Cluster(tiny("qwen3"), "--dtype=float32", "--admin-api-key=key", workers=2) as cluster:
            tokens = cluster.tokens(PROMPT, max_tokens=8)
            answers = run(cluster, "-c", CALLS, json.dumps(PROMPT))
            self.assertEqual(answers, [tokens, 1, False, True, True, False, "INVALID_ARGUMENT",
                                       "mode must be one of keep, wait, abort, not 'never'", tokens])
            self.assertEqual(cluster.stop(), 0)

    def test_a_step_of_reinforcement_learning(self):
        with tempfile.TemporaryDirectory() as temporary:
            other = swapped_layers(tiny("qwen3"), os.path.join(temporary, "other"))
            with Cluster(other, "--dtype=float32", workers=2) as cluster:
                new = cluster.complete("A prompt of some length.", max_tokens=16)["choices"][0]
            with Cluster(tiny("qwen3"), "--dtype=float32", workers=2) as cluster:
                old = cluster.complete("A prompt of some length.", max_tokens=16)["choices"][0]
                self.assertNotEqual(old["token_ids"], new["token_ids"])
                step = [os.path.join(CLIENT, "examples", "rlhf_step.py"), "--grpc", f"127.0.0.1:{cluster.grpc_port}",
                        "--control", f"127.0.0.1:{cluster.control_port}", "--prompt", "A prompt of some length."]
                for version, (checkpoint, shared, answer) in enumerate([(other, [], new), (tiny("qwen3"), ["--shared-memory"], old),
                                                                        (other, ["--shared-memory"], new)], start=2):
                    self.assertEqual(run(cluster, *step, checkpoint, *shared),
                                     {"weights_version": version, "text": answer["text"], "token_ids": answer["token_ids"]})
                self.assertEqual([name for name in os.listdir("/dev/shm") if name.startswith("somnus-tensor-")], [])
                self.assertEqual(cluster.stop(), 0)

    def test_a_tensor_that_cannot_be_sent_is_named(self):
        with Cluster(tiny("qwen3"), "--dtype=float32", workers=2) as cluster:
            tokens = cluster.tokens(PROMPT, max_tokens=4)
            message, version = run(cluster, "-c", BROKEN)
            self.assertIn("model.norm.weight: its type is float64", message)
            self.assertEqual(version, 1)
            self.assertEqual(cluster.tokens(PROMPT, max_tokens=4), tokens)
            self.assertEqual(cluster.stop(), 0)


if __name__ == "__main__":
    unittest.main()

"""The Python client, installed by pip from its folder, in processes of its own."""
import json
import os
import tempfile
import unittest

from cluster.harness import Cluster, tiny
from cluster.other_weights import swapped_layers
from cluster.python_client import InstalledClient

PROMPT = list(range(3, 40))
TEXT = "A prompt of some length."


def setUpModule():
    global client
    client = InstalledClient()
    unittest.addModuleCleanup(client.__exit__)


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
            answers = client.run(cluster, "-c", CALLS, json.dumps(PROMPT))
            self.assertEqual(answers, [tokens, 1, False, True, True, False, "INVALID_ARGUMENT",
                                       "mode must be one of keep, wait, abort, not 'never'", tokens])
            self.assertEqual(cluster.stop(), 0)

    def test_a_step_of_reinforcement_learning(self):
        with tempfile.TemporaryDirectory() as temporary:
            other = swapped_layers(tiny("qwen3"), os.path.join(temporary, "other"))
            with Cluster(other, "--dtype=float32", workers=2) as cluster:
                new = cluster.complete(TEXT, max_tokens=16)["choices"][0]
            with Cluster(tiny("qwen3"), "--dtype=float32", workers=2) as cluster:
                old = cluster.complete(TEXT, max_tokens=16)["choices"][0]
                self.assertNotEqual(old["token_ids"], new["token_ids"])
                steps = [(other, False, new), (tiny("qwen3"), True, old), (other, True, new)]
                for version, (checkpoint, shared_memory, answer) in enumerate(steps, start=2):
                    self.assertEqual(client.rlhf_step(cluster, checkpoint, TEXT, shared_memory=shared_memory),
                                     {"weights_version": version, "text": answer["text"], "token_ids": answer["token_ids"]})
                self.assertEqual([name for name in os.listdir("/dev/shm") if name.startswith("somnus-tensor-")], [])
                self.assertEqual(cluster.stop(), 0)

    def test_a_tensor_that_cannot_be_sent_is_named(self):
        with Cluster(tiny("qwen3"), "--dtype=float32", workers=2) as cluster:
            tokens = cluster.tokens(PROMPT, max_tokens=4)
            message, version = client.run(cluster, "-c", BROKEN)
            self.assertIn("model.norm.weight: its type is float64", message)
            self.assertEqual(version, 1)
            self.assertEqual(cluster.tokens(PROMPT, max_tokens=4), tokens)
            self.assertEqual(cluster.stop(), 0)


if __name__ == "__main__":
    unittest.main()

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
import json, os, struct, sys
from somnus import Client
good = ("model.norm.weight", (struct.pack("<f", 1) * 48, "float32", (48,)))
bad = ("model.layers.0.input_layernorm.weight", (bytes(8), "float64", (1,)))
seen = []

# A tensor that cannot be sent, once the update has begun.
def late(client):
    yield good
    while client.status().weights_version:
        pass
    yield bad

with Client(os.environ["GRPC"], os.environ["CONTROL"], timeout=60) as client:
    for tensors in ([bad, good], late(client)):
        try:
            client.update_weights(tensors)
        except TypeError as error:
            seen.append([str(error), client.status().weights_version])
    seen.append(client.reload_weights())
print(json.dumps(seen))
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
            first, second, version = client.run(cluster, "-c", BROKEN)
            message = "model.layers.0.input_layernorm.weight: its type is float64; float32, bfloat16 and float16 can be sent"
            self.assertEqual(first, [message, 1], "nothing was sent")
            self.assertEqual(second, [message, 0], "the weights are stale")
            self.assertEqual(version, 2)
            self.assertEqual(cluster.tokens(PROMPT, max_tokens=4), tokens)
            self.assertEqual(cluster.stop(), 0)


if __name__ == "__main__":
    unittest.main()

"""The Python client, installed by pip from its folder, in separate processes."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

from cluster.harness import Cluster, free_ports, tiny, wait_until
from cluster.harness.other_weights import second_checkpoint, swapped_layers
from cluster.harness.python_client import RLHF_STEP, InstalledClient
from cluster.lifecycle_test import HandStartedWorkers

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
    answers.append(client.generate(prompt, max_tokens=8, temperature=0, user="u", priority=1, ttft_target_s=60)[0].token_ids)
    pin = client.pin_prefix(prompt)
    answers.append([pin.tokens, [one.id == pin.id for one in client.prefixes()]])
    client.unpin_prefix(pin.id)
    answers.append(len(client.prefixes()))
    try:
        client.unpin_prefix(pin.id)
    except grpc.RpcError as error:
        answers.append(error.code().name)
print(json.dumps(answers))
"""

BROKEN = """
import json, os, struct, sys, types
from somnus import Client
good = ("model.norm.weight", (struct.pack("<f", 1) * 48, "float32", (48,)))
bad = ("model.layers.0.input_layernorm.weight", (bytes(8), "float64", (1,)))
seen = []

# As NumPy describes an array of another machine.
class Foreign:
    dtype, shape = types.SimpleNamespace(name="float32", byteorder=">"), (48,)

# A tensor that cannot be sent, once the update has begun.
def late(client):
    yield good
    while client.status().weights_version:
        pass
    yield bad

with Client(os.environ["GRPC"], os.environ["CONTROL"], timeout=60) as client:
    for tensors in ([bad, good], late(client), [("model.norm.weight", Foreign())]):
        try:
            client.update_weights(tensors)
        except TypeError as error:
            seen.append([str(error), client.status().weights_version])
    seen.append(client.reload_weights())
print(json.dumps(seen))
"""


# The request of the sending thread after a failed update.
TOO_LATE = """
import concurrent.futures, json, os
from somnus import updates
tensor, segments = (bytes(4), "float32", (1,)), updates.Segments()
next(updates.shared("a", tensor, segments))
path = os.path.join("/dev/shm", segments.segments[0].name)
seen = [os.path.exists(path)]
segments.close()
seen.append(os.path.exists(path))
try:
    next(updates.shared("b", tensor, segments))
except concurrent.futures.CancelledError:
    seen.append(len(segments.segments))
print(json.dumps(seen))
"""

NAMED = """
import json, os, struct, sys, grpc
from somnus import Client
answers = []
tensor = ("model.norm.weight", (struct.pack("<f", 1) * 48, "float32", (48,)))
with Client(os.environ["GRPC"], os.environ["CONTROL"], timeout=60) as client:
    states = lambda field: [getattr(model, field) for model in client.models()]
    other = {"model": "qwen"}
    client.pause(**other)
    answers.append(states("paused"))
    client.resume(**other)
    client.reset_prefix_cache(reset_running_requests=True, **other)
    client.sleep(level=1, **other)
    answers.append(states("sleep_level"))
    answers.append(client.wake_up(**other).awake)
    answers.append(client.reload_weights(**other))
    answers.append(client.update_weights([tensor], **other))
    answers.append([client.status(**other).weights_version, client.status().weights_version])
    for call in (client.pause, client.resume, client.sleep, client.wake_up, client.reload_weights, client.reset_prefix_cache,
                 lambda: client.update_weights([tensor])):
        try:
            call()
        except grpc.RpcError as error:
            answers.append(error.code().name)
print(json.dumps(answers))
"""

# The warnings of the client's logger come along. "away": workers that the client does not reach.
UPDATE = """
import json, logging, os, runpy, sys
from somnus import Client, updates
warned, handler = [], logging.Handler()
handler.emit = lambda record: warned.append(record.getMessage())
logging.getLogger("somnus").addHandler(handler)
if "away" in sys.argv:
    updates.WorkerStream.connect = lambda *_: False
with Client(os.environ["GRPC"], os.environ["CONTROL"], timeout=60) as client:
    version = client.update_weights(runpy.run_path(sys.argv[1])["read_tensors"](sys.argv[2]), direct="direct" in sys.argv)
print(json.dumps([version, warned]))
"""

# A trainer that stops within an update.
STUCK = """
import os, runpy, sys, time
from somnus import Client

def tensors():
    for number, tensor in enumerate(runpy.run_path(sys.argv[1])["read_tensors"](sys.argv[2])):
        if number == 5:
            print("stuck", flush=True)
            time.sleep(1000)
        yield tensor

with Client(os.environ["GRPC"], os.environ["CONTROL"]) as client:
    client.update_weights(tensors())
"""


class PythonClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.other = second_checkpoint(cls, tiny("qwen3"))
        with Cluster(cls.other, "--dtype=float32", workers=2) as cluster:
            cls.other_tokens = cluster.tokens(PROMPT, max_tokens=8)

    def test_the_model_that_a_call_names(self):
        with Cluster(tiny("llama-uneven"), f"--model=qwen={tiny('qwen3')}", "--dtype=float32", "--kv-cache-memory-bytes=32MiB",
                     "--workers=local:1", "--max-model-len=512", workers=0) as cluster:
            self.assertEqual(client.run(cluster, "-c", NAMED),
                             [[False, True], [0, 1], True, 2, 3, [3, 1], *["INVALID_ARGUMENT"] * 7])

    def test_the_ways_of_an_update(self):
        with Cluster(tiny("qwen3"), "--dtype=float32", workers=2) as cluster:
            tokens = cluster.tokens(PROMPT, max_tokens=8)
            self.assertNotEqual(tokens, self.other_tokens)
            ways = [(["direct"], 0), (["server"], 0), (["direct", "away"], 1)]
            for number, (words, num_warnings) in enumerate(ways):
                folder, new = (self.other, self.other_tokens) if number % 2 == 0 else (tiny("qwen3"), tokens)
                version, warned = client.run(cluster, "-c", UPDATE, RLHF_STEP, folder, *words)
                self.assertEqual((version, len(warned)), (number + 2, num_warnings), warned)
                self.assertEqual(cluster.tokens(PROMPT, max_tokens=8), new, words)
            self.assertIn("is out of reach", warned[0])
            self.assertEqual(cluster.stop(), 0)

    def test_an_update_over_tcp_to_the_workers(self):
        port, = free_ports(1)
        with HandStartedWorkers(port) as workers, \
                Cluster(tiny("qwen3"), "--dtype=float32", "--workers=remote:2", f"--cluster-port={port}", workers=0, wait=False) as cluster:
            for _ in range(2):
                workers.start()
            cluster.wait_ready()
            self.assertEqual(client.run(cluster, "-c", UPDATE, RLHF_STEP, self.other, "direct"), [2, []], "and no warning")
            self.assertEqual(cluster.tokens(PROMPT, max_tokens=8), self.other_tokens)
            self.assertEqual(cluster.stop(), 0)

    def test_a_trainer_that_is_killed_within_an_update(self):
        with Cluster(tiny("qwen3"), "--dtype=float32", workers=2) as cluster:
            tokens = cluster.tokens(PROMPT, max_tokens=8)
            environment = {**os.environ, "PYTHONPATH": client.path, "GRPC": f"127.0.0.1:{cluster.grpc_port}",
                           "CONTROL": f"127.0.0.1:{cluster.control_port}"}
            with subprocess.Popen([sys.executable, "-c", STUCK, RLHF_STEP, self.other], env=environment, text=True,
                                  stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as trainer:
                self.assertEqual(trainer.stdout.readline(), "stuck\n")
                trainer.kill()
            wait_until(lambda: "stale" in cluster.request("GET", "/health").text, 30, "the weights are stale")
            cluster.cli("reload-weights")
            self.assertEqual(cluster.tokens(PROMPT, max_tokens=8), tokens)
            self.assertEqual(client.run(cluster, "-c", UPDATE, RLHF_STEP, self.other, "direct")[1], [])
            self.assertEqual(cluster.tokens(PROMPT, max_tokens=8), self.other_tokens)
            self.assertEqual(cluster.stop(), 0)

    def test_calls(self):
        with Cluster(tiny("qwen3"), "--dtype=float32", "--admin-api-key=key", workers=2) as cluster:
            tokens = cluster.tokens(PROMPT, max_tokens=8)
            answers = client.run(cluster, "-c", CALLS, json.dumps(PROMPT))
            self.assertEqual(answers, [tokens, 1, False, True, True, False, "INVALID_ARGUMENT",
                                       "mode must be one of keep, wait, abort, not 'never'", tokens,
                                       [32, [True]], 0, "NOT_FOUND"])
            self.assertEqual(client.run(cluster, "-c", TOO_LATE), [True, False, 1])
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
            first, second, third, version = client.run(cluster, "-c", BROKEN)
            message = "model.layers.0.input_layernorm.weight: its type is float64; float32, bfloat16 and float16 can be sent"
            self.assertEqual(first, [message, 1], "nothing was sent")
            self.assertEqual(second, [message, 0], "the weights are stale")
            self.assertEqual(third, ["model.norm.weight: its numbers are big-endian", 0])
            self.assertEqual(version, 2)
            self.assertEqual(cluster.tokens(PROMPT, max_tokens=4), tokens)
            self.assertEqual(cluster.stop(), 0)

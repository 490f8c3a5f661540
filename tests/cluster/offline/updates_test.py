"""Updates of the weights of the engine within a Python program, with the installed client."""
import json
import unittest

from cluster.harness import Cluster, tiny
from cluster.harness.offline_engine import run_program
from cluster.harness.other_weights import second_checkpoint
from cluster.harness.python_client import RLHF_STEP, InstalledClient

UPDATED = """
import json, runpy, sys
from somnus import LLM, SamplingParams
llm = LLM(sys.argv[1], tensor_parallel_size=2, dtype="float32", kv_cache_memory_bytes="32MiB", enable_sleep_mode=True)
read_tensors = runpy.run_path(sys.argv[2])["read_tensors"]

def tokens():
    params = SamplingParams(temperature=0, max_tokens=8)
    return llm.generate([list(range(3, 40))], params, use_tqdm=False)[0].outputs[0].token_ids

versions, said = [], [tokens()]
for shared_memory in (False, True):
    llm.sleep(level=2)
    llm.wake_up(tags=["weights"], load_weights=False)
    versions.append(llm.update_weights(read_tensors(sys.argv[3]), shared_memory=shared_memory))
    llm.wake_up(tags=["kv_cache"])
said.append(tokens())
# The calls of vLLM's examples/rl (rlhf_nccl.py): memory stays.
llm.sleep(level=0)
versions.append(llm.update_weights(read_tensors(sys.argv[1])))
llm.wake_up(tags=["scheduling"])
said.append(tokens())
print(json.dumps([versions, said]))
"""


class Updates(unittest.TestCase):
    def test_new_weights_in_place(self):
        other = second_checkpoint(type(self), tiny("qwen3"))
        self.addCleanup(type(self).doClassCleanups)
        wanted = []
        for model in (tiny("qwen3"), other):
            with Cluster(model, "--dtype=float32", workers=2) as cluster:
                wanted.append(cluster.tokens(list(range(3, 40)), max_tokens=8))
        self.assertNotEqual(*wanted)
        with InstalledClient() as client, run_program(UPDATED, tiny("qwen3"), RLHF_STEP, other, path=client.path) as program:
            said, errors = program.communicate(timeout=120)
        self.assertEqual(program.returncode, 0, errors)
        self.assertEqual(json.loads(said), [[2, 3, 4], [*wanted, wanted[0]]])


if __name__ == "__main__":
    unittest.main()

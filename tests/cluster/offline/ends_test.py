"""Ends of the engine within a Python program: Ctrl-C, the end of the program, the end of the engine."""
import os
import signal
import unittest

from cluster.harness import alive, children, tiny, wait_until
from cluster.harness.offline_engine import MODEL, SETTINGS, engine_pids, run_program
from somnus import LLM, EngineDeadError

INTERRUPTED = """
import sys, threading, signal, os
from somnus import LLM, SamplingParams
llm = LLM(sys.argv[1], tensor_parallel_size=2, dtype="float32", kv_cache_memory_bytes="32MiB")
running = lambda: sum(one.value for one in llm.get_metrics() if one.name == "vllm:num_requests_running")
def interrupt():
    while not running():
        pass
    os.kill(os.getpid(), signal.SIGINT)
llm.sleep(level=0)
threading.Thread(target=lambda: (llm.wake_up(), interrupt())).start()
try:
    llm.generate(["abc"] * 200, SamplingParams(max_tokens=None, ignore_eos=True, n=8), use_tqdm=False)
    print("not interrupted")
except KeyboardInterrupt:
    while running():
        pass
    print(len(llm.generate("abc", use_tqdm=False)))
"""

STAYS = """
import sys, time
from somnus import LLM
llm = LLM(sys.argv[1], tensor_parallel_size=2, dtype="float32", kv_cache_memory_bytes="32MiB")
print("started", flush=True)
time.sleep(1000)
"""


class Ends(unittest.TestCase):
    def test_ctrl_c_ends_the_call_and_not_the_engine(self):
        with run_program(INTERRUPTED, tiny(MODEL)) as program:
            said, errors = program.communicate(timeout=120)
        self.assertEqual((said, program.returncode), ("1\n", 0), errors)

    def test_nothing_outlives_the_program(self):
        for number in (signal.SIGINT, signal.SIGKILL):
            with self.subTest(number), run_program(STAYS, tiny(MODEL)) as program:
                self.assertEqual(program.stdout.readline(), "started\n")
                pids = engine_pids(program.pid)
                self.assertEqual(len(pids), 3, "a coordinator and two workers")
                program.send_signal(number)
                program.communicate(timeout=60)
                wait_until(lambda: not any(map(alive, pids)), 30, "all have ended")

    def test_an_engine_that_dies_is_an_error_with_its_log(self):
        with LLM(tiny(MODEL), **SETTINGS) as llm:
            coordinator, = [pid for pid in children(os.getpid()) if "coordinator" in os.readlink(f"/proc/{pid}/exe")]
            os.kill(coordinator, signal.SIGKILL)
            with self.assertRaisesRegex(EngineDeadError, r"(?s)signal 9.*serving"):
                llm.generate("abc", use_tqdm=False)
        with self.assertRaises(EngineDeadError):
            llm.is_sleeping()


if __name__ == "__main__":
    unittest.main()

"""Workers on hosts whose CPUs have other instruction sets: they never serve together."""
import os
import platform
import signal
import unittest

from cluster.harness import expected, tiny, wait_until
from cluster.lifecycle_test import waiting_for_two_workers

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
FIRST, OTHER = ("neon", "neon_dotprod") if platform.machine() == "aarch64" else ("portable", "avx2")
SOON_S = 60


class CpuIsa(unittest.TestCase):
    def test_another_one_is_refused_at_first_and_after_a_loss(self):
        with waiting_for_two_workers("--dtype=float32", "--log-level=debug") as (cluster, workers):
            first = workers.start("--rank=0", env={"SOMNUS_CPU_ISA": FIRST})
            wait_until(lambda: "has registered" in cluster.log(), SOON_S, cluster.log)
            self.refuse(workers, 1)
            second = workers.start("--rank=1", env={"SOMNUS_CPU_ISA": FIRST})
            cluster.wait_ready()
            self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])
            for worker in (first, second):
                os.kill(worker.pid, signal.SIGKILL)
            wait_until(lambda: "rank 0 waits for a new worker" in cluster.log(), SOON_S, cluster.log)
            self.refuse(workers, 0)
            for rank in (0, 1):
                workers.start(f"--rank={rank}", env={"SOMNUS_CPU_ISA": FIRST})
            wait_until(lambda: cluster.health() == 200, SOON_S, cluster.log)
            self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def refuse(self, workers, rank):
        refused = workers.start(f"--rank={rank}", env={"SOMNUS_CPU_ISA": OTHER})
        self.assertEqual(refused.wait(SOON_S), 1)
        self.assertIn(f"cpu_isa: the group computes with {FIRST}, the worker on", workers.logs()[-1])


if __name__ == "__main__":
    unittest.main()

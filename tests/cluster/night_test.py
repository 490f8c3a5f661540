"""The log of several models names the model in each line: of a loss, of a cache, of a worker that leaves."""
import os
import signal
import unittest

from cluster.harness import children, wait_until
from cluster.several_models_test import MODELS, start

PATIENCE_S = 60


class Night(unittest.TestCase):
    def test_a_loss_names_its_model(self):
        with start() as cluster:
            victim = next(pid for pid in children(cluster.process.pid)
                          if b"--log-name=qwen" in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0"))
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: "qwen: the group is whole again" in cluster.log(), PATIENCE_S, cluster.log)
            self.assertRegex(cluster.log(), rf"\[coordinator\] qwen: the group was lost: .*{victim}")
            self.assertEqual(cluster.stop(), 0)
            for name in MODELS:
                self.assertIn(f"[coordinator] {name}: KV cache: ", cluster.log())
                self.assertIn(f"[{name}: worker 0] leaving", cluster.log())


if __name__ == "__main__":
    unittest.main()

"""The sbatch script is good shell and uses flags that exist; tests/cluster/slurm_test.py runs it."""
import os
import re
import subprocess
import unittest

from deploy.sources import DEPLOY, flags, read, seconds

SCRIPT = os.path.join(DEPLOY, "slurm", "somnus.sbatch")


class Script(unittest.TestCase):
    def setUp(self):
        self.text = read("tools", "deploy", "slurm", "somnus.sbatch")

    def test_it_is_good_shell(self):
        done = subprocess.run(["bash", "-n", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_flags_exist(self):
        for program in ("coordinator", "worker"):
            command = re.search(rf'"\$SOMNUS_HOME/{program}/{program}"(.*)', self.text).group(1)
            given = re.findall(r"--([\w-]+)=", command)
            self.assertTrue(given)
            self.assertEqual([flag for flag in given if flag not in flags()[program]], [])

    def test_the_drain_ends_before_the_time_limit(self):
        notice = int(re.search(r"#SBATCH --signal=B:USR1@(\d+)", self.text).group(1))
        drain = seconds(re.search(r"SOMNUS_DRAIN_S:-(\d+)", self.text).group(1))
        self.assertIn('--term-grace="$((SOMNUS_DRAIN_S + 10))s"', self.text)
        self.assertLess(drain + 10, notice)

    def test_srun_does_not_end_a_step_for_one_task(self):
        self.assertIn("srun --overlap --kill-on-bad-exit=0 --label bash -c run_worker", self.text)

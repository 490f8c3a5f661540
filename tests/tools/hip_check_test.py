"""tools/hip_check.sh: the driver for AMD's GPUs compiles, and the check can fail."""
import os
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def check(**environment):
    """The exit status and the output."""
    done = subprocess.run([os.path.join(ROOT, "tools", "hip_check.sh")], env={**os.environ, **environment}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    return done.returncode, done.stdout


class HipCheck(unittest.TestCase):
    def test_the_driver_compiles_against_hips_headers(self):
        status, output = check()
        if "skipped" in output:
            self.skipTest(output.strip())
        self.assertEqual(status, 0, output)
        self.assertIn("hip_vmm_driver.cc compiles against", output)

    def test_headers_that_lack_a_call_are_a_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "hip"))
            with open(os.path.join(folder, "hip", "hip_runtime_api.h"), "w", encoding="ascii"):
                pass
            status, output = check(HIP_INCLUDE=folder)
            self.assertNotEqual(status, 0, output)
            self.assertIn("hipMem", output)

    def test_without_headers_it_says_so(self):
        with tempfile.TemporaryDirectory() as folder:
            status, output = check(HIP_INCLUDE=folder)
            self.assertEqual(status, 0, output)
            self.assertRegex(output, r"^hip: skipped: no hip/hip_runtime_api.h in ")


if __name__ == "__main__":
    unittest.main()

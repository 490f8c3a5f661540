"""tools/trim_cache.py: the files that are removed from a disk cache, and the files that stay."""
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import trim_cache  # noqa: E402

NOW = 1_700_000_000
KEY, OTHER_KEY = "0123456789abcdef", "fedcba9876543210"


class TrimCache(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, size, written, read):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"x" * size)
        os.utime(path, (NOW + read, NOW + written))

    def left(self):
        return sorted(os.path.relpath(path, self.folder) for _, _, path in trim_cache.files_in(self.folder))

    def test_within_the_limit_all_stays(self):
        self.write(f"{KEY}/ac/aa/1", 60, 0, 0)
        self.write(f"{KEY}/cas/bb/2", 40, 0, 0)
        self.assertEqual(trim_cache.trim(self.folder, 100), 0)
        self.assertEqual(self.left(), [f"{KEY}/ac/aa/1", f"{KEY}/cas/bb/2"])

    def test_what_was_not_used_for_longest_goes_first(self):
        self.write(f"{OTHER_KEY}/cas/aa/unused", 30, 0, 0)
        self.write(f"{OTHER_KEY}/cas/aa/read", 30, 0, 500)  # written as early, but read since
        self.write(f"{KEY}/cas/bb/written", 30, 400, 0)
        self.write(f"{KEY}/cas/bb/early", 30, 100, 200)
        self.assertEqual(trim_cache.trim(self.folder, 100), 60)  # 60 of 120 are left: no more than 75
        self.assertEqual(self.left(), [f"{KEY}/cas/bb/written", f"{OTHER_KEY}/cas/aa/read"])

    def test_what_is_no_cache_is_left_alone(self):
        for name in ("notes", "src/main.cc", "0123/cas/aa/1", f"project/{KEY}/1"):
            self.write(name, 100, 0, 0)
        self.write(f"{KEY}/cas/aa/1", 100, 0, 0)
        self.assertEqual(trim_cache.trim(self.folder, 10), 100)
        self.assertEqual(sum(len(names) for _, _, names in os.walk(self.folder)), 4)

    def test_the_program_says_what_it_removed(self):
        self.write(f"{KEY}/cas/aa/1", 3 << 20, 0, 0)
        for limit, said in (("0.01", ""), ("0.001", "removed 0.0 GiB")):
            ran = subprocess.run([os.path.join(ROOT, "tools", "trim_cache.py"), self.folder, limit],
                                 capture_output=True, text=True, check=True)
            self.assertIn(said, ran.stderr)
            self.assertEqual(ran.stderr == "", said == "")
        self.assertEqual(self.left(), [])


if __name__ == "__main__":
    unittest.main()

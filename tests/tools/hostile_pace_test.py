"""hostile_pace.py measures streams beside hostile grammars; a tiny run on a tiny model."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

from cluster.harness import ROOT, tiny

SCRIPT = os.path.join(ROOT, "tools", "bench", "hostile_pace.py")
sys.path.insert(0, os.path.dirname(SCRIPT))
import hostile_pace  # noqa: E402


class HostilePace(unittest.TestCase):
    def test_a_tiny_run(self):
        with tempfile.NamedTemporaryFile(suffix=".json") as result:
            done = subprocess.run([sys.executable, SCRIPT, tiny("qwen3"), "--rounds=2", "--tokens=30", "--json", result.name],
                                  capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            found = json.load(result)
        self.assertEqual(len(found["rounds"]), 2)
        for one in found["rounds"]:
            self.assertEqual(set(one), {"alone", "plain", "forms"})
            for figures in one.values():
                self.assertGreater(figures["median"], 0)
                self.assertLessEqual(figures["median"], figures["p99"])
                self.assertLessEqual(figures["p99"], figures["largest"])
        self.assertIn("400", found["statuses"])
        self.assertLessEqual(set(found["statuses"]), {"200", "400"})
        self.assertEqual(done.stdout.count("; ratio "), 6)
        self.assertRegex(done.stdout, r"(?m)^hostile requests: \d+ of status ")

    def test_figures(self):
        self.assertEqual(hostile_pace.figures([3, 1, 2]), {"median": 2, "p99": 3, "largest": 3})
        gaps = list(range(1, 201))
        self.assertEqual(hostile_pace.figures(gaps), {"median": 100.5, "p99": 199, "largest": 200})


if __name__ == "__main__":
    unittest.main()

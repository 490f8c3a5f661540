"""The tables of tools/build_profile.py from a profile of Bazel's."""
import gzip
import json
import os
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EVENTS = [
    {"cat": "action processing", "name": "Compiling kernels/cpu/kernels_avx512.cc", "dur": 30_500_000},
    {"cat": "action processing", "name": "Linking tools/somnus", "dur": 250_000},
    {"cat": "action processing", "name": "Compiling kernels/cpu/ops.cc", "dur": 4_000_000},
    {"cat": "action processing", "name": "Executing genrule //proto:somnus_cc_grpc_codegen", "dur": 125_000},
    {"cat": "local action execution", "name": "Compiling kernels/cpu/ops.cc", "dur": 4_000_000},
    {"cat": "action processing", "name": "BazelWorkspaceStatusAction stable-status.txt", "dur": 9_000_000},
    {"ph": "M", "name": "thread_name"},
]


class Report(unittest.TestCase):
    def test_actions_and_folders_slowest_first(self):
        sys.path.insert(0, os.path.join(ROOT, "tools"))
        self.addCleanup(sys.path.pop, 0)
        import build_profile
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "profile.gz")
            with gzip.open(path, "wt", encoding="utf-8") as file:
                json.dump({"traceEvents": EVENTS}, file)
            found = build_profile.actions(path)
        self.assertEqual(build_profile.report(found, 20.25, 36.5, slowest=2).splitlines(), [
            "    20.2 s  wall",
            "    36.5 s  CPU (user and system) of all actions",
            "",
            "    34.5 s  kernels/cpu/",
            "     0.2 s  tools/",
            "     0.1 s  proto/",
            "",
            "    30.5 s  Compiling kernels/cpu/kernels_avx512.cc",
            "     4.0 s  Compiling kernels/cpu/ops.cc"])


if __name__ == "__main__":
    unittest.main()

"""The device day runs every test program of GPUs that the build has (tools/gpu_day/programs.py), each within a limit, and its pack
has what the programs read."""
import builtins
import importlib
import os
import pathlib
import subprocess
import sys
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "tools", "gpu_day")


class Names(dict):
    """Of Starlark's names, those that no test sets and Python has not do nothing."""

    def __missing__(self, name):
        return getattr(builtins, name) if hasattr(builtins, name) else mock.MagicMock()


def run_starlark(path, names):
    """Runs a file of Bazel's, of which these use the part that Python has, too."""
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), names)
    return names


def gpu_programs():
    """{path below bazel-bin: the labels of the program's data} of all tests with the tag "gpu"."""
    found = {}
    for build in sorted(pathlib.Path(ROOT, "tests").rglob("BUILD.bazel")):
        if '"gpu"' not in build.read_text(encoding="utf-8") and "cuda_test(" not in build.read_text(encoding="utf-8"):
            continue
        rules = {}

        def cc_test(name, rules=rules, **rule):
            rules[name] = {"name": name, "tags": [], "data": [], **rule}

        native = mock.MagicMock(cc_test=cc_test, existing_rules=lambda rules=rules: rules)
        bzl = run_starlark(os.path.join(ROOT, "tools", "bazel", "cuda.bzl"), Names(native=native))
        run_starlark(str(build), Names(cc_test=cc_test, cuda_test=bzl["cuda_test"], gpu_tests=bzl["gpu_tests"]))
        package = build.parent.relative_to(ROOT)
        found.update({f"{package}/{name}": list(rule["data"]) for name, rule in rules.items() if "gpu" in rule["tags"]})
    return found


class GpuPrograms(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        sys.path.insert(0, FOLDER)
        cls.addClassCleanup(sys.path.remove, FOLDER)
        cls.programs, cls.table = (importlib.import_module(name) for name in ("programs", "table"))
        cls.races, cls.gtest = (importlib.import_module(name) for name in ("items.races", "gtest"))
        cls.built = gpu_programs()

    def test_every_program_of_the_build_is_in_an_item(self):
        self.assertGreater(len(self.built), 12)
        self.assertEqual(sorted(self.programs.paths()), sorted(self.built))
        items = {item.name for item in self.table.ITEMS}
        self.assertLessEqual(set(self.programs.ITEMS), items)

    def test_an_item_runs_all_cases_of_its_programs(self):
        """Behind entries with a part of the cases comes an entry with the rest."""
        last = {program.path: program.filter for programs in self.programs.ITEMS.values() for program in programs}
        self.assertEqual({path for path, pattern in last.items() if pattern != "*"}, set())

    def test_limits_leave_time_for_the_programs_behind_and_for_the_verdict(self):
        budgets = {item.name: item.seconds for item in self.table.ITEMS}
        limits = {name: [program.seconds for program in programs] for name, programs in self.programs.ITEMS.items()}
        limits["races"] = [seconds for _, seconds, _ in self.races.TOOLS]
        self.assertEqual({name: sum(seconds) for name, seconds in limits.items()
                          if min(seconds) <= 0 or sum(seconds) + self.gtest.GRACE_S >= budgets[name]}, {})

    def test_the_pack_has_what_the_programs_read(self):
        labels = {label for data in self.built.values() for label in data}
        self.assertGreater(len(labels), 2)
        self.assertEqual(sorted(self.programs.DATA), sorted(label.removeprefix("//").replace(":", "/") for label in labels))
        for flags, wanted in (((), len(self.built)), (("--data",), len(labels))):
            done = subprocess.run([sys.executable, os.path.join(FOLDER, "programs.py"), *flags], capture_output=True, text=True,
                                  timeout=60, check=True)
            self.assertEqual(len(done.stdout.splitlines()), wanted)


if __name__ == "__main__":
    unittest.main()

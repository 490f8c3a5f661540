"""gpu_tests, all cases that share a process on a GPU: the suites are told apart, and the cases named *Small* launch every
kernel.

compute-sanitizer, which takes a hundred times as long as a kernel alone, runs the small cases.
"""
import os
import re
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("SOMNUS_BIN", os.path.join(ROOT, "bazel-bin"))
GPU_TESTS = os.path.join(BIN, "tests", "cuda", "gpu_tests_emulated")
KERNELS = os.path.join(ROOT, "kernels", "cuda")
CASE = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),", re.MULTILINE)
ELEMENT_OP = re.compile(r"struct (\w+) \{\s*static constexpr int kWidth")


def texts(folder, ending):
    for name in sorted(os.listdir(folder)):
        if name.endswith(ending):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                yield name, re.sub(r"//[^\n]*", "", file.read())


def kernels_of(text):
    """The names of the __global__ functions."""
    for match in re.finditer(r"__global__\s+void\s+", text):
        at = match.end()
        if text.startswith("__launch_bounds__", at):
            depth = 0
            for at in range(text.index("(", at), len(text)):
                depth += {"(": 1, ")": -1}.get(text[at], 0)
                if depth == 0:
                    break
            at += 1
        yield re.compile(r"\s*(\w+)\(").match(text, at).group(1)


def wanted():
    """(file, pattern of a launched kernel's name) of everything that the small cases have to launch.

    The kernels of ranks (kernels/cuda/peer) wait for kernels of further ranks: separate tests, which no sanitizer runs.
    """
    for name, text in texts(KERNELS, (".cu", ".h")):
        for kernel in kernels_of(text):
            yield name, re.compile(rf"{kernel}\b")
        for operation in ELEMENT_OP.findall(text):
            yield name, re.compile(rf"ElementKernel<.*\b{operation}\b")
        if (dims := re.fullmatch(r"attention_prefill_(\d+)\.cu", name)) is not None:
            yield name, re.compile(rf"PrefillKernel<.*\b{dims.group(1)}>")


class GpuTests(unittest.TestCase):
    def test_a_suite_is_of_one_file(self):
        files = {}
        for name, text in texts(os.path.dirname(os.path.abspath(__file__)), "_test.cc"):
            for suite in set(CASE.findall(text)):
                files.setdefault(suite, []).append(name)
        self.assertGreater(len(files), 40)
        self.assertEqual({suite: names for suite, names in files.items() if len(names) > 1}, {})

    def test_the_small_cases_launch_every_kernel(self):
        if not os.path.exists(GPU_TESTS):
            self.skipTest(f"{GPU_TESTS} is not built")
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "kernels.txt")
            done = subprocess.run([GPU_TESTS, "--gtest_filter=*Small*", "--gtest_brief=1"], cwd=ROOT, capture_output=True, text=True,
                                  check=False, env={**os.environ, "SOMNUS_EMULATOR_KERNELS": report})
            self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
            with open(report, encoding="utf-8") as file:
                launched = file.read().splitlines()
        pairs = list(wanted())
        self.assertGreater(len({name for name, _ in pairs}), 20, "the kernels are not where they were")
        missing = [f"{name}: {pattern.pattern}" for name, pattern in pairs if not any(map(pattern.match, launched))]
        self.assertEqual(missing, [], launched)


if __name__ == "__main__":
    unittest.main()

"""No kernel has a race, and every barrier in the kernels is needed: some test has two accesses that no other barrier orders.

Runs the tests of kernels with barriers again with SOMNUS_EMULATOR_BARRIERS (kernels/emulator/barrier_sites.h), with which each test
looks for races, and ends at the first. A barrier that is removed shows as a race, and a barrier that is not needed is named here. All
other tests of kernels look for races whenever bazel runs them (cuda_test's `observed`).
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("SOMNUS_BIN", os.path.join(ROOT, "bazel-bin"))
# Together the tests run every kernel that has a barrier. In kernels of several ranks, accesses of a single rank are compared.
TESTS = ("attention_sections_test", "attention_decode_test", "attention_prefill_test", "attention_window_test", "argmax_test",
         "byte_cache_test", "experts_test", "gemv_test", "latent_attention_test", "linear_test", "linear_tiles_test",
         "logits_edits_test", "logprobs_test", "norms_test", "sampling_test", "qk_rope_cache_test", "all_reduce_test")
# The detector finds a race in every schedule in which both accesses happen (kernels/emulator/race_detector.h), so a single
# schedule is enough here; kernels of float16 make the same accesses as the bfloat16 twins, since elements have the same size; and
# a graph that is launched again, a quarter of the time of decode attention, runs the kernels that other cases launch.
CASES = "--gtest_filter=-*AnySchedule*:*/f16*:*GraphServesOtherContextLengths*"
BARRIER = re.compile(r"\b(__syncthreads|SyncWarp)\(")


def barriers_of_source():
    """The places "FILE:LINE" of all barriers in the kernels."""
    places = set()
    folder = pathlib.Path(ROOT, "kernels", "cuda")
    for source in sorted([*folder.rglob("*.cu"), *folder.rglob("*.h")]):
        path = source.relative_to(ROOT)
        if source.name == "ptx.h":
            continue
        with open(source, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if BARRIER.search(line.split("//")[0]):
                    places.add(f"{path}:{number}")
    return places


def tests_of_the_build():
    """{name: rule} of the tests in this folder's BUILD.bazel: {"kind": "cuda_test", "observed": ..., "deps": ..., ...}."""
    rules = {}

    def add(kind):
        return lambda **rule: rules.update({rule["name"]: {"kind": kind, **rule}})

    def nothing(*_, **__):
        return []

    stubs = {"cc_test": add("cc_test"), "cuda_test": add("cuda_test"), "EMULATED_COPTS": [], "EMULATED_DEFINES": [],
             "HOST_WARNINGS": [], "OBSERVED_COPTS": []}
    stubs.update({name: nothing for name in ("load", "package", "select", "cc_library", "cc_binary", "gpu_tests")})
    path = os.path.join(ROOT, "tests", "cuda", "BUILD.bazel")
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), stubs)  # Starlark; this file uses the part that Python has, too
    return rules


def needed_by(test):
    """The barriers that were needed in a run of the test."""
    binary = os.path.join(BIN, "tests", "cuda", test)
    if not os.path.exists(binary):
        raise unittest.SkipTest(f"{binary} is not built")
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "barriers.txt")
        ended = subprocess.run([binary, CASES, "--gtest_brief=1"], capture_output=True, text=True, check=False,
                               env={**os.environ, "SOMNUS_EMULATOR_BARRIERS": report})
        if ended.returncode != 0:
            raise AssertionError(f"{test} ended with {ended.returncode}:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
        if not os.path.exists(report):  # no barrier ran
            return set()
        with open(report, encoding="utf-8") as file:
            words = [line.split() for line in file]
    return {place.removeprefix("./") for verdict, place in words if verdict == "needed"}


class BarriersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pool = concurrent.futures.ThreadPoolExecutor(max_workers=2)
        cls.runs = {test: cls.pool.submit(needed_by, test) for test in TESTS}

    @classmethod
    def tearDownClass(cls):
        cls.pool.shutdown(cancel_futures=True)

    def test_every_test_of_kernels_looks_for_races(self):
        rules = tests_of_the_build()
        files = {path.stem for path in pathlib.Path(ROOT, "tests", "cuda").glob("*_test.cc")}
        self.assertEqual(sorted(rules), sorted(files), "the tests that BUILD.bazel names, and the files")
        others = {name for name, rule in rules.items() if rule["kind"] == "cuda_test" and not rule.get("observed", True)}
        self.assertEqual(sorted(others), sorted(TESTS), "the tests that look for races here alone")
        # Without the backend in the emulator a test has only the test's own kernels.
        backend = [name for name, rule in rules.items() if rule["kind"] == "cc_test" and
                   any(dep.startswith("//kernels/cuda:emulated") for dep in rule["deps"])]
        self.assertEqual(backend, [], "have to be cuda_test")

    def test_z_each_is_needed(self):
        places = barriers_of_source()
        self.assertGreater(len(places), 30, "the source is not where it was")
        needed = set().union(*(run.result() for run in self.runs.values()))
        self.assertEqual(sorted(places - needed), [], "no test needs these barriers")


def add_case(test):
    def case(self):
        self.runs[test].result()
    case.__doc__ = f"{test} has no race."
    setattr(BarriersTest, f"test_no_race_in_{test.removesuffix('_test')}", case)


for name in TESTS:
    add_case(name)


if __name__ == "__main__":
    unittest.main()

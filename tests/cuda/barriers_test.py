"""No kernel has a race, and every barrier in the kernels is needed: some test has two accesses that no other barrier orders.

Runs the kernels' tests again with SOMNUS_EMULATOR_BARRIERS (kernels/emulator/barrier_sites.h), with which each test looks
for races, and ends at the first. A barrier that is removed shows as a race, and a barrier that is not needed is named here.
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
# The first run every kernel that has a barrier, the last row kernels without barriers, whose threads may write to one place all the
# same. In kernels of several ranks, accesses of a single rank are compared. Not here are attention_sections_test (its kernels are
# run by the other tests of attention, and it takes a minute), and whole steps: rows that pad a batch all write to the null block.
TESTS = ("argmax_test", "attention_decode_test", "attention_prefill_test", "attention_window_test", "byte_cache_test", "experts_test",
         "gemv_test", "latent_attention_test", "linear_test", "lora_test",
         "linear_tiles_test", "logits_edits_test", "logprobs_test", "norms_test", "sampling_test", "qk_rope_cache_test",
         "all_reduce_test",
         "activations_test", "blocks_test", "device_settings_test", "dummy_fill_test", "embedding_test", "step_test", "swap_test", "weight_upload_test")
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
                # A barrier that other barriers make redundant on today's paths, and that stays for later paths, says "Kept".
                if BARRIER.search(line.split("//")[0]) and "// Kept:" not in line:
                    places.add(f"{path}:{number}")
    return places


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

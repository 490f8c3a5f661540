"""Collectives of several ranks and processes that share the GPU."""
import gtest

PROGRAMS = ("all_reduce_gpu_test", "fused_norm_gpu_test", "peer_processes_gpu_test")
# The emulator takes minutes for all of them.
REHEARSED = ("--gtest_filter=AllReduceTest.FusesOnlyWhatIsWorthIt:*GathersAnyBytes/0",)


def run(kit):
    results = [(name, *gtest.run(kit, f"ranks.{name}", [kit.path("tests", "cuda", name), *kit.pick((), REHEARSED)], program=name))
               for name in kit.pick(PROGRAMS, PROGRAMS[:1])]
    for name, verdicts, status in results:
        gtest.must_pass(verdicts, status, name)

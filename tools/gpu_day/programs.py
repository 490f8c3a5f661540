#!/usr/bin/env python3
"""The GPU's test programs: which item runs each one, how much of the program, and for how long at most.

As a script the file prints Bazel's names of all programs, or with --data the folders that they read, for tools/gpu_day.sh --pack.
tests/tools/gpu_programs_test.py fails where a test program of the build is in no item, and where a folder is missing.
"""
import dataclasses
import sys
import time

import gtest
import table

TOGETHER = "tests/cuda/gpu_tests"
DATA = ("tests/data/gguf", "tests/data/gguf_variants", "tests/data/tiny", "tests/data/variants")


@dataclasses.dataclass(frozen=True)
class Program:
    path: str  # in bazel-bin and in a bundle
    seconds: float  # of the item's budget that are this program's, even when a program before hangs
    filter: str = "*"  # of GoogleTest; the cases of earlier entries with the same path are left out
    rehearsed: str = ""  # the filter of a rehearsal, which leaves the entry out without one
    part: str = ""  # tells entries with the same path apart

    @property
    def name(self):
        stem = self.path.rpartition("/")[2]
        return f"{stem}.{self.part}" if self.part else stem


def of_cuda(name, seconds, **more):
    return Program(f"tests/cuda/{name}_gpu_test", seconds, **more)


# By item, in the order in which an item runs them: first what no GPU has run yet (docs/gpu_verification.md).
ITEMS = {
    "kernels": (
        Program(TOGETHER, 25, part="new", rehearsed="ArgMaxTest.Small*",
                filter="*Window*:*Sink*:*Latent*:*Expert*:*Router*:*Lora*:*Pool*"),
        Program(TOGETHER, 20, part="products", rehearsed="BlocksTest.Small*",
                filter="*Decode*:*Prefill*:*Sections*:*Attention*:*Gemv*:*Linear*:*Norm*:*Qk*:*ByteCache*"),
        Program(TOGETHER, 10, part="rest", rehearsed="StepTest.Small*"),
    ),
    # Tests of the runner have ranks, which are threads, and so a process each.
    "runner": (
        of_cuda("runner", 15, rehearsed="Ranks/GpuMasks.*/0"),
        of_cuda("graph_sleep", 9),
        of_cuda("drafted_sequences", 7),
        of_cuda("steady_state", 7),
        of_cuda("batch_invariance", 9),
    ),
    "memory": (
        Program("tests/allocator/cuda_vmm_driver_test", 4, rehearsed="*"),
        of_cuda("graph_memory", 9),
        of_cuda("process_memory", 7, rehearsed="*"),
        of_cuda("swapped_sequence", 7),
        of_cuda("tune", 7, rehearsed="Tune.NoTimeNoMeasurement"),
    ),
    # A rank that is killed comes last: what it may leave on the device can disturb no item behind it.
    "ranks": (
        of_cuda("all_reduce", 8, rehearsed="AllReduceTest.FusesOnlyWhatIsWorthIt:*GathersAnyBytes/0"),
        of_cuda("fused_norm", 6),
        of_cuda("device_communicator", 6),
        of_cuda("peer_processes", 10),
    ),
}


def paths():
    """Every program once."""
    return list(dict.fromkeys(program.path for programs in ITEMS.values() for program in programs))


def run(kit, item):
    """Runs the item's programs; events.Failed names what failed afterwards."""
    run_all(kit, item, ITEMS[item], table.named(table.ITEMS, [item])[0].seconds)


def run_all(kit, item, programs, budget):
    """Runs programs in turn. The limit of each one is what is left of the item's budget, but for the seconds of those behind."""
    began, earlier, failures = time.monotonic(), {}, []
    programs = [program for program in programs if kit.pick(program.filter, program.rehearsed)]
    for at, program in enumerate(programs):
        wanted, left_out = kit.pick(program.filter, program.rehearsed), earlier.setdefault(program.path, [])
        pattern = wanted + ("-" + ":".join(left_out) if left_out else "")
        left_out.append(wanted)
        behind = sum(other.seconds for other in programs[at + 1:])
        left = kit.limit(budget - gtest.GRACE_S - behind) - (time.monotonic() - began)
        limit = round(max(left, kit.limit(program.seconds)), 1)
        done = gtest.run(kit, f"{item}.{program.name}", [kit.path(program.path), f"--gtest_filter={pattern}"], limit, program=program.name)
        why = done.why(limit)
        failures += [f"{program.name}: {why}"] if why else []
    gtest.must_be_none(failures)


if __name__ == "__main__":
    print("\n".join(DATA if "--data" in sys.argv else ("//{}:{}".format(*path.rsplit("/", 1)) for path in paths())))

"""The GPU's tests of kernels and of the runner, in the order of their value."""
import gtest

GROUPS = (
    "*Decode*:*Prefill*:*Sections*:*Attention*:*Gemv*:*Linear*:*Norm*:*Qk*:*ByteCache*:*Window*:*Expert*:*Router*:*Lora*",
    "*Sampling*:*LogProbs*:*LogitsEdits*:*ArgMax*:*Swap*",
    "*",
)
REHEARSED = ("ArgMaxTest.Small*", "BlocksTest.Small*")
# Tests of the runner have ranks, and so a process each.
PROGRAMS = ("steady_state_gpu_test", "graph_sleep_gpu_test", "batch_invariance_gpu_test", "runner_gpu_test")


def run(kit):
    program, seen, results = kit.path("tests", "cuda", "gpu_tests"), [], {}
    for group in kit.pick(GROUPS, REHEARSED):
        pattern = group + ("-" + ":".join(seen) if seen else "")
        seen.append(group)
        name = f"group {len(seen)}"
        results[name] = gtest.run(kit, f"kernels.{len(seen)}", [program, f"--gtest_filter={pattern}"])
    for name in kit.pick(PROGRAMS, ()):
        results[name] = gtest.run(kit, f"kernels.{name}", [kit.path("tests", "cuda", name)])
    for name, (verdicts, status) in results.items():
        gtest.must_pass(verdicts, status, name)

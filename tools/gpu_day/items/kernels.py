"""The GPU's tests of one rank, in the order of their value."""
import gtest

GROUPS = (
    "*Decode*:*Prefill*:*Sections*:*Attention*:*Gemv*:*Linear*:*Norm*:*Qk*:*ByteCache*",
    "*Sampling*:*LogProbs*:*Swap*:*Runner*:*GraphSleep*:*SteadyState*:*BatchInvariance*",
    "*",
)
REHEARSED = ("ArgMaxTest.Small*", "BlocksTest.Small*")


def run(kit):
    program, seen, results = kit.path("tests", "cuda", "gpu_tests"), [], {}
    for number, group in enumerate(kit.pick(GROUPS, REHEARSED), 1):
        pattern = group + ("-" + ":".join(seen) if seen else "")
        seen.append(group)
        verdicts, status = gtest.run(kit, f"kernels.{number}", [program, f"--gtest_filter={pattern}"])
        results[number] = (verdicts, status)
    for number, (verdicts, status) in results.items():
        gtest.must_pass(verdicts, status, f"group {number}")

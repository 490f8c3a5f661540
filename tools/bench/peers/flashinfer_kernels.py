#!/usr/bin/env python3
"""flashinfer's paged attention at the shapes of gpu_bench's attention cases, in gpu_bench's columns.

Usage: flashinfer_kernels.py [--cases KERNELS.jsonl] [--json-lines FILE]
--cases: what `gpu_bench --parts=kernels --json-lines` wrote, as this writes too. The cases of its rows "paged attention, N x CONTEXT tokens, Q
new" are measured, or those of CASES without a file: bfloat16, 32 heads over 8 KV heads of 128, pages of 16 tokens.
Decode is measured with and without tensor cores, and the better one counts. Needs torch, flashinfer and a GPU; where
one is missing it says so and ends with exit code 77.
"""
import argparse
import importlib.util
import json
import re
import statistics
import sys
import time

SKIPPED = 77
HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 16
SCALE = 0.0884
WORKSPACE_BYTES = 256 << 20
COPY_BYTES, COPY_SAMPLES = 1 << 30, 9
NAME = re.compile(r"paged attention, (\d+) x (\d+) tokens, (\d+) new")
# (sequences, context, new tokens of each)
CASES = ((1, 1024, 1), (1, 32768, 1), (1, 131072, 1), (8, 4096, 1), (32, 4096, 1), (128, 1024, 1), (256, 512, 1),
         (1, 2048, 2048), (1, 16384, 2048), (4, 512, 512), (16, 1024, 128))


def name_of(case):
    return "paged attention, {} x {} tokens, {} new".format(*case)


def cases_of(path):
    """The attention cases of gpu_bench's lines, in its order."""
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    matches = [NAME.fullmatch(row["name"]) for row in rows if row["part"] == "kernels"]
    return [tuple(map(int, match.groups())) for match in matches if match]


def work_of(case):
    """(bytes moved at least, operations), as gpu_bench counts them."""
    sequences, context, query = case
    pairs = sequences * query * (context - (query - 1) / 2)
    return 2.0 * 2 * sequences * context * KV_HEADS * HEAD_DIM, 4.0 * pairs * HEADS * HEAD_DIM


def row_of(case, us, copy_gbps):
    moved, operations = work_of(case)
    gbps = moved / us * 1e-3
    return {"part": "kernels", "name": name_of(case), "us": us, "gbps": gbps, "of_copy": gbps / copy_gbps, "tflops": operations / us * 1e-6}


def mean_us(torch, repeats, run):
    """Microseconds of a run, the mean of several that are queued one after the other, after one to warm up."""
    run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats * 1e6


def copy_gbps(torch):
    """GB/s of copies on the device: bytes read plus bytes written."""
    source = torch.ones(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2e-3 * COPY_BYTES / statistics.median(mean_us(torch, 1, lambda: target.copy_(source)) for _ in range(COPY_SAMPLES))


def plans_of(torch, flashinfer, workspace, case, tables):
    """Wrappers that can run this case, to be used one at a time: they share the workspace."""
    sequences, _, query = case
    indptr, indices, last = tables
    shape = (HEADS, KV_HEADS, HEAD_DIM, PAGE)
    if query > 1:
        prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
        starts = torch.arange(0, (sequences + 1) * query, query, dtype=torch.int32, device="cuda")
        prefill.plan(starts, indptr, indices, last, *shape, causal=True, sm_scale=SCALE, q_data_type=torch.bfloat16)
        yield prefill
        return
    for tensor_cores in (False, True):
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=tensor_cores)
        decode.plan(indptr, indices, last, *shape, sm_scale=SCALE, q_data_type=torch.bfloat16, data_type=torch.bfloat16)
        yield decode


def measure(torch, flashinfer, workspace, case):
    """Microseconds of the best plan."""
    sequences, context, query = case
    pages = (context + PAGE - 1) // PAGE
    cache = torch.randn(1 + sequences * pages, 2, KV_HEADS, PAGE, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    q = torch.randn(sequences * query, HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    tables = (torch.arange(0, (sequences + 1) * pages, pages, dtype=torch.int32, device="cuda"),
              torch.arange(1, 1 + sequences * pages, dtype=torch.int32, device="cuda"),
              torch.full((sequences,), (context - 1) % PAGE + 1, dtype=torch.int32, device="cuda"))
    out = torch.empty_like(q)
    times = []
    for plan in plans_of(torch, flashinfer, workspace, case, tables):
        times.append(mean_us(torch, 50 if query == 1 else 20, lambda: plan.run(q, cache, out=out)))
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", metavar="KERNELS.jsonl")
    parser.add_argument("--json-lines", metavar="FILE")
    args = parser.parse_args()
    for module in ("torch", "flashinfer"):
        if importlib.util.find_spec(module) is None:
            print(f"skipped: {module} is not installed for {sys.executable}")
            sys.exit(SKIPPED)
    import torch
    if not torch.cuda.is_available():
        print("skipped: flashinfer needs a GPU, and torch sees none")
        sys.exit(SKIPPED)
    import flashinfer
    copy = copy_gbps(torch)
    print(f"flashinfer {flashinfer.__version__}, copy {copy:.0f} GB/s (read + write)\n")
    print(f"{'op':52} {'us':>10} {'GB/s':>10} {'of copy':>8} {'TFLOP/s':>10}")
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    lines = open(args.json_lines, "a", encoding="utf-8") if args.json_lines else None  # pylint: disable=consider-using-with
    for case in cases_of(args.cases) if args.cases else CASES:
        row = row_of(case, measure(torch, flashinfer, workspace, case), copy)
        print(f"{row['name']:52} {row['us']:10.1f} {row['gbps']:10.1f} {row['of_copy']:8.2f} {row['tflops']:10.1f}", flush=True)
        if lines:
            print(json.dumps(row), file=lines, flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""PyTorch's times of the ops that are named on standard input, as gpu_bench names them; a JSON line each.

matmul of the same shapes, with weights that alternate between copies that together exceed the L2 cache, and
scaled_dot_product_attention by FlashAttention-2 and by cuDNN over contiguous K and V with as many heads as ours, all in CUDA
graphs. Usage: torch_ops.py [--device cuda|cpu] [--heads N] [--kv-heads N] [--head-dim N] < NAMES
"""
import argparse
import json
import re
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

LINEAR = re.compile(r"linear \w+ \[(\d+), (\d+)\], (\d+) rows")
ATTENTION = re.compile(r"paged attention, (\d+) x (\d+) tokens, (\d+) new")
COPIES, REPEATS = 4, 40
CUDA_BACKENDS = {"FlashAttention-2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
CPU_BACKENDS = {"math": SDPBackend.MATH}


def time_us(call, device, repeats):
    """The time of one call(i); on a GPU all calls are in one graph."""
    if device == "cpu":
        began = time.perf_counter()
        call(0)
        return (time.perf_counter() - began) * 1e6
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(COPIES):
            call(i)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(repeats):
            call(i)
    graph.replay()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / repeats


def linear(found, args):
    n, k, rows = map(int, found.groups())
    x = torch.randn(rows, k, device=args.device, dtype=torch.bfloat16)
    weights = [torch.randn(n, k, device=args.device, dtype=torch.bfloat16) for _ in range(COPIES)]
    out = torch.empty(rows, n, device=args.device, dtype=torch.bfloat16)
    yield "matmul", lambda: time_us(lambda i: torch.matmul(x, weights[i % COPIES].t(), out=out), args.device, REPEATS)


def attention(found, args):
    seqs, context, new = map(int, found.groups())
    random = {"device": args.device, "dtype": torch.bfloat16}
    q = torch.randn(seqs, args.heads, new, args.head_dim, **random)
    k, v = (torch.randn(seqs, args.kv_heads, context, args.head_dim, **random) for _ in range(2))
    causal = 1 < new == context
    # New tokens behind older ones: a mask that FlashAttention-2 knows and cuDNN does not.
    mask = causal_lower_right(new, context) if 1 < new < context else None
    for name, backend in (CPU_BACKENDS if args.device == "cpu" else CUDA_BACKENDS).items():
        if mask is not None and name == "cuDNN":
            continue

        def call(_, backend=backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)
        yield name, lambda call=call: time_us(call, args.device, REPEATS // 2)


def peers(name, args):
    for pattern, make in ((LINEAR, linear), (ATTENTION, attention)):
        found = pattern.fullmatch(name)
        if found:
            yield from make(found, args)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    for flag, value in (("--heads", 32), ("--kv-heads", 8), ("--head-dim", 128)):
        parser.add_argument(flag, type=int, default=value)
    args = parser.parse_args()
    torch.manual_seed(0)
    with torch.inference_mode():
        for name in sys.stdin.read().splitlines():
            for peer, measure in peers(name, args):
                try:
                    line = {"name": name, "peer": peer, "us": measure()}
                except RuntimeError as error:  # a backend may refuse the shape; the other ops go on
                    line = {"name": name, "peer": peer, "error": str(error).splitlines()[0][:200]}
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

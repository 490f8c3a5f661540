#!/usr/bin/env python3
"""Measures how long running streams pause while the workers load an adapter: the longest time between two tokens.

Usage: adapter_pause.py MODEL [--rank 64] [--streams 4] [--loads 9] [--layers 30] [--hidden 576] [--heads 9] [--kv-heads 3]
         [--head-dim 64] [--intermediate 1536] [--json FILE] [-- SERVER FLAG ...]
Writes an adapter of random numbers in float32 for all seven linears; the sizes are SmolLM2-135M's. While greedy streams run, the
adapter is loaded under a new name and unloaded again, --loads times. Prints, in milliseconds, the longest gap of any stream within
each load, and within the second before the load, in which nothing was loaded: medians and ranges; and how long the loads took.
"""
import argparse
import http.client
import json
import os
import statistics
import tempfile
import threading
import time

import numpy as np
from speculation import Server

WARM_TOKENS, BETWEEN_S = 50, 1.5


def write_adapter(folder, args):
    """Returns the bytes of the matrices."""
    queries, keys = args.heads * args.head_dim, args.kv_heads * args.head_dim
    shapes = {"self_attn.q_proj": (args.hidden, queries), "self_attn.k_proj": (args.hidden, keys), "self_attn.v_proj": (args.hidden, keys),
              "self_attn.o_proj": (queries, args.hidden), "mlp.gate_proj": (args.hidden, args.intermediate),
              "mlp.up_proj": (args.hidden, args.intermediate), "mlp.down_proj": (args.intermediate, args.hidden)}
    numbers, header, data = np.random.default_rng(0), {}, []
    at = 0
    for layer in range(args.layers):
        for module, (inputs, outputs) in shapes.items():
            for part, shape in (("A", (args.rank, inputs)), ("B", (outputs, args.rank))):
                values = numbers.standard_normal(shape, dtype=np.float32) * np.float32(0.001)
                header[f"base_model.model.model.layers.{layer}.{module}.lora_{part}.weight"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [at, at + values.nbytes]}
                data.append(values.tobytes())
                at += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(data))
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump({"peft_type": "LORA", "r": args.rank, "lora_alpha": args.rank, "bias": "none",
                   "target_modules": [module.rsplit(".", 1)[1] for module in shapes]}, file)
    return at


class Stream(threading.Thread):
    """A greedy completion without end; `times` are those of its tokens. Begins another one where the context is full."""

    def __init__(self, port, number, ends):
        super().__init__(daemon=True)
        self.port, self.number, self.ends, self.times = port, number, ends, []

    def run(self):
        while not self.ends.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
            body = {"prompt": f"Story {self.number}:", "temperature": 0, "stream": True, "max_tokens": 1500, "ignore_eos": True}
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            for line in connection.getresponse():
                if line.startswith(b"data: {"):
                    self.times.append(time.monotonic())
                if self.ends.is_set():
                    break
            connection.close()


def longest_gap(streams, begin, end):
    """Milliseconds of the longest gap of which a part lies between the two times."""
    gaps = [after - before for stream in streams for before, after in zip(stream.times, stream.times[1:]) if after > begin and before < end]
    return 1e3 * max(gaps)


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read().decode()
    if response.status != 200:
        raise SystemExit(f"error: {path}: HTTP {response.status}: {text[:500]}")


def measure(server, folder, args):
    admin = json.loads(server.get("/server_info"))["admin_port"]
    ends = threading.Event()
    streams = [Stream(server.port, number, ends) for number in range(args.streams)]
    for stream in streams:
        stream.start()
    while min(len(stream.times) for stream in streams) < WARM_TOKENS:
        time.sleep(0.1)
    loads = []
    for number in range(args.loads):
        time.sleep(BETWEEN_S)
        begin = time.monotonic()
        post(admin, "/v1/load_lora_adapter", {"lora_name": f"adapter-{number}", "lora_path": folder})
        end = time.monotonic()
        time.sleep(BETWEEN_S)
        loads.append((begin, end))
        post(admin, "/v1/unload_lora_adapter", {"lora_name": f"adapter-{number}"})
    ends.set()
    for stream in streams:
        stream.join()
    return {"load_ms": [1e3 * (end - begin) for begin, end in loads],
            "gap_within_ms": [longest_gap(streams, begin, end) for begin, end in loads],
            "gap_before_ms": [longest_gap(streams, begin - 1, begin) for begin, end in loads]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    for name, value in (("rank", 64), ("streams", 4), ("loads", 9), ("layers", 30), ("hidden", 576), ("heads", 9), ("kv-heads", 3),
                        ("head-dim", 64), ("intermediate", 1536)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json")
    parser.add_argument("flags", nargs="*", metavar="-- SERVER FLAG", help="flags of somnus serve")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = write_adapter(folder, args)
        server = Server(args.model, ["--enable-lora", f"--max-lora-rank={args.rank}", *args.flags])
        try:
            found = measure(server, folder, args)
        finally:
            server.stop()
    print(f"an adapter of {size / 1e6:.0f} MB, {args.streams} streams, {args.loads} loads; ms: median (least..greatest)")
    for name, values in found.items():
        print(f"{name:14} {statistics.median(values):7.1f} ({min(values):.1f}..{max(values):.1f})")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Measures what serving costs over the in-process loop, and two workers over one, in turns on the same machine.

Usage: served_compare.py --model DIR_OR_GGUF [--rounds 7] [--concurrency 1,8]
Each round measures, per concurrency: decode_bench (in process, two threads), one worker with two threads, and two
workers with one thread each, both through HTTP with 64 tokens in and 128 out. It compares milliseconds per step:
decode_bench's mean and the clients' median gap between tokens (ITL). Samples during which the distance of the two cores
changed are dropped.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
import urllib.request

from free_port import free_port
from serve_ratios import far

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BIN = os.environ.get("SOMNUS_BIN", os.path.join(ROOT, "bazel-bin"))
SERVERS = {"one worker, two threads": (free_port(), ["--workers=local:1", "--threads-per-worker=2"]),
           "two workers, one thread": (free_port(), ["--workers=local:2", "--threads-per-worker=1"])}
IN_PROCESS = "in process"
INPUT, OUTPUT = 64, 128
START_S = 120


@contextlib.contextmanager
def serving(model, port, flags):
    server = subprocess.Popen([os.path.join(BIN, "tools", "somnus"), "serve", model, "--port", str(port), "--admin-port=0",
                               "--grpc-port=0", "--control-port=0", *flags], stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while not healthy(port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("error: the server did not start")
            time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait()


def healthy(port):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200
    except OSError:
        return False


def run_json(command, flag):
    """The JSON that `command` writes to the file that `flag` names."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([*command, f"{flag}={file.name}"], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        return json.load(file)


def in_process_step_ms(model, batch):
    # decode_bench and the server compute with quantized weights as stored.
    samples = run_json([os.path.join(BIN, "tools", "bench", "decode_bench"), f"--model={model}", f"--batches={batch}", "--threads=2", f"--prompt_tokens={INPUT}", f"--new_tokens={OUTPUT}",
                        "--prefill_tokens=0", "--rounds=1"], "--json")
    return next((sample["step_ms"][0] for sample in samples if sample["kind"] == "decode" and sample["step_ms"]), None)


def served_step_ms(port, concurrency):
    found = run_json([os.path.join(BIN, "tools", "bench", "serving_bench"), f"--base-url=http://127.0.0.1:{port}",
                      f"--concurrency={concurrency}", f"--num-requests={max(4, 2 * concurrency)}", f"--warmup={concurrency}",
                      f"--input-len={INPUT}", f"--output-len={OUTPUT}"], "--json")
    placement = far(found)
    return (found["result"]["itl_ms"]["median"] if placement is not None else None), placement


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f}, {len(values)})" if values else "none comparable"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--concurrency", default="1,8")
    args = parser.parse_args()
    one, two = SERVERS
    with contextlib.ExitStack() as stack:
        for port, flags in SERVERS.values():
            stack.enter_context(serving(args.model, port, flags))
        for concurrency in map(int, args.concurrency.split(",")):
            served, split, steps = [], [], {name: [] for name in (IN_PROCESS, one, two)}
            for _ in range(args.rounds):
                inside = in_process_step_ms(args.model, concurrency)
                first, first_far = served_step_ms(SERVERS[one][0], concurrency)
                second, second_far = served_step_ms(SERVERS[two][0], concurrency)
                for name, value in ((IN_PROCESS, inside), (one, first), (two, second)):
                    steps[name] += [value] if value else []
                if inside and first:
                    served.append(inside / first)
                if first and second and first_far == second_far:
                    split.append(first / second)
            for name, values in steps.items():
                print(f"concurrency {concurrency:2}  {name:24} ms per step  {spread(values)}")
            print(f"concurrency {concurrency:2}  served / in process                    {spread(served)}")
            print(f"concurrency {concurrency:2}  two workers / one worker               {spread(split)}", flush=True)


if __name__ == "__main__":
    main()

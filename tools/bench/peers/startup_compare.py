#!/usr/bin/env python3
"""Measures the times from exec to ready and to the first token: Somnus beside llama-server, in turns, with a warm page
cache.

Usage: startup_compare.py --model DIR_OR_GGUF [--llama-server BINARY [--gguf FILE]] [--rounds 9] [-- FLAGS OF somnus serve]
llama-server reads --gguf, or --model where that is a GGUF file. Both compute quantized weights as they are stored, so
that the time to be ready is that of loading the same bytes; with `-- --dequantize` Somnus expands them.
A server is ready when /health is 200, which is when its model is loaded. A start ends with the answer to a one-token
completion; both are asked for every few milliseconds until they come. The first round is not counted. Prints medians
and ranges in seconds, and ratios of the starts of a round.
"""
import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import time

from free_port import free_port

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BIN = os.environ.get("SOMNUS_BIN", os.path.join(ROOT, "bazel-bin"))
PORT = free_port()
POLL_S = 0.003
LIMIT_S = 120
# Method, path and body of what is asked until the answer is 200.
READY = ("GET", "/health", None)
FIRST_TOKEN = ("POST", "/v1/completions", json.dumps({"prompt": "Hello", "max_tokens": 1, "temperature": 0}))


def start(command):
    """Seconds from exec of `command` until it is ready and until its first token."""
    began = time.monotonic()
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return [wait_for(ask, server, began) for ask in (READY, FIRST_TOKEN)]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def wait_for(ask, server, began):
    """Seconds from `began` to the first answer to `ask` that is 200."""
    while not answers(*ask):
        if server.poll() is not None or time.monotonic() - began > LIMIT_S:
            raise SystemExit(f"error: {server.args[0]} did not serve")
        time.sleep(POLL_S)
    return time.monotonic() - began


def answers(method, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=LIMIT_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def commands_of(args):
    """{name: command of its server}."""
    commands = {"somnus": [os.path.join(BIN, "tools", "somnus"), "serve", args.model, "--port", str(PORT),
                           "--admin-port=0", "--grpc-port=0", "--control-port=0", *args.flags]}
    if args.llama_server:
        threads = str(len(os.sched_getaffinity(0)))
        commands["llama-server"] = [args.llama_server, "-m", args.gguf, "-t", threads, "--port", str(PORT), "--host",
                                    "127.0.0.1", "--no-webui"]
    return commands


def spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f}..{max(values):.3f})"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--llama-server")
    parser.add_argument("--gguf")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    if args.gguf is None and args.model.endswith(".gguf"):
        args.gguf = args.model
    if args.llama_server and args.gguf is None:
        parser.error("--llama-server: needs --gguf, as --model is no GGUF file")
    return args


def main():
    args = parse()
    commands = commands_of(args)
    times = {name: [] for name in commands}
    for counted in range(args.rounds + 1):
        for name, command in commands.items():
            seconds = start(command)
            if counted:
                times[name].append(seconds)
    for column, what in enumerate(("ready", "first token")):
        for name, starts in times.items():
            seconds = spread([both[column] for both in starts])
            print(f"{name:14} exec to {what:12} median {seconds} s, {len(starts)} starts")
        if len(times) == 2:
            ratios = [ours[column] / theirs[column] for ours, theirs in zip(*times.values())]
            print(f"{'ratio':14} exec to {what:12} median {spread(ratios)}, below 1 Somnus is faster")


if __name__ == "__main__":
    main()

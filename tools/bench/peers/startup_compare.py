#!/usr/bin/env python3
"""Measures the time from exec to the first token: Somnus beside llama-server, in turns, with a warm page cache.

Usage: startup_compare.py --model DIR_OR_GGUF [--llama-server BINARY --gguf FILE] [--rounds 9] [-- FLAGS OF somnus serve]
A start ends with the answer to a one-token completion, which is asked for every few milliseconds until it comes.
The first round is not counted. Prints medians and ranges in seconds.
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


def first_token(command):
    """Seconds from exec of `command` to its first token."""
    start = time.monotonic()
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            if answers():
                return time.monotonic() - start
            if server.poll() is not None or time.monotonic() - start > LIMIT_S:
                raise SystemExit(f"error: {command[0]} did not serve")
            time.sleep(POLL_S)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def answers():
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=LIMIT_S)
    try:
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hello", "max_tokens": 1, "temperature": 0}),
                           {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--llama-server")
    parser.add_argument("--gguf")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    commands = {"somnus": [os.path.join(BIN, "tools", "somnus"), "serve", args.model, "--port", str(PORT), "--admin-port=0",
                           "--grpc-port=0", "--control-port=0", *args.flags]}
    if args.llama_server:
        commands["llama-server"] = [args.llama_server, "-m", args.gguf, "-t", str(os.cpu_count()), "--port", str(PORT),
                                    "--host", "127.0.0.1", "--no-webui"]
    times = {name: [] for name in commands}
    for counted in range(args.rounds + 1):
        for name, command in commands.items():
            seconds = first_token(command)
            if counted:
                times[name].append(seconds)
    for name, values in times.items():
        print(f"{name:14} exec to first token: median {statistics.median(values):.3f} s ({min(values):.3f}..{max(values):.3f}), "
              f"{len(values)} starts")


if __name__ == "__main__":
    main()

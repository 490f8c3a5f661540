#!/usr/bin/env python3
"""Measures head-of-line blocking in a served engine: a prompt of 2 tokens that arrives behind six of 3,500.

Usage: head_of_line.py MODEL [--rounds 3] [--long-prompts 6] [--long-tokens 3500] [--json FILE] [-- SERVER FLAG ...]
Each round sends the long prompts twice, once alone and once with the short prompt right behind, in turns. Prints when the short
prompt got the first token, when the last long prompt did, the former's share of the latter, and how much later the long prompts
ended than alone. Every prompt asks for one token, and no two share a prefix.
"""
import argparse
import json
import os
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from speculation import Server  # noqa: E402

BEHIND_S = 0.2  # the long prompts have arrived, and none has ended


def prompt(seed, length):
    return [(7919 * (i + 1) * (seed + 3)) % 40000 + 100 for i in range(length)]


def send(server, tokens, seconds, index):
    """Stores how long the prompt's first token took."""
    begin = time.monotonic()
    server.tokens("/v1/completions", {"prompt": tokens, "max_tokens": 1, "temperature": 0, "return_token_ids": True})
    seconds[index] = time.monotonic() - begin


def run(server, args, seed, with_short):
    """(seconds of the short prompt or None, seconds until the last long prompt had its token)"""
    prompts = [prompt(seed + i, args.long_tokens) for i in range(args.long_prompts)]
    seconds = [0.0] * (len(prompts) + 1)
    threads = [threading.Thread(target=send, args=(server, tokens, seconds, i)) for i, tokens in enumerate(prompts)]
    for thread in threads:
        thread.start()
    if with_short:
        time.sleep(BEHIND_S)
        send(server, prompt(seed + len(prompts), 2), seconds, len(prompts))
    for thread in threads:
        thread.join()
    return seconds[-1] if with_short else None, max(seconds[:-1])


def measure(server, args):
    rows = []
    for attempt in range(args.rounds + 1):
        seed = 1000 * attempt
        turns = [(False, seed), (True, seed + 500)]
        results = {with_short: run(server, args, first, with_short) for with_short, first in (turns if attempt % 2 else turns[::-1])}
        if attempt == 0:
            continue  # the first round warms
        (short, long), (_, alone) = results[True], results[False]
        rows.append({"short_s": short, "long_s": long, "long_alone_s": alone, "share": short / long, "delay": long / alone})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("server_flags", nargs="*", metavar="SERVER FLAG")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long-prompts", type=int, default=6)
    parser.add_argument("--long-tokens", type=int, default=3500)
    parser.add_argument("--json", metavar="FILE", help="also write all numbers there")
    args = parser.parse_intermixed_args()
    server = Server(args.model, args.server_flags)
    try:
        rows = measure(server, args)
    finally:
        server.stop()
    for key, what in (("short_s", "the short prompt's first token, s"), ("long_s", "the last long prompt's, s"),
                      ("share", "share"), ("delay", "the long ones' time, of that alone")):
        values = sorted(row[key] for row in rows)
        print(f"{what}: {statistics.median(values):.3f} ({values[0]:.3f}..{values[-1]:.3f})")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Measures the time between two tokens of streams beside hostile grammars and tools, and of the same streams without, in turns.

Usage: hostile_pace.py MODEL [--rounds 7] [--streams 2] [--tokens 200] [--json FILE] [-- SERVER FLAG ...]
A turn asks --streams greedy streams of --tokens tokens. "alone" has nothing beside them; beside the streams of "forms" another
client sends grammars, schemas and tools that take as much as the bounds allow or are refused, one after the other, and beside
those of "plain" one that sends requests without any form, for one token each. Prints for each the median over the rounds, and
the range, of a turn's median, 99th percentile and largest gap in milliseconds, the ratios of the rounds to "alone", and how
many hostile requests were answered with which status. The first round warms the masks and is not counted.
"""
import argparse
import collections
import concurrent.futures
import http.client
import itertools
import json
import os
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from speculation import Server, spread  # noqa: E402

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TURNS = ("alone", "plain", "forms")
FIGURES = ("median", "p99", "largest")


def hostile():
    """(route, fields) of requests that are refused, or are served at the bounds."""
    wide = {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(100_000)}}
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": {}, "strict": True}} for i in range(100_000)]
    forms = ({"json": wide}, {"json": loop}, {"json": '{"items":' * 5_000 + "{}" + "}" * 5_000},
             {"json": {"enum": [f"value {i}" for i in range(3_000)]}}, {"regex": "(a{1,1000}){1,1000}"}, {"regex": "((a+)+)+" * 50},
             {"regex": "(" * 60_000 + ")" * 60_000}, {"grammar": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000},
             {"choice": ["x" * 500] * 9_000})
    return [(COMPLETIONS, {"prompt": "x", "structured_outputs": form}) for form in forms] + [
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "tools": tools})]


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def gaps(port, tokens):
    """Seconds between the events of one stream that carry tokens."""
    body = {"prompt": "The quick brown fox", "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True,
            "return_token_ids": True}
    connection, response = post(port, COMPLETIONS, body)
    if response.status != 200:
        raise SystemExit(f"error: HTTP {response.status}: {response.read().decode()[:500]}")
    times = []
    for line in response:
        if line.startswith(b"data: {"):
            choices = json.loads(line[6:])["choices"]
            if choices and choices[0].get("token_ids"):
                times.append(time.monotonic())
    connection.close()
    if len(times) < 2:
        raise SystemExit(f"error: a stream of {len(times)} events")
    return [later - earlier for earlier, later in zip(times, times[1:])]


def send_until(ended, port, requests, statuses):
    """Sends the requests one after the other, over and over; counts the answers' statuses."""
    for path, fields in itertools.cycle(requests):
        if ended.is_set():
            return
        connection, response = post(port, path, {"max_tokens": 1, **fields})
        response.read()
        connection.close()
        statuses[response.status] += 1


def figures(found):
    found = sorted(found)
    return {"median": statistics.median(found), "p99": found[min(len(found) - 1, len(found) * 99 // 100)], "largest": found[-1]}


def turn(port, name, args, statuses):
    beside = {"alone": [], "plain": [(COMPLETIONS, {"prompt": "x"})], "forms": hostile()}[name]
    ended = threading.Event()
    sender = threading.Thread(target=send_until, args=(ended, port, beside, statuses))
    if beside:
        sender.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(args.streams) as pool:
            found = list(pool.map(lambda _: gaps(port, args.tokens), range(args.streams)))
    finally:
        ended.set()
        if beside:
            sender.join()
    return figures(list(itertools.chain.from_iterable(found)))


def measure(port, args):
    """The rounds' figures by turn, and the statuses of the hostile requests."""
    rounds, statuses = [], collections.Counter()
    for number in range(args.rounds + 1):
        order = TURNS if number % 2 else TURNS[::-1]
        counted = statuses if number else collections.Counter()
        found = {name: turn(port, name, args, counted if name == "forms" else collections.Counter()) for name in order}
        if number:
            rounds.append(found)
            print(f"round {number}: measured", file=sys.stderr)
    return rounds, statuses


def report(rounds, statuses):
    for name in TURNS:
        for figure in FIGURES:
            values = [1000 * found[name][figure] for found in rounds]
            line = f"{name}, {figure}: {statistics.median(values):.2f} ms ({min(values):.2f} to {max(values):.2f})"
            if name != "alone":
                line += "; ratio " + spread([found[name][figure] / found["alone"][figure] for found in rounds])
            print(line)
    print("hostile requests: " + ", ".join(f"{count} of status {status}" for status, count in sorted(statuses.items())))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--json")
    parser.add_argument("flags", nargs="*", help="flags of our server, after --")
    args = parser.parse_args()
    server = Server(args.model, args.flags)
    try:
        rounds, statuses = measure(server.port, args)
    finally:
        server.stop()
    report(rounds, statuses)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"model": args.model, "streams": args.streams, "tokens": args.tokens, "rounds": rounds,
                       "statuses": statuses}, file)


if __name__ == "__main__":
    main()

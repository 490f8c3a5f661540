#!/usr/bin/env python3
"""Measures the time between two tokens (TPOT) under a grammar's mask beside the time without one, and the first use of a large
schema, from our server and, where it is named, from vLLM's with the same weights, in turns.

Usage: mask_cost.py MODEL [--vllm BINARY --hf DIR] [--rounds 7] [--concurrency 1,8] [--tokens 192]
         [--json FILE] [-- SERVER FLAG ...]
Each round asks --concurrency equal greedy streams of --tokens tokens for each form: "none"; "regex", a pattern that takes
any words; "schema", an array of objects. A round's figure is the median over the streams of the time from the first to
the last event, divided by the tokens between. The first round warms the masks and is not counted. Prints medians and
ranges in milliseconds, and the ratios of the rounds to "none".
"first use" is the time of a request for one token with grammar_bench's schema of 10 kB, whose names are new in each round, minus
that of the same request without a schema.
"""
import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request

from speculation import BIN, Server, spread  # which puts peers/ into the path
from vllm_server import VllmServer

ITEM = {"type": "object", "properties": {"name": {"type": "string"}, "city": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "city", "age"], "additionalProperties": False}
FORMS = {
    "none": {},
    "regex": {"structured_outputs": {"regex": "([A-Za-z]+[ ,.])+"}},
    "schema": {"response_format": {"type": "json_schema",
                                   "json_schema": {"name": "people", "schema": {"type": "array", "items": ITEM, "minItems": 1000}}}},
}


def stream(port, body):
    """Seconds from one token to the next, on average, of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"error: HTTP {response.status}: {response.read().decode()[:500]}")
    first = last = None
    tokens = 0
    for line in response:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if event["choices"] and event["choices"][0].get("token_ids"):
                last = time.monotonic()
                if first is None:
                    first = last
                else:
                    tokens += len(event["choices"][0]["token_ids"])
    connection.close()
    if tokens < body["max_tokens"] // 2:
        raise SystemExit(f"error: only {tokens} tokens of {body['max_tokens']}")
    return (last - first) / tokens


def measure(server, form, concurrency, args):
    body = {"messages": [{"role": "user", "content": "Tell me about the people of a village."}], "temperature": 0, "stream": True,
            "max_tokens": args.tokens, "ignore_eos": form == "none", "return_token_ids": True, **FORMS[form]}
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        return statistics.median(pool.map(lambda _: stream(server.port, body), range(concurrency)))


def large_schema(model):
    """The text of grammar_bench's schema of 10 kB."""
    command = [os.path.join(BIN, "tools", "bench", "grammar_bench"), f"--model={model}", "--cases"]
    cases = json.loads(subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout)["cases"]
    return max((case["asked"] for case in cases), key=len)


def renamed(value, number):
    """A schema with other names and constants, so that no server has seen its objects before."""
    if isinstance(value, list):
        return [renamed(item, number) for item in value]
    if not isinstance(value, dict):
        return value
    value = {key: renamed(member, number) for key, member in value.items()}
    if "properties" in value:
        value["properties"] = {f"{name}{number}": member for name, member in value["properties"].items()}
    for key in {"required", "enum"} & value.keys():
        value[key] = [f"{text}{number}" for text in value[key]]
    if "const" in value:
        value["const"] = f"{value['const']}{number}"
    return value


def answer_time(server, schema):
    """Seconds of a request for one token."""
    body = {"messages": [{"role": "user", "content": "Tell me about the people of a village."}], "temperature": 0, "max_tokens": 1}
    if schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "records", "schema": schema}}
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    start = time.monotonic()
    with urllib.request.urlopen(request, timeout=300) as response:
        response.read()
    return time.monotonic() - start


def measure_round(server, number, schema, args):
    """The figures by title, the forms in an order that alternates."""
    found = {}
    for concurrency in args.concurrency:
        for form in sorted(FORMS, reverse=number % 2 == 1):
            found[title(concurrency, form)] = measure(server, form, concurrency, args)
    plain = answer_time(server, None)
    found["first use"] = answer_time(server, renamed(schema, number)) - plain
    return found


def title(concurrency, form):
    return f"concurrency {concurrency}, {form}"


def line_of(name, what, rounds, plain=None):
    """`plain`: the figure that is the one of the ratios."""
    figures = [found[what] for found in rounds]
    middle, least, greatest = (1000 * of(figures) for of in (statistics.median, min, max))
    line = f"{name}, {what}: {middle:.2f} ms ({least:.2f} to {greatest:.2f})"
    return line + "; ratio " + spread([found[what] / found[plain] for found in rounds]) if plain else line


def report(name, rounds, args):
    for concurrency in args.concurrency:
        for form in FORMS:
            print(line_of(name, title(concurrency, form), rounds, title(concurrency, "none") if form != "none" else None))
    print(line_of(name, "first use", rounds))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--vllm", metavar="BINARY")
    parser.add_argument("--hf", metavar="DIR", help="the model that vLLM serves")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--concurrency", type=lambda text: list(map(int, text.split(","))), default=[1])
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--json")
    parser.add_argument("flags", nargs="*", help="flags of our server, after --")
    args = parser.parse_args()
    if bool(args.vllm) != bool(args.hf):
        parser.error("--vllm and --hf go together")
    schema = json.loads(large_schema(args.model))
    rounds = {}
    with contextlib.ExitStack() as stack:
        servers = {"somnus": Server(args.model, args.flags)}
        stack.callback(servers["somnus"].stop)
        if args.vllm:
            servers["vllm"] = VllmServer(args.vllm, args.hf)
            stack.callback(servers["vllm"].stop)
        for number in range(args.rounds + 1):
            for name in sorted(servers, reverse=number % 2 == 1):
                found = measure_round(servers[name], number, schema, args)
                if number:
                    rounds.setdefault(name, []).append(found)
                    print(f"round {number}, {name}: measured", file=sys.stderr)
    for name, found in sorted(rounds.items()):
        report(name, found, args)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"model": args.model, "tokens": args.tokens, "seconds": rounds}, file)


if __name__ == "__main__":
    main()

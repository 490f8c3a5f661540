#!/usr/bin/env python3
"""Measures the time between two tokens (TPOT) under a grammar's mask beside the time without one, from one server, in turns.

Usage: mask_cost.py MODEL [--rounds 7] [--concurrency 1] [--tokens 192] [--json FILE] [-- SERVER FLAG ...]
Each round asks --concurrency equal greedy streams of --tokens tokens for each form: "none"; "regex", a pattern that takes
any words; "schema", an array of objects. A round's figure is the median over the streams of the time from the first to
the last event, divided by the tokens between. The first round warms the masks and is not counted. Prints medians and
ranges in milliseconds, and the ratios of the rounds to "none".
"""
import argparse
import concurrent.futures
import http.client
import json
import statistics
import time

from speculation import Server, spread

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


def measure(server, form, args):
    body = {"messages": [{"role": "user", "content": "Tell me about the people of a village."}], "temperature": 0, "stream": True,
            "max_tokens": args.tokens, "ignore_eos": form == "none", "return_token_ids": True, **FORMS[form]}
    with concurrent.futures.ThreadPoolExecutor(args.concurrency) as pool:
        return statistics.median(pool.map(lambda _: stream(server.port, body), range(args.concurrency)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--json")
    parser.add_argument("flags", nargs="*", help="flags of the server, after --")
    args = parser.parse_args()
    server = Server(args.model, args.flags)
    seconds = {form: [] for form in FORMS}
    try:
        for attempt in range(args.rounds + 1):
            for form in sorted(FORMS, reverse=attempt % 2 == 1):
                figure = measure(server, form, args)
                if attempt:
                    seconds[form].append(figure)
    finally:
        server.stop()
    for form, figures in seconds.items():
        line = f"{form}: {1000 * statistics.median(figures):.2f} ms ({1000 * min(figures):.2f} to {1000 * max(figures):.2f})"
        if form != "none":
            line += "; ratio " + spread([one / plain for one, plain in zip(figures, seconds["none"])])
        print(line)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"model": args.model, "concurrency": args.concurrency, "tokens": args.tokens, "seconds": seconds}, file)


if __name__ == "__main__":
    main()

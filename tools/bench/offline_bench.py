#!/usr/bin/env python3
"""The cost of the offline engine beside plain HTTP: many short prompts of a model, three ways, in turns, on one engine.

  llm     LLM.generate(), outputs and all
  bodies  the same bodies of several prompts as LLM sends, by plain HTTP connections, whose replies are parsed as JSON alone
  single  a request for each prompt, as a client does that knows nothing of batches

Prints a line for each way: the least, the median and the most seconds of the rounds. The engine computes in all of them; with a
model of a few kilobytes what remains is mostly the way. Usage: tools/bench/offline_bench.py MODEL [--prompts N] [--rounds N] [--ways NAME,NAME]
"""
import argparse
import http.client
import json
import os
import queue
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "clients", "python"))

from somnus import LLM, SamplingParams, batches  # noqa: E402 pylint: disable=wrong-import-position

NUM_TOKENS = 4
FIELDS = {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def send(engine, bodies, threads):
    """Sends the bodies over so many connections, and returns the number of choices."""
    waiting, counts = queue.SimpleQueue(), []
    for body in bodies:
        waiting.put(body)

    def work():
        connection = http.client.HTTPConnection("127.0.0.1", engine.port)
        headers = {"Authorization": f"Bearer {engine.key}", "Content-Type": "application/json"}
        while True:
            try:
                body = waiting.get_nowait()
            except queue.Empty:
                break
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            counts.append(len(json.loads(connection.getresponse().read())["choices"]))
        connection.close()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", default="llm,bodies,single")
    args = parser.parse_args()
    prompts = [[3 + number % 60, 5 + number % 7, 9, 11] for number in range(args.prompts)]
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
    size = batches.MOST_SEQUENCES
    with LLM(args.model, kv_cache_memory_bytes="64MiB") as llm:
        engine = llm._process  # pylint: disable=protected-access
        ways = {
            "llm": lambda: len(llm.generate(prompts, params, use_tqdm=False)),
            "bodies": lambda: send(engine, [{"prompt": prompts[at:at + size], **FIELDS} for at in range(0, len(prompts), size)],
                                   batches.REQUESTS_AT_ONCE),
            "single": lambda: send(engine, [{"prompt": one, **FIELDS} for one in prompts], 64),
        }
        seconds = {name: [] for name in args.ways.split(",")}
        for _ in range(args.rounds):
            for name in seconds:
                begun = time.monotonic()
                assert ways[name]() == args.prompts
                seconds[name].append(time.monotonic() - begun)
    for name, one in seconds.items():
        print(f"{name:8} {min(one):.2f} {statistics.median(one):.2f} {max(one):.2f} s")


if __name__ == "__main__":
    main()

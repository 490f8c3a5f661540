#!/usr/bin/env python3
"""Measures the steps of a running engine from outside, for `simulator --fit`.

Each line of the output is a kind of step: how many tokens of prompts it computes, how many sequences decode, how many
tokens of the KV cache it reads, and its seconds. Prefill: the time to the only token of one prompt, less --overhead-ms,
which a request takes outside of the engine. Decode: the time of --window tokens of a stream, while N streams decode.
The fastest of all repeats counts: other work on the machine only adds. Nothing else may use the engine meanwhile, and
its --max-num-batched-tokens has to be at least the longest prompt.

Usage: tools/simulator/measure_steps.py --base-url http://127.0.0.1:8000 --model NAME > steps.jsonl
"""
import argparse
import http.client
import json
import threading
import time
import urllib.parse


def stream(base_url, model, prompt, num_tokens, times):
    """Appends the time of each token's event to `times`."""
    url = urllib.parse.urlparse(base_url)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
    body = {"model": model, "prompt": prompt, "max_tokens": num_tokens, "min_tokens": num_tokens, "ignore_eos": True,
            "temperature": 0, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(response.read().decode())
    for line in response:
        if line.startswith(b"data: {"):
            times.append(time.monotonic())
    connection.close()


def distinct_prompt(seed, length):
    """Token ids that no earlier prompt begins with, so that the prefix cache has nothing of them."""
    return [1000 + seed % 7919] + [100 + (seed * 31 + i * 17) % 4000 for i in range(length - 1)]


def measure_prefill(args, length, seed):
    """The least seconds from the request to its only token."""
    seconds = []
    for repeat in range(args.repeats):
        times = []
        begin = time.monotonic()
        stream(args.base_url, args.model, distinct_prompt(seed + repeat, length), 1, times)
        seconds.append(times[0] - begin - args.overhead_ms / 1e3)
    return min(seconds)


def decode_windows(args, streams, length, seed):
    """(seconds of a step, context) for every window of every stream, while all streams decode."""
    times = [[] for _ in range(streams)]
    threads = [threading.Thread(target=stream, args=(args.base_url, args.model, distinct_prompt(seed + i, length),
                                                     args.decode_tokens, times[i])) for i in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begin, end = max(t[0] for t in times), min(t[-1] for t in times)
    for arrivals in times:
        for first in range(len(arrivals) - args.window):
            last = first + args.window
            if arrivals[first] >= begin and arrivals[last] <= end:
                yield (arrivals[last] - arrivals[first]) / args.window, length + first + args.window / 2


def measure_decode(args, streams, length, seed):
    windows = []
    for repeat in range(args.repeats):
        windows += decode_windows(args, streams, length, seed + 100 * repeat)
    if not windows:
        raise RuntimeError("the streams do not overlap: take more --decode-tokens")
    return min(windows)


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", default="16,64,128,256,512", help="lengths of prompts that one step computes")
    parser.add_argument("--streams", default="1,2,4,8,16,32", help="sequences that decode at once")
    parser.add_argument("--contexts", default="32,512", help="prompt lengths of these")
    parser.add_argument("--decode-tokens", type=int, default=64)
    parser.add_argument("--window", type=int, default=8, help="tokens; a pause between two says nothing of one step")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--overhead-ms", type=float, default=1.0, help="of a request outside of the engine")
    args = parser.parse_args()
    seed = int(time.time()) % 100000 * 100
    stream(args.base_url, args.model, distinct_prompt(seed, 64), 8, [])  # warm
    for length in numbers(args.prompts):
        seed += 1000
        seconds = measure_prefill(args, length, seed)
        print(json.dumps({"prefill_tokens": length, "decode_sequences": 0, "kv_tokens": length, "seconds": seconds}),
              flush=True)
    for length in numbers(args.contexts):
        for streams in numbers(args.streams):
            seed += 1000
            seconds, context = measure_decode(args, streams, length, seed)
            print(json.dumps({"prefill_tokens": 0, "decode_sequences": streams, "kv_tokens": round(streams * context),
                              "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()

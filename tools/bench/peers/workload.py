#!/usr/bin/env python3
"""Makes the requests of nano-vllm's bench.py: 256 of 100 to 1024 random tokens in and out, seed 0.

That is 142,827 prompt tokens and 133,966 output tokens in all.

Usage: workload.py --out FILE [--num-requests N] [--input-len LOW-HIGH] [--output-len LOW-HIGH] [--highest-id ID] [--seed N]
Writes one JSON object a line, {"prompt_token_ids": [...], "output_len": N}: what `serving_bench --dataset FILE --in-order`
sends, and what peers in Python get from requests(). The lengths and ids are those that bench.py draws, in its order.
"""
import argparse
import json
import random

COUNT, LOW, HIGH, HIGHEST_ID = 256, 100, 1024, 10000
TEMPERATURE = 0.6


def requests(count=COUNT, input_len=(LOW, HIGH), output_len=(LOW, HIGH), highest_id=HIGHEST_ID, seed=0):
    """[(prompt's token ids, tokens to generate)]."""
    draw = random.Random(seed).randint
    prompts = []
    for _ in range(count):
        length = draw(*input_len)
        prompts.append([draw(0, highest_id) for _ in range(length)])
    return [(prompt, draw(*output_len)) for prompt in prompts]


def length_range(text):
    """(LOW, HIGH) of "LOW-HIGH" or "N"."""
    low, _, high = text.partition("-")
    try:
        bounds = (int(low), int(high or low))
    except ValueError:
        bounds = (0, 0)
    if not 1 <= bounds[0] <= bounds[1]:
        raise argparse.ArgumentTypeError(f"N or LOW-HIGH is wanted, not '{text}'")
    return bounds


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a number above 0 is wanted, not '{text}'")
    return int(text)


def add_arguments(parser):
    parser.add_argument("--num-requests", type=positive, default=COUNT, metavar="N")
    parser.add_argument("--input-len", type=length_range, default=(LOW, HIGH), metavar="LOW-HIGH")
    parser.add_argument("--output-len", type=length_range, default=(LOW, HIGH), metavar="LOW-HIGH")
    parser.add_argument("--highest-id", type=positive, default=HIGHEST_ID, metavar="ID", help="of the random token ids")
    parser.add_argument("--seed", type=int, default=0, metavar="N")


def from_arguments(args):
    return requests(args.num_requests, args.input_len, args.output_len, args.highest_id, args.seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, metavar="FILE")
    add_arguments(parser)
    args = parser.parse_args()
    wanted = from_arguments(args)
    with open(args.out, "w", encoding="utf-8") as file:
        for prompt, output_len in wanted:
            file.write(json.dumps({"prompt_token_ids": prompt, "output_len": output_len}) + "\n")
    print(f"{len(wanted)} requests, {sum(len(prompt) for prompt, _ in wanted)} prompt tokens, "
          f"{sum(output_len for _, output_len in wanted)} output tokens")


if __name__ == "__main__":
    main()

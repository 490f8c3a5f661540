#!/usr/bin/env python3
"""Samples texts under many schemas from SmolLM2 at temperature 1, and validates the texts with the package jsonschema.

The schemas are those of tests/data/schema_corpus.jsonl and of the official test suite (Debian: json-schema-test-suite).
A text that ends by itself must be valid. A text that --max-tokens cuts must be the beginning of JSON by a parser of
beginnings (jiter), and where the same seed with --longer tokens ends, that text must begin with the cut one and be valid.
tests/clients/run.sh samples [OPTIONS] makes the Python environment (jsonschema with its formats, jiter) and runs this.
"""
import argparse
import collections
import concurrent.futures
import itertools
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]

from cluster.harness import SMOLLM2, Cluster  # noqa: E402  (the path is set above)
from judge_schemas import corpus, suite  # noqa: E402

QUESTIONS = ("Answer in JSON.", "Give an example of the data.", "Fill in the form with the data of a person in Berlin.",
             "Write a short entry.", "Make something up, be brief.")


def draft_of(schema):
    import jsonschema
    return jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)


def complaint(schema, text):
    """Why the text is no valid instance, or None."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    validator = draft_of(schema)
    error = next(validator(schema, format_checker=validator.FORMAT_CHECKER).iter_errors(value), None)
    return error and f"{error.json_path}: {error.message[:200]}"


def begins_json(text):
    import jiter
    try:
        jiter.from_json(text.encode(), partial_mode="trailing-strings")
    except ValueError as error:
        return "EOF while parsing" in str(error)  # a literal or a number that is cut, or nothing yet
    return True


class Sampler:
    def __init__(self, cluster, max_tokens, longer):
        self.cluster, self.max_tokens, self.longer = cluster, max_tokens, longer
        self.counts, self.faults, self.refused = collections.Counter(), [], set()

    def text(self, schema, seed, max_tokens):
        """(text, finish_reason), or (refusal, None)."""
        body = {"messages": [{"role": "user", "content": QUESTIONS[seed % len(QUESTIONS)]}], "temperature": 1, "seed": seed,
                "max_tokens": max_tokens,
                "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
        reply = self.cluster.request("POST", "/v1/chat/completions", body, timeout=600)
        if reply.status == 400 and reply.json["error"]["code"] == "unsupported_schema":
            return reply.json["error"]["message"], None
        if reply.status != 200:
            raise AssertionError(f"HTTP {reply.status}: {reply.text[:500]}")
        choice = reply.json["choices"][0]
        return choice["message"]["content"] or "", choice["finish_reason"]

    def judge(self, name, schema, seed):
        """One sample: counts the verdict, and keeps wrong texts."""
        if name in self.refused:
            return
        try:
            text, reason = self.text(schema, seed, self.max_tokens)
            if reason is None:
                self.refused.add(name)
                return
            verdict, fault = self.of_whole(schema, text) if reason == "stop" else self.of_cut(schema, seed, text)
        except Exception as error:
            text, verdict, fault = "", "failed", repr(error)
        self.counts["samples"] += 1
        self.counts[verdict] += 1
        if fault:
            self.faults.append((name, seed, verdict, fault, text))

    def of_whole(self, schema, text):
        fault = complaint(schema, text)
        return "ended, INVALID" if fault else "ended, valid", fault

    def of_cut(self, schema, seed, text):
        if not begins_json(text):
            return "cut, NO BEGINNING OF JSON", "no beginning of JSON"
        longer, reason = self.text(schema, seed, self.longer)
        if not longer.startswith(text):
            return "cut, OTHER TEXT WITH MORE TOKENS", f"with more tokens: {longer[:200]}"
        if reason != "stop":
            return "cut twice, beginning of JSON", None if begins_json(longer) else f"no beginning of JSON: {longer}"
        fault = complaint(schema, longer)
        return "cut, INVALID WITH MORE TOKENS" if fault else "cut, valid with more tokens", fault


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=60, help="no sample begins later")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--longer", type=int, default=480)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    schemas = [(f"{number}: {name}", schema) for number, (name, schema, _) in enumerate(itertools.chain(corpus(), suite()))]
    begun = time.monotonic()
    with Cluster(SMOLLM2, workers=args.workers) as cluster:
        sampler = Sampler(cluster, args.max_tokens, args.longer)

        def sample(seed):
            if time.monotonic() - begun < 60 * args.minutes and sampler.counts["samples"] < args.samples:
                sampler.judge(*schemas[seed % len(schemas)], seed)

        with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
            list(pool.map(sample, range(4 * args.samples)))  # some schemas are refused
    for name, seed, verdict, fault, text in sampler.faults:
        print(f"{verdict}: {name}, seed {seed}: {fault}\n  {text[:500]!r}")
    print(f"{len(schemas)} schemas, {len(sampler.refused)} refused as unsupported, {time.monotonic() - begun:.0f} s")
    for verdict, count in sorted(sampler.counts.items()):
        print(f"{verdict}: {count}")
    sys.exit(1 if sampler.faults or not sampler.counts["samples"] else 0)


if __name__ == "__main__":
    main()

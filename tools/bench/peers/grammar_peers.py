#!/usr/bin/env python3
"""Measures grammars and masks of ours beside the wheels of xgrammar and llguidance: the same schemas, vocabulary and tokens.

Usage: grammar_peers.py MODEL_DIRECTORY [--rounds 5] [--engines somnus,xgrammar,llguidance] [--json FILE]
MODEL_DIRECTORY has config.json and tokenizer.json. The grammars are those of grammar_bench, which measures ours; the wheels are
called from this process (Python packages: llguidance, numpy, and for xgrammar its own, with torch and transformers). Each round
asks every engine in turn, and the turns alternate.

Times are of the processor, for the thread that computes. "first use": from the client's schema to the first mask, for a compiler
that has seen no grammar before. "first text": the masks of the first sequence. "later": the masks of sequences that find what the
earlier ones left: for ours all masks made ahead, for xgrammar the compiled grammar, for llguidance the matcher that has walked the
text before and was reset. A cell is the median of the rounds. The wheels are asked as vLLM asks them: xgrammar with any white space
and in its strict mode, llguidance with flexible white space. An engine that refuses the text has no times, but the refused token.
A call of a wheel costs time in Python, too, which is measured with a call that does nothing and printed. Without an engine's
packages the script says so in one line and ends with exit code 77.
"""
import argparse
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BIN = os.environ.get("SOMNUS_BIN", os.path.join(ROOT, "bazel-bin"))
SKIPPED = 77
LATER_TEXTS = 10  # as grammar_bench
IDLE_CALLS = 20000


def now_us():
    return time.thread_time_ns() / 1000


def summary(times):
    """As grammar_bench writes it."""
    times = sorted(times)
    return {"calls": len(times), "average_us": sum(times) / len(times), "p50_us": times[len(times) // 2],
            "p99_us": times[len(times) * 99 // 100], "max_us": times[-1]}


def run_grammar_bench(model, *flags):
    command = [os.path.join(BIN, "tools", "bench", "grammar_bench"), f"--model={model}", *flags]
    return json.loads(subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout)


class Refused(Exception):
    """An engine does not take a grammar or a text of the benchmark."""


class Somnus:
    def __init__(self, model, cases):
        self.model = model

    def measure(self):
        """The figures by the case's name."""
        return {one["name"]: one for one in run_grammar_bench(self.model, "--json")["grammars"]}


class Wheel:
    """What the wheels share. An engine has: prepare(case), the grammar that is asked for; matcher(grammar), a matcher at the start;
    fill(matcher), accept(matcher, token), complete(matcher), idle(matcher), and a mask in `mask`."""

    def __init__(self, model, cases):
        self.cases = cases

    def walk(self, matcher, tokens):
        """(times of the masks, times of going on); Refused: the engine does not allow a token."""
        fill, accept, masks, accepts = self.fill, self.accept, [], []
        for token in tokens:
            start = now_us()
            fill(matcher)
            filled = now_us()
            accepted = accept(matcher, token)
            end = now_us()
            masks.append(filled - start)
            accepts.append(end - filled)
            if not accepted or not int(self.mask[0][token // 32]) >> token % 32 & 1:
                raise Refused(f"token {len(masks)} of {len(tokens)}, {token}")
        if not self.complete(matcher):
            raise Refused("the end of the text")
        return masks, accepts

    def measure_case(self, case):
        start = now_us()
        grammar = self.prepare(case)
        matcher = self.matcher(grammar)
        compiled = now_us() - start
        first, _ = self.walk(matcher, case["tokens"])
        later, accepts = [], []
        for _ in range(LATER_TEXTS):
            matcher = self.matcher(grammar)
            more, more_accepts = self.walk(matcher, case["tokens"])
            later += more
            accepts += more_accepts
        start = now_us()
        for _ in range(IDLE_CALLS):
            self.idle(matcher)
        idle = (now_us() - start) / IDLE_CALLS
        return {"name": case["name"], "compile_us": compiled, "first_use_us": compiled + first[0], "first": summary(first),
                "prepared": summary(later), "accept": summary(accepts), "idle_call_us": idle}

    def measure(self):
        found = {}
        for case in self.cases["cases"]:
            gc.collect()
            gc.disable()
            try:
                found[case["name"]] = self.measure_case(case)
            except Refused as refusal:
                found[case["name"]] = {"name": case["name"], "refused": str(refusal)}
            finally:
                gc.enable()
        return found


def llguidance_tokenizer(model, cases):
    import llguidance
    return llguidance.LLTokenizer(os.path.join(model, "tokenizer.json"), n_vocab=cases["vocabulary"],
                                  eos_token=cases["end_tokens"][0])


class Xgrammar(Wheel):
    def __init__(self, model, cases):
        super().__init__(model, cases)
        import numpy
        import xgrammar
        self.xgrammar = xgrammar
        tokenizer = llguidance_tokenizer(model, cases)
        tokens = [b"" if tokenizer.is_special_token(id) else tokenizer.decode_bytes([id]) for id in range(cases["vocabulary"])]
        self.info = xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, vocab_size=cases["vocabulary"],
                                           stop_token_ids=cases["end_tokens"])
        self.mask = numpy.zeros((1, (cases["vocabulary"] + 31) // 32), dtype=numpy.int32)

    def measure_case(self, case):
        self.compiler = self.xgrammar.GrammarCompiler(self.info, max_threads=1)
        return super().measure_case(case)

    def prepare(self, case):
        if case["kind"] == "regex":
            return self.compiler.compile_regex(case["asked"])
        schema = case["asked"] if case["kind"] == "json_schema" else '{"type": "object"}'
        return self.compiler.compile_json_schema(schema, any_whitespace=True)

    def matcher(self, grammar):
        return self.xgrammar.GrammarMatcher(grammar)

    def fill(self, matcher):
        matcher.fill_next_token_bitmask(self.mask)

    def accept(self, matcher, token):
        return matcher.accept_token(token)

    def complete(self, matcher):
        return matcher.is_completed()

    def idle(self, matcher):
        matcher.is_terminated()


class Llguidance(Wheel):
    def __init__(self, model, cases):
        super().__init__(model, cases)
        import llguidance
        import numpy
        self.llguidance = llguidance
        self.tokenizer = llguidance_tokenizer(model, cases)
        self.mask = numpy.zeros((1, (cases["vocabulary"] + 31) // 32), dtype=numpy.int32)
        self.address, self.bytes = self.mask.ctypes.data, self.mask.nbytes

    def prepare(self, case):
        make = self.llguidance.LLMatcher
        if case["kind"] == "regex":
            grammar = make.grammar_from_regex(case["asked"])
        else:
            schema = case["asked"] if case["kind"] == "json_schema" else '{"type": "object"}'
            grammar = make.grammar_from_json_schema(schema, defaults={"whitespace_flexible": True})
        matcher = make(self.tokenizer, grammar)
        if matcher.is_error():
            raise Refused(matcher.get_error())
        return matcher

    def matcher(self, grammar):
        grammar.reset()
        return grammar

    def fill(self, matcher):
        matcher.unsafe_compute_mask_ptr(self.address, self.bytes)

    def accept(self, matcher, token):
        return matcher.consume_token(token)

    def complete(self, matcher):
        return matcher.is_accepting()

    def idle(self, matcher):
        matcher.is_stopped()


ENGINES = {"somnus": Somnus, "xgrammar": Xgrammar, "llguidance": Llguidance}
PACKAGES = {"somnus": (), "xgrammar": ("torch", "transformers", "numpy", "llguidance", "xgrammar"),
            "llguidance": ("numpy", "llguidance")}
# For each row of the table: its title, where its figure stands, and the divisor of the figure.
COLUMNS = (("first use, ms", ("first_use_us",), 1000), ("first text, average", ("first", "average_us"), 1),
           ("largest", ("first", "max_us"), 1), ("later, average", ("prepared", "average_us"), 1),
           ("median", ("prepared", "p50_us"), 1), ("p99", ("prepared", "p99_us"), 1), ("largest", ("prepared", "max_us"), 1),
           ("to go on", ("accept", "average_us"), 1))


def figure(result, place, divisor):
    for key in place:
        result = result[key]
    return result / divisor


def row(name, rounds):
    """A row of the table: medians, for the first use with least and greatest."""
    refused = next((one["refused"] for one in rounds if "refused" in one), None)
    if refused:
        return f"| {name} | refuses {refused} |" + " |" * (len(COLUMNS) - 1)
    cells = [statistics.median(figure(one, place, divisor) for one in rounds) for _, place, divisor in COLUMNS]
    first = [figure(one, *COLUMNS[0][1:]) for one in rounds]
    return (f"| {name} | {cells[0]:.1f} ({min(first):.1f} to {max(first):.1f}) | "
            + " | ".join(f"{cell:.1f}" for cell in cells[1:]) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--json")
    args = parser.parse_args()
    names = args.engines.split(",")
    if unknown := [name for name in names if name not in ENGINES]:
        parser.error(f"--engines: '{unknown[0]}' is not one of {', '.join(ENGINES)}")
    if missing := [package for name in names for package in PACKAGES[name] if not importlib.util.find_spec(package)]:
        print(f"skipped: {missing[0]} is not installed for {sys.executable}")
        return SKIPPED
    cases = run_grammar_bench(args.model, "--cases")
    engines = {name: ENGINES[name](args.model, cases) for name in names}
    rounds = {name: [] for name in names}
    for number in range(args.rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            rounds[name].append(engines[name].measure())
            print(f"round {number + 1}, {name}: measured", file=sys.stderr)
    print("microseconds where no other unit is named\n\n| | " + " | ".join(title for title, _, _ in COLUMNS) + " |")
    print("|" + "---|" * (1 + len(COLUMNS)))
    for case in cases["cases"]:
        print(f"| {case['name']}, {len(case['tokens'])} tokens |" + " |" * len(COLUMNS))
        for name in names:
            print(row(name, [found[case["name"]] for found in rounds[name]]))
    for name in names:
        idle = [one["idle_call_us"] for found in rounds[name] for one in found.values() if "idle_call_us" in one]
        if idle:
            print(f"{name}: a call that does nothing takes {statistics.median(idle):.2f} us")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"model": args.model, "vocabulary": cases["vocabulary"], "rounds": rounds}, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())

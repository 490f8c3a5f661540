#!/usr/bin/env python3
"""Judges the server's grammars, and the wheels of xgrammar and llguidance: is any wrong instance accepted, how many schemas are
served?

The instances are those of the official test suite (Debian: json-schema-test-suite) and of tests/data/schema_corpus.jsonl.
A recogniser wants the members of an object in the schema's order, so an instance is spelled in every order of the schema.
The wheels are the Python packages xgrammar (0.2.9, with torch, transformers and pydantic) and llguidance (1.9.1).
Usage: judge_schemas.py GRAMMAR_CLI [gate|xgrammar|llguidance]...   (GRAMMAR_CLI: the binary of tests/structured:grammar_cli)
"""
import decimal
import glob
import itertools
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SUITE = "/usr/share/json-schema-test-suite/tests"
DRAFTS = {"draft4": "http://json-schema.org/draft-04/schema#", "draft6": "http://json-schema.org/draft-06/schema#",
          "draft7": "http://json-schema.org/draft-07/schema#"}
MOST_SPELLINGS = 300
END = 256  # the token behind all bytes


class Xgrammar:
    def __init__(self):
        import xgrammar
        self.xgrammar = xgrammar
        info = xgrammar.TokenizerInfo([bytes([byte]) for byte in range(256)] + [b"</s>"], xgrammar.VocabType.RAW,
                                      vocab_size=257, stop_token_ids=[END])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, schema):
        return self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=True, strict_mode=False)

    def prepare(self, schema):
        """Returns the schema that is compiled, and a function that recognises texts."""
        grammar = self.compile(schema)

        def accepts(text):
            matcher = self.xgrammar.GrammarMatcher(grammar)
            return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(END)

        return schema, accepts


class Gate:
    """The gate, and behind the gate the engine, as in the server."""

    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def gated(self, schema):
        """The schema that is compiled; ValueError: the gate refuses the schema."""
        answer = self.ask(schema=schema)
        if "refusal" in answer:
            raise ValueError(answer["refusal"])
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["schema"]

    def accepts(self, text):
        """Whether the text is one of the last schema's."""
        return self.ask(texts=[text])["accepted"][0]

    def prepare(self, schema):
        return self.gated(schema), self.accepts


class Llguidance:
    def __init__(self):
        import llguidance
        self.llguidance = llguidance
        self.tokenizer = llguidance.LLTokenizer("byte")

    def prepare(self, schema):
        grammar = self.llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        first = self.llguidance.LLMatcher(self.tokenizer, grammar)
        if first.is_error():
            raise ValueError(first.get_error())

        def accepts(text):
            matcher = self.llguidance.LLMatcher(self.tokenizer, grammar)
            tokens = list(text.encode())
            return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

        return schema, accepts


def orders_of(schema):
    """The orders of all properties within a schema."""
    found = []
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            names = value.get("properties")
            if isinstance(names, dict) and tuple(names) not in found:
                found.append(tuple(names))
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return found


def spelled_number(number, exact):
    if isinstance(number, float) and not exact and number.is_integer() and abs(number) < 2**63:
        return str(int(number))
    text = repr(number)
    plain = format(decimal.Decimal(text), "f") if "e" in text else text
    return plain if len(plain) < 30 else text


def spellings(value, orders, exact):
    """Texts of a value. `exact`: numbers keep their spelling, otherwise 1.0 is 1."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [spelled_number(value, exact)]
    if isinstance(value, list):
        parts = itertools.product(*[spellings(item, orders, exact) for item in value])
        return ["[" + ",".join(part) + "]" for part in itertools.islice(parts, MOST_SPELLINGS)]
    if not isinstance(value, dict):
        return [json.dumps(value, ensure_ascii=False)]
    inner = {name: spellings(member, orders, exact) for name, member in value.items()}
    sequences = []
    for order in [()] + [order for order in orders if any(name in value for name in order)]:
        places = {name: place for place, name in enumerate(order)}
        sequence = sorted(value, key=lambda name: places.get(name, len(places)))
        if sequence not in sequences:
            sequences.append(sequence)
    texts = []
    share = MOST_SPELLINGS // len(sequences) + 1
    for sequence in sequences:
        for parts in itertools.islice(itertools.product(*[inner[name] for name in sequence]), share):
            members = [json.dumps(name, ensure_ascii=False) + ":" + part for name, part in zip(sequence, parts)]
            texts.append("{" + ",".join(members) + "}")
    return texts


def corpus():
    with open(os.path.join(HERE, "..", "data", "schema_corpus.jsonl"), encoding="utf-8") as file:
        for number, line in enumerate(file):
            case = json.loads(line)
            yield f"{case['kind']} {number}", case["schema"], case["tests"]


def suite():
    for draft, uri in DRAFTS.items():
        for pattern in ("*.json", "optional/*.json", "optional/format/*.json"):
            for path in sorted(glob.glob(os.path.join(SUITE, draft, pattern))):
                with open(path, encoding="utf-8") as file:
                    cases = json.load(file)
                for case in cases:
                    schema = case["schema"]
                    if isinstance(schema, dict):
                        schema = {"$schema": uri, **schema}
                    name = f"{draft}/{os.path.basename(path)} {case['description']}"
                    yield name, schema, [(test["valid"], test["data"]) for test in case["tests"]]


def judge(engine, name, cases):
    count = dict.fromkeys(["schemas", "refused", "right", "valid", "valid refused", "invalid", "INVALID ACCEPTED"], 0)
    for case, schema, tests in cases:
        count["schemas"] += 1
        try:
            compiled, accepts = engine.prepare(schema)
        except Exception as error:  # the engines throw all kinds of errors
            count["refused"] += 1
            if os.environ.get("VERBOSE"):
                print(f"{case}: {error}")
            continue
        orders = orders_of(compiled)
        right = True
        for valid, instance in tests:
            accepted = any(accepts(text) for text in spellings(instance, orders, exact=not valid))
            count["valid" if valid else "invalid"] += 1
            if accepted != valid:
                right = False
                count["valid refused" if valid else "INVALID ACCEPTED"] += 1
                if os.environ.get("VERBOSE"):
                    print(f"{case}: {'refuses' if valid else 'ACCEPTS'} {json.dumps(instance)}")
        count["right"] += right
    print(name, count, flush=True)
    return count["INVALID ACCEPTED"]


def main():
    wrong = 0
    for name in sys.argv[2:] or ["gate"]:
        engine = {"gate": lambda: Gate(sys.argv[1]), "xgrammar": Xgrammar, "llguidance": Llguidance}[name]()
        for source in (corpus, suite):
            accepted = judge(engine, f"{name}, {source.__name__}:", source())
            wrong += accepted if name == "gate" else 0
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

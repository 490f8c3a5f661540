#!/usr/bin/env python3
"""Makes random schemas of combined keywords, and judges the gate by them: is any text of a gated schema no valid instance?

Each schema that the gate takes is compiled by the wheel of xgrammar with a vocabulary of bytes. Random texts of the grammar are
validated with the package jsonschema against the schema as it was before the gate. Values that jsonschema finds valid are given
to the grammar, too: a valid value that no text has is counted, since the gate promises equal schemas.
Needs the Python packages xgrammar (0.2.9, with torch, transformers and pydantic) and jsonschema with its formats.
Usage: fuzz_schemas.py GATE_CLI [SECONDS] [SEED]   (GATE_CLI: the binary of tests/structured:gate_cli)
"""
import collections
import json
import random
import sys
import time

from judge_schemas import END, Gate, orders_of, spellings

NAMES = ("a", "b", "ab", "", "x y", "é", "\"", "a\\b", "n\nl", "\u0007", "\u007f", "$ref", "~/0")
PATTERNS = ("^a", "b$", "^[ab]{1,2}$", "^.{2}$", "x", "^$", "^(a|bc)*$", "[^a]", "^\\d+$", "\\s")
FORMATS = ("date", "time", "ipv4", "uuid", "email", "date-time", "byte", "int32", "json-pointer")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
MOST_BYTES = 400


class Maker:
    """Makes schemas and values."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def value(self, depth=0):
        pick = self.random.choice
        kind = pick(TYPES if depth < 2 else TYPES[:5])
        if kind == "null":
            return None
        if kind == "boolean":
            return pick((True, False))
        if kind == "integer":
            return pick((0, 1, -1, 2, 5, 10, 100))
        if kind == "number":
            return pick((0.5, 1.5, -2.25, 1.0))
        if kind == "string":
            return pick(("", "a", "b", "ab", "bc", "1", "xx", "é", "\"", "\n", "2024-02-29", "127.0.0.1"))
        if kind == "array":
            return [self.value(depth + 1) for _ in range(pick((0, 0, 1, 2)))]
        return {pick(NAMES): self.value(depth + 1) for _ in range(pick((0, 1, 1, 2)))}

    def schemas(self, depth, most=2):
        return [self.schema(depth + 1) for _ in range(self.random.randint(1, most))]

    def named(self, depth, names=NAMES, most=3):
        return {self.random.choice(names): self.schema(depth + 1) for _ in range(self.random.randint(1, most))}

    def names(self, most=2):
        return list({self.random.choice(NAMES[:6]) for _ in range(self.random.randint(1, most))})

    def keyword(self, depth, out):
        """Adds a keyword, or a pair that belongs together."""
        pick, number = self.random.choice, lambda: self.random.choice((-3, 0, 0.5, 1, 2, 4.5, 7, 10))
        count = self.random.randint(0, 3)
        leaf = {
            "type": lambda: pick(TYPES) if pick((0, 0, 1)) == 0 else self.random.sample(TYPES, 2),
            "enum": lambda: [self.value() for _ in range(pick((1, 2, 3)))], "const": self.value,
            "minimum": number, "maximum": number, "exclusiveMinimum": number, "exclusiveMaximum": number,
            "multipleOf": lambda: pick((1, 2, 3, 5, 0.5, 10)), "minLength": lambda: count, "maxLength": lambda: count + 1,
            "pattern": lambda: pick(PATTERNS), "format": lambda: pick(FORMATS), "minItems": lambda: count,
            "maxItems": lambda: count + 1, "uniqueItems": lambda: True, "required": self.names, "minProperties": lambda: count,
            "maxProperties": lambda: count + 1, "dependentRequired": lambda: {pick(NAMES[:6]): self.names()},
            "$ref": lambda: pick(("#/$defs/d", "#/$defs/e", "#"))}
        inner = {
            "items": lambda: self.schema(depth + 1), "prefixItems": lambda: self.schemas(depth), "contains": lambda: self.schema(depth + 1),
            "properties": lambda: self.named(depth), "patternProperties": lambda: self.named(depth, PATTERNS, 2),
            "additionalProperties": lambda: self.schema(depth + 1), "propertyNames": lambda: self.schema(depth + 1),
            "unevaluatedProperties": lambda: self.schema(depth + 1), "unevaluatedItems": lambda: self.schema(depth + 1),
            "allOf": lambda: self.schemas(depth), "anyOf": lambda: self.schemas(depth), "oneOf": lambda: self.schemas(depth),
            "not": lambda: self.schema(depth + 1), "if": lambda: self.schema(depth + 1), "then": lambda: self.schema(depth + 1),
            "else": lambda: self.schema(depth + 1), "dependentSchemas": lambda: self.named(depth, NAMES[:6], 1)}
        name = pick(list(leaf) if depth >= 3 or pick((0, 1)) else list(inner))
        out[name] = (leaf.get(name) or inner[name])()

    def schema(self, depth=0):
        if depth > 0 and self.random.random() < 0.12:
            return self.random.choice((True, False, {}))
        out = {}
        for _ in range(self.random.choice((1, 2, 2, 3)) + (depth == 0)):
            self.keyword(depth, out)
        if depth == 0:
            out["$defs"] = {"d": self.schema(2), "e": self.schema(2)}
        return out


def sample(engine, grammar, rand):
    """A random text of the grammar; None: the text got too long, or has the bytes of a surrogate, which grammars let pass."""
    matcher = engine.xgrammar.GrammarMatcher(grammar)
    text = bytearray()
    likely = list(b'"{}[],:ab01-.exntf\\ ')
    while len(text) < MOST_BYTES:
        order = [END] if rand.random() < 0.5 else []
        order += rand.sample(likely, len(likely)) + rand.sample(range(256), 256) + [END]
        if rand.random() < 0.1:
            order = rand.sample(range(257), 257)
        if len(text) > MOST_BYTES // 4:  # towards an end
            order = list(b'"}]') + order
        token = next((token for token in order if matcher.accept_token(token)), None)
        if token is None:
            raise AssertionError(f"nothing may follow {bytes(text)!r}")
        if token == END:
            return text.decode() if b"\xed" not in text else None
        text.append(token)
    return None


def judge(engine, schema, rand, count):
    """Returns the faults of a schema."""
    import jsonschema
    faults = []
    try:
        gated = engine.gated(schema)
    except ValueError:
        count["refused"] += 1
        return faults
    count["taken"] += 1
    try:
        grammar = engine.compile(gated)
    except Exception as error:
        return [f"is not compiled: {error}"]
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)

    def complaint(value):
        error = next(validator.iter_errors(value), None)
        return error and f"{error.json_path}: {error.message[:150]}"

    for _ in range(12):
        text = sample(engine, grammar, rand)
        if text is None:
            count["passed over"] += 1
            continue
        count["texts"] += 1
        wrong = complaint(json.loads(text))
        if wrong:
            faults.append(f"ACCEPTS {text!r}: {wrong}")
    orders = orders_of(gated)
    maker = Maker(rand.random())
    for _ in range(20):
        value = maker.value()
        if complaint(value):
            continue
        count["values"] += 1

        def accepts(text):
            matcher = engine.xgrammar.GrammarMatcher(grammar)
            return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(END)

        if not any(accepts(text) for text in spellings(value, orders, exact=False)):
            count["valid values refused"] += 1
            faults.append(f"refuses {json.dumps(value)}")
    return faults


def main():
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    engine = Gate(sys.argv[1])
    count = collections.Counter()
    begun, wrong = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        schema = Maker(seed).schema()
        try:
            faults = judge(engine, schema, random.Random(seed), count)
        except RecursionError:  # jsonschema follows a reference to the schema itself without an end
            faults = []
        for fault in faults[:2]:
            print(f"{seed}: {json.dumps(schema)} {fault}", flush=True)
        wrong += any(not fault.startswith("refuses") for fault in faults)
        seed += 1
    print(dict(count), f"{wrong} schemas with wrong texts, next seed {seed}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

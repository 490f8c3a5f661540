#!/usr/bin/env python3
"""Makes random schemas, and judges the server's grammars by them: is any text of a schema's grammar no valid instance?

Schemas are of two kinds: keywords mixed at random, and counts (strings, patterns with counted repetitions and arrays, within
objects and arrays), of which the values lie about the counts. The gate and the engine are those of the server, over a small
vocabulary. Random texts of a grammar, drawn from its masks, are validated with the package jsonschema against the schema as it
was before the gate, and walked once more byte by byte; the masks along some of the texts are compared with that walk. Values
that jsonschema finds valid must have a text, since the gate promises equal schemas; narrower_spelling() knows the values that
are left out on purpose. A value that jsonschema finds invalid must have no text.
Needs the Python package jsonschema with its formats.
Usage: fuzz_schemas.py GRAMMAR_CLI [SECONDS] [SEED]   (GRAMMAR_CLI: the binary of tests/structured:grammar_cli)
"""
import base64
import collections
import json
import random
import sys
import time

from judge_schemas import Gate, orders_of, spellings

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


COUNTS = (0, 1, 2, 3, 5, 12, 30, 31, 32, 33, 48, 62, 63, 64, 65, 66, 94, 95, 96, 97, 98, 127, 128, 129, 160, 200, 300)
LETTERS = tuple("abc1 _-") + ("é", "\"", "\\", "\n", "\u0001", "😀", "/")
# Patterns with a repeated part, and the part's texts, right and wrong.
REPEATED = (("[a-z]", "ab", "1A"), ("(?:ab|c)", ("ab", "c"), ("a", "b")), ("[^x]", ("é", "1", "\n", "\""), "x"),
            ("\\w", "a_1", "- "), (".", ("a", "😀", "\\"), "\n"), ("(?:[a-f0-9]{2}:)", ("a0:", "ff:"), (":", "a:")),
            ("(?:a|bc|é)", ("a", "bc", "é"), ("b", "c")), ("(?:[a-z]+ )", ("a ", "ab "), (" ", "a")),
            ("(?:x?y)", ("xy", "y"), "x"))


class CountedMaker:
    """Makes schemas with counts, and for each a function that makes values about the counts."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def counts(self, most=len(COUNTS)):
        low, high = sorted(self.random.choice(COUNTS[:most]) for _ in range(2))
        return self.random.choice(((low, high), (low, None), (0, high), (high, high)))

    def near(self, low, high):
        """A count within the bounds or just outside."""
        edges = [low - 1, low, low + 1] + ([high - 1, high, high + 1] if high is not None else [low + 40])
        return max(0, self.random.choice(edges))

    def text(self, count, letters=LETTERS):
        return "".join(self.random.choice(letters) for _ in range(count))

    def string(self):
        low, high = self.counts()
        schema = {"type": "string", "minLength": low, "maxLength": high}
        schema = {key: bound for key, bound in schema.items() if bound is not None and bound != 0}
        return schema, lambda: self.text(self.near(low, high))

    def pattern(self):
        part, right, wrong = self.random.choice(REPEATED)
        low, high = self.counts()
        begin, end = self.random.choice((("^", "$"), ("^", "$"), ("^a", "b$"), ("^", "x?$"), ("^(?:b", ")?$")))
        count = f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
        schema = {"type": "string", "pattern": begin + part + count + end}
        bounds = self.counts() if self.random.random() < 0.3 else None
        if bounds:
            schema["minLength"] = bounds[0]

        def value():
            parts = [self.random.choice(right) for _ in range(self.near(low, high))]
            if parts and self.random.random() < 0.2:
                parts[self.random.randrange(len(parts))] = self.random.choice(wrong)
            head, tail = begin.strip("^(?:"), end.strip(")?$")
            head, tail = (text if self.random.random() < 0.8 else "" for text in (head, tail))
            return head + "".join(parts) + tail

        return schema, value

    def array(self, depth):
        schema, inner = self.node(depth + 1)
        low, high = self.counts(9 if depth else 14)
        bounds = {"minItems": low, "maxItems": high}
        bounds = {key: bound for key, bound in bounds.items() if bound is not None and bound != 0}
        return {"type": "array", "items": schema, **bounds}, lambda: [inner() for _ in range(min(self.near(low, high), 40))]

    def map(self, depth):
        parts = {name: self.node(depth + 1) for name in self.random.sample(("a", "b", "ab", "x y"), self.random.choice((1, 2)))}
        schema = {"type": "object", "properties": {name: part[0] for name, part in parts.items()},
                  "required": [name for name in parts if self.random.random() < 0.5]}
        if self.random.random() < 0.7:
            schema["additionalProperties"] = False
        elif self.random.random() < 0.5:
            schema["additionalProperties"], more = self.node(2)
            return schema, lambda: {**{name: part[1]() for name, part in parts.items()}, "more": more()}

        def value():
            return {name: part[1]() for name, part in parts.items() if name in schema["required"] or self.random.random() < 0.8}

        return schema, value

    def node(self, depth=0):
        kinds = [self.string, self.pattern, self.pattern]
        if depth < 2:
            kinds += [lambda: self.array(depth), lambda: self.map(depth), lambda: self.map(depth)]
        elif self.random.random() < 0.3:
            return {"type": "integer"}, lambda: self.random.choice((1, -20, 300))
        schema, value = self.random.choice(kinds)()
        if self.random.random() < 0.1:
            return {"anyOf": [schema, {"type": "null"}]}, lambda: self.random.choice((None, value()))
        return schema, value


def complaint(validator, value):
    error = next(validator.iter_errors(value), None)
    return error and f"{error.json_path}: {error.message[:150]}"


def format_checker():
    """The package's formats, and OpenAPI's "byte", which the gate enforces, too."""
    import jsonschema
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    checker.checks("byte", raises=ValueError)(
        lambda value: not isinstance(value, str) or base64.b64decode(value, validate=True) is not None)
    return checker


def for_python(schema):
    """The schema with patterns whose "$" is the end of the text, as in ECMA 262."""
    if isinstance(schema, list):
        return [for_python(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: part.replace("$", "\\Z") if name == "pattern" and isinstance(part, str) else
            {pattern.replace("$", "\\Z"): for_python(inner) for pattern, inner in part.items()}
            if name == "patternProperties" and isinstance(part, dict) else for_python(part)
            for name, part in schema.items()}


def names_within(value):
    """The names of all members within a value."""
    if isinstance(value, list):
        return [name for item in value for name in names_within(item)]
    if not isinstance(value, dict):
        return []
    return [*value, *(name for member in value.values() for name in names_within(member))]


def narrower_spelling(value, gated):
    """Whether the grammar has no text of the value on purpose: where an object has named members, the names of further members
    have no character that JSON escapes (docs/structured_outputs.md)."""
    escaped = any(json.dumps(name, ensure_ascii=False) != f'"{name}"' for name in names_within(value))
    return escaped and "patternProperties" in json.dumps(gated)


def spelled(value, orders, rand):
    """Texts of a value, one of them with escapes that JSON does not demand."""
    texts = spellings(value, orders, exact=False)
    return texts + [json.dumps(value, separators=(",", ":"))] if rand.random() < 0.5 else texts


def judge_texts(engine, validator, rand, count):
    """The faults of random texts of the grammar."""
    answer = engine.ask(samples=12, seed=rand.randrange(2**32), most_bytes=MOST_BYTES)
    faults, texts = [], [text for text in answer["texts"] if isinstance(text, str)]
    for text in answer["texts"]:
        if isinstance(text, dict):
            faults.append(f"has no mask: {text}")
    count["passed over"] += sum(text is None for text in answer["texts"])
    count["texts"] += len(texts)
    for text, accepted in zip(texts, engine.ask(texts=texts)["accepted"]):
        wrong = complaint(validator, json.loads(text))
        if wrong:
            faults.append(f"ACCEPTS {text!r}: {wrong}")
        if not accepted:
            faults.append(f"masks allow {text!r}, and bytes do not")
    for text in sorted(texts, key=len)[-1:]:
        count["masks"] += len(text.encode()) + 1
        faults += engine.ask(masks_of=text)["faults"]
    return faults


def judge(engine, schema, values, rand, count):
    """Returns the faults of a schema."""
    import jsonschema
    try:
        gated = engine.gated(schema)
    except ValueError:
        count["refused"] += 1
        return []
    except RuntimeError as error:
        return [f"is not compiled: {error}"]
    count["taken"] += 1
    validator = jsonschema.Draft202012Validator(for_python(schema), format_checker=format_checker())
    faults = judge_texts(engine, validator, rand, count)
    orders = orders_of(gated)
    for value in values:
        wrong = complaint(validator, value)
        texts = [text for text in spelled(value, orders, rand)]
        accepted = engine.ask(texts=texts)["accepted"]
        count["invalid values" if wrong else "valid values"] += 1
        if wrong and any(accepted):
            faults.append(f"ACCEPTS {texts[accepted.index(True)]!r}: {wrong}")
        elif not wrong and not any(accepted):
            narrower = narrower_spelling(value, gated)
            count["valid values left out on purpose" if narrower else "valid values refused"] += 1
            if not narrower:
                faults.append(f"REFUSES {json.dumps(value)}")
    return faults


def case(seed):
    """A schema, and values that may fit the schema."""
    if seed % 2 == 0:
        maker = Maker(seed)
        return maker.schema(), [maker.value() for _ in range(20)]
    schema, value = CountedMaker(seed).node()
    return schema, [value() for _ in range(20)]


def main():
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    engine = Gate(sys.argv[1])
    count = collections.Counter()
    begun, wrong = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        schema, values = case(seed)
        try:
            faults = judge(engine, schema, values, random.Random(seed), count)
        except RecursionError:  # jsonschema follows a reference to the schema itself without an end
            faults = []
        for fault in faults[:2]:
            print(f"{seed}: {json.dumps(schema)} {fault}", flush=True)
        wrong += bool(faults)
        seed += 1
    print(dict(count), f"{wrong} schemas with faults, next seed {seed}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

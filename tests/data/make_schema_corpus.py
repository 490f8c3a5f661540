#!/usr/bin/env python3
"""Writes schema_corpus.jsonl: JSON schemas as people and their tools write them, each with instances.

A line is {"kind", "schema", "tests": [[valid, instance], ...]}, judged by the Python package jsonschema, formats included.
Instances are made from the schema and then damaged, so that most of the wrong ones are nearly right.
Usage: make_schema_corpus.py > schema_corpus.jsonl
"""
import copy
import datetime
import json
import random
import re

import jsonschema

RNG = random.Random(20261129)
WORDS = ("name city country unit query limit page email phone street items price total status created owner title body tags "
         "priority due author score label color width height region zone port host image replicas command args enabled "
         "note reason lang format source target amount currency date time level user team project file path size").split()
FORMATS = {
    "date": (["2026-11-29", "2024-02-29"], ["2023-02-29", "29.11.2026", "2026-13-01"]),
    "date-time": (["2026-11-29T12:00:00Z", "2024-01-01T00:00:00.5+01:00"], ["2026-11-29", "2026-11-29T25:00:00Z"]),
    "email": (["ada@example.com", "a.b@x.org"], ["nobody", "example.com"]),
    "uuid": (["123e4567-e89b-12d3-a456-426614174000"], ["123e4567", "123e4567e89b12d3a456426614174000"]),
    "ipv4": (["192.168.0.1", "8.8.8.8"], ["300.1.1.1", "1.2.3", "01.2.3.4"]),
    "ipv6": (["::1", "2001:db8::8a2e:370:7334"], ["12345::", ":::"]),
}
PATTERNS = [
    ("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", ["web-1", "a"], ["-web", "Web"]),
    ("^\\d{5}(-\\d{4})?$", ["12345", "12345-6789"], ["1234", "123456"]),
    ("^[A-Z]{3}$", ["EUR", "USD"], ["eur", "EURO"]),
    ("^\\+?[1-9]\\d{1,14}$", ["+4912345", "123"], ["0123", "+"]),
    ("^(\\([0-9]{3}\\))?[0-9]{3}-[0-9]{4}$", ["555-1212", "(888)555-1212"], ["555-121", "(888) 555-1212"]),
    ("^#[0-9a-fA-F]{6}$", ["#00ff7F"], ["00ff7f", "#00ff7"]),
    ("foo", ["foo", "a food"], ["fo", ""]),
    ("^v?(0|[1-9]\\d*)\\.(0|[1-9]\\d*)\\.(0|[1-9]\\d*)$", ["1.2.3", "v0.10.0"], ["1.2", "01.2.3"]),
    ("^[^\\s]+$", ["a\"b", "\u00e9\\"], ["a b", "x\ty"]),
]

TEXTS = ["text", "a", "12345", "back\\slash", "with \"quotes\"", "two\nlines", "\u4f60\u597d \U0001f600", "tab\there"]


def words(count):
    return RNG.sample(WORDS, count)


def maybe(probability):
    return RNG.random() < probability


def described(schema):
    if maybe(0.5):
        schema["description"] = "The " + RNG.choice(WORDS) + " of the " + RNG.choice(WORDS)
    return schema


def leaf():
    kind = RNG.randrange(12)
    if kind == 0:
        return {"type": "integer", "minimum": RNG.choice([0, 1, -5]), "maximum": RNG.choice([10, 100, 65535])}
    if kind == 1:
        return {"type": "number", "minimum": 0}
    if kind == 2:
        return {"type": "string", "enum": words(RNG.randint(2, 5))}
    if kind == 3:
        return {"type": "string", "format": RNG.choice(sorted(FORMATS))}
    if kind == 4:
        return {"type": "string", "pattern": RNG.choice(PATTERNS)[0]}
    if kind == 5:
        return {"type": "string", "minLength": 1, "maxLength": RNG.choice([10, 50, 200])}
    if kind == 6:
        return {"type": "boolean"}
    if kind == 7:
        return {"type": "array", "items": RNG.choice([{"type": "string"}, {"type": "integer"}]),
                **({"minItems": 1, "maxItems": 4} if maybe(0.5) else {})}
    return {"type": RNG.choice(["string", "string", "integer", "number", "boolean"])}


def record(depth=0, closed=0.5, count=None):
    names = words(count or RNG.randint(2, 5))
    properties = {}
    for name in names:
        nested = depth < 2 and maybe(0.25)
        properties[name] = record(depth + 1, closed) if nested else described(leaf())
    schema = {"type": "object", "properties": properties, "required": [name for name in names if maybe(0.6)]}
    if maybe(closed):
        schema["additionalProperties"] = False
    return schema


def function_call():
    """The parameters of a tool, as in the tools of OpenAI's API."""
    return record(closed=0.4)


def strict_call():
    """strict: all is required, and optional means null."""
    schema = record(closed=1.0)
    schema["required"] = list(schema["properties"])
    name = RNG.choice(schema["required"])
    schema["properties"][name] = {"type": [RNG.choice(["string", "integer"]), "null"]}
    return schema


def pydantic():
    """Models by reference, optional fields by anyOf with null, titles everywhere."""
    inner = {"title": "Inner", **record(1, 0.0)}
    fields = {
        "child": {"$ref": "#/$defs/Inner"},
        "children": {"items": {"$ref": "#/$defs/Inner"}, "title": "Children", "type": "array", "default": []},
        "note": {"anyOf": [leaf(), {"type": "null"}], "default": None, "title": "Note"},
        "extra": {"additionalProperties": {"type": RNG.choice(["string", "integer"])}, "title": "Extra", "type": "object"},
    }
    chosen = RNG.sample(sorted(fields), RNG.randint(2, 4))
    schema = {"$defs": {"Inner": inner}, "properties": {name: fields[name] for name in chosen},
              "required": chosen[:1], "title": "Model", "type": "object"}
    if maybe(0.4):
        schema["additionalProperties"] = False
    return schema


def zod():
    return {"$schema": "http://json-schema.org/draft-07/schema#", **record(closed=1.0),
            "definitions": {"unused": {"type": "null"}}}


def kubernetes():
    label = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}}
    container = {"type": "object", "required": ["name", "image"], "properties": {
        "name": {"type": "string", "pattern": PATTERNS[0][0], "maxLength": 63},
        "image": {"type": "string", "minLength": 1},
        "ports": {"type": "array", "items": {"type": "object", "required": ["containerPort"], "properties": {
            "containerPort": {"type": "integer", "minimum": 1, "maximum": 65535, "format": "int32"},
            "protocol": {"type": "string", "enum": ["TCP", "UDP"]}}}}}}
    schema = {"type": "object", "required": ["kind", "metadata"], "properties": {
        "apiVersion": {"const": RNG.choice(["v1", "apps/v1"])}, "kind": {"enum": ["Pod", "Job"]},
        "metadata": {"type": "object", "required": ["name"], "properties": {"name": container["properties"]["name"],
                                                                           "labels": label}}}}
    if maybe(0.7):
        schema["properties"]["spec"] = {"type": "object", "properties": {
            "containers": {"type": "array", "minItems": 1, "items": container},
            "replicas": {"type": "integer", "minimum": 0}}, "x-kubernetes-preserve-unknown-fields": True}
    if maybe(0.5):
        schema["additionalProperties"] = False
    return schema


def tagged_union():
    keyword = RNG.choice(["oneOf", "anyOf"])
    branches = []
    for tag in words(RNG.randint(2, 4)):
        branch = record(1)
        branch["properties"] = {"kind": {"const": tag} if maybe(0.7) else {"enum": [tag]}, **branch["properties"]}
        branch["required"] = ["kind"] + branch["required"]
        branches.append(branch)
    if maybe(0.5):
        return {"$defs": {f"B{i}": branch for i, branch in enumerate(branches)},
                keyword: [{"$ref": f"#/$defs/B{i}"} for i in range(len(branches))]}
    return {"type": "object", "properties": {"value": {keyword: branches}}, "required": ["value"]}


def plain_union():
    options = RNG.sample([{"type": "string"}, {"type": "integer"}, {"type": "array", "items": {"type": "string"}},
                          {"type": "null"}, record(2), {"type": "boolean"}], 3)
    return {"type": "object", "properties": {"value": {RNG.choice(["anyOf", "oneOf"]): options}}, "required": ["value"]}


def recursive():
    node = {"type": "object", "properties": {"value": leaf(), "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                                             "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["value"], "additionalProperties": False}
    return {"$defs": {"node": node}, "$ref": "#/$defs/node"}


def inheritance():
    base = record(1, 0.0, 2)
    more = record(1, 0.0, 2)
    schema = {"definitions": {"Base": base}, "allOf": [{"$ref": "#/definitions/Base"}, more]}
    if maybe(0.3):
        schema["unevaluatedProperties"] = False
    return schema


def conditional():
    return {"type": "object", "properties": {"country": {"enum": ["US", "DE", "FR"]}, "code": {"type": "string"}},
            "required": ["country", "code"], "if": {"properties": {"country": {"const": "US"}}},
            "then": {"properties": {"code": {"pattern": "^\\d{5}$"}}},
            "else": {"properties": {"code": {"maxLength": RNG.choice([6, 8])}}},
            **({"additionalProperties": False} if maybe(0.5) else {})}


def dependent():
    a, b, c = words(3)
    schema = {"type": "object", "properties": {a: {"type": "string"}, b: leaf(), c: {"type": "integer"}},
              "additionalProperties": maybe(0.5)}
    if maybe(0.5):
        return {**schema, "dependentRequired": {a: [b]}}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema, "dependencies": {a: [b]}}


def exclusive():
    """Exactly one of two fields."""
    a, b = words(2)
    return {"type": "object", "properties": {a: leaf(), b: leaf()}, "oneOf": [{"required": [a]}, {"required": [b]}],
            "additionalProperties": False}


def tuples():
    schema = {"prefixItems": [leaf() for _ in range(RNG.randint(1, 3))], "type": "array"}
    if maybe(0.7):
        schema["items"] = RNG.choice([False, {"type": "integer"}])
    if maybe(0.5):
        schema["minItems"] = len(schema["prefixItems"])
    return schema


def maps():
    schema = {"type": "object", "patternProperties": {"^x-": {"type": "string"}, "^[0-9]+$": leaf()}}
    schema["additionalProperties"] = RNG.choice([False, {"type": "integer"}])
    if maybe(0.5):
        schema["properties"] = {"name": {"type": "string"}, "x-note": {"minLength": 2}}
    if maybe(0.3):
        schema = {"type": "object", "propertyNames": {"pattern": "^[a-z_]+$"}, "additionalProperties": leaf()}
    if maybe(0.3):
        schema["minProperties"] = 1
    return schema


def values():
    return {"enum": RNG.sample([1, 2.5, "a/b", "\u00e9\n", None, True, {"b": 1, "a": [1, 2]}, [], "x\"y", -3, {"k": {}}], 4)}


def hard():
    """Keywords that few engines enforce."""
    return RNG.choice([
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        {"type": "array", "contains": {"const": 1}, "items": {"type": "integer"}},
        {"not": {"type": "string"}, "type": ["string", "integer"]},
        {"type": "string", "not": {"enum": ["a", "b"]}},
        {"type": "number", "multipleOf": 0.01},
        {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
        {"type": "string", "pattern": "^(?=.*\\d)\\w+$"},
        {"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}},
        {"oneOf": [{"type": "integer", "minimum": 2}, {"type": "integer", "maximum": 5}]},
        {"type": "string", "format": "idn-email"},
        {"type": "string", "pattern": "^[a-z]+$", "maxLength": 4, "minLength": 2},
    ])


KINDS = {function_call: 45, strict_call: 15, pydantic: 25, zod: 20, kubernetes: 15, tagged_union: 25, plain_union: 10,
         recursive: 10, inheritance: 12, conditional: 6, dependent: 8, exclusive: 8, tuples: 12, maps: 12, values: 10,
         hard: 22}


class Maker:
    """Makes instances of a schema: most of them right."""

    def __init__(self, root):
        self.root = root

    def target(self, reference):
        value = self.root
        for token in reference[2:].split("/"):
            value = value[token]
        return value

    def make(self, schema, depth=0):
        if not isinstance(schema, dict) or depth > 6:
            return RNG.choice([1, "text", None])
        if "$ref" in schema:
            return self.make(self.target(schema["$ref"]), depth + 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return RNG.choice(schema["enum"])
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema and "properties" not in schema:
                choices = schema[keyword] if depth < 4 else schema[keyword][-1:]
                return self.make(RNG.choice(choices), depth + 1)
        if "allOf" in schema:
            merged = {}
            for part in schema["allOf"]:
                merged.update(self.make(part, depth + 1))
            return merged
        kind = schema.get("type", "array" if "contains" in schema else "object" if "properties" in schema else "integer")
        kind = RNG.choice(kind) if isinstance(kind, list) else kind
        return getattr(self, "make_" + kind)(schema, depth)

    def make_object(self, schema, depth):
        out = {}
        for name, inner in schema.get("properties", {}).items():
            if name in schema.get("required", []) or maybe(0.6 if depth < 3 else 0.1):
                out[name] = self.make(inner, depth + 1)
        others = schema.get("additionalProperties", True)
        if others is not False and maybe(0.5):
            out[RNG.choice(["other", "more_1", "x-a"])] = self.make(others, depth + 1)
        for pattern, inner in schema.get("patternProperties", {}).items():
            if maybe(0.6):
                out[{"^x-": "x-b", "^[0-9]+$": "42"}[pattern]] = self.make(inner, depth + 1)
        return out

    def make_array(self, schema, depth):
        out = [self.make(inner, depth + 1) for inner in schema.get("prefixItems", [])]
        items = schema.get("items", {"type": "integer"})
        if items is not False and depth < 5:
            out += [self.make(items, depth + 1) for _ in range(RNG.randint(schema.get("minItems", 0) and 1, 2))]
        return out

    def make_string(self, schema, depth):
        if schema.get("format") in FORMATS:
            return RNG.choice(RNG.choice(FORMATS[schema["format"]]) if maybe(0.2) else FORMATS[schema["format"]][0])
        for pattern, right, wrong in PATTERNS:
            if schema.get("pattern") == pattern:
                return RNG.choice(right if maybe(0.8) else wrong)
        return RNG.choice(TEXTS)

    def make_integer(self, schema, depth):
        return RNG.choice([schema.get("minimum", -7), schema.get("maximum", 4711), 5, 10])

    def make_number(self, schema, depth):
        return RNG.choice([schema.get("minimum", -2.5), 3.25, 19.99, 7])

    def make_boolean(self, schema, depth):
        return maybe(0.5)

    def make_null(self, schema, depth):
        return None


def places(value, path=()):
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, element in inner:
        yield from places(element, path + (key,))


def damaged(value):
    out = copy.deepcopy(value)
    path = RNG.choice(list(places(out)))
    if not path:
        return RNG.choice([None, [], {}, "text", 3])
    holder = out
    for key in path[:-1]:
        holder = holder[key]
    action = RNG.randrange(4)
    if action == 0:
        del holder[path[-1]]
    elif action == 1 and isinstance(holder, dict):
        holder["unexpected"] = RNG.choice([1, "text", None])
    else:
        old = holder[path[-1]]
        holder[path[-1]] = RNG.choice([None, -1, 70000, 1.5, "", "Not Right!", [], {}, [old], str(old)])
    return out


def is_date_time(value):
    if not isinstance(value, str):
        return True
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", value):
        return False
    try:
        return bool(datetime.datetime.fromisoformat(value))
    except ValueError:
        return False


def tests_of(schema):
    if str(schema.get("$schema", "")).startswith("http://json-schema.org/draft-07"):
        kind = jsonschema.Draft7Validator
    else:
        kind = jsonschema.Draft202012Validator
    checker = jsonschema.FormatChecker(formats=[name for name in FORMATS if name != "date-time"])
    checker.checks("date-time")(is_date_time)
    validator = kind(schema, format_checker=checker)
    maker = Maker(schema)
    tests = {True: {}, False: {}}
    for attempt in range(120):
        value = maker.make(schema)
        if attempt % 2:
            value = damaged(value)
        valid = validator.is_valid(value)
        if "format" in json.dumps(schema) and attempt % 2 and not valid and maybe(0.3):
            continue
        if len(tests[valid]) < (3 if valid else 4):
            tests[valid].setdefault(json.dumps(value), value)
    return [[valid, value] for valid in (True, False) for value in tests[valid].values()]


def main():
    for make, count in KINDS.items():
        for _ in range(count):
            schema = make()
            line = {"kind": make.__name__, "schema": schema, "tests": tests_of(schema)}
            print(json.dumps(line, ensure_ascii=False, separators=(",", ":")))


if __name__ == "__main__":
    main()

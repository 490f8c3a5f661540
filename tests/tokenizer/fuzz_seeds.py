#!/usr/bin/env python3
"""Writes the seeds of tools/fuzz.sh:  fuzz_seeds.py chat_template|regex|encode FOLDER"""
import json
import pathlib
import sys

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
TEXT = "It's 123 caf\u00e9s,  isn't\r\n\n it? \U0001f600 na\u0308ive"


def templates():
    with open(DATA / "tokenizer" / "templates.jsonl", encoding="utf-8") as lines:
        yield from json.loads(next(lines))["templates"]
    for file in sorted(DATA.glob("tiny/*/chat_template.jinja")):
        yield file.read_text(encoding="utf-8")


def patterns():
    yield r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    yield (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
    yield r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}]*[\p{Ll}\p{M}]+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+"
    yield r"[a-z\w]+?|\h\S|(?<=a)b|(?<!c)d|(a|b)\1|[[:alpha:]]+|\A|\z|^|$"
    yield r"(\w+\s?)+$"


def seeds(target):
    if target == "chat_template":
        return list(templates())
    if target == "regex":
        return [pattern + "\0" + TEXT for pattern in patterns()]
    return [TEXT, "ab abc <|a|> x", "<|a  |> <|a|", "aabbcc" * 20, "  \n\t aab"]


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[2])
    for number, text in enumerate(seeds(sys.argv[1])):
        (folder / f"seed-{number}").write_bytes(text.encode("utf-8"))

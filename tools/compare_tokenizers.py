#!/usr/bin/env python3
"""Compares Somnus's tokenizer with Hugging Face `tokenizers` on random and nasty strings.

    bazel build //tests/tokenizer:tokenize_cli
    tools/compare_tokenizers.py [--count 10000] [--seed 1] DIRECTORY...

Each directory holds a tokenizer.json. Ids must be equal with and without special tokens, and so must the decoded
texts of the ids and of random id sequences, whole and streamed. Prints every mismatch (at most --show per
tokenizer) and exits 1 if there was one. Needs `pip install tokenizers`.
"""

import argparse
import json
import random
import subprocess
import sys
import unicodedata

from tokenizers import Tokenizer

WORDS = ("the of and Hello world I'm you'LL it's don't WE'RE they've she'd 'S 'ſ 'Ll naïve café Straße ΣΊΣΥΦΟΣ "
         "İstanbul привет мир 你好世界 こんにちは 안녕하세요 שלום مرحبا नमस्ते ไทย ქართული Việt ﬁﬂ ½ ² ٣٤٥ Ⅷ 𝟘𝟙 𝒳𝓎 "
         "12345 3.14159 0x1F 1e-9 100,000 def return {}; () => != === // /* */ <div> </p> & &amp; http://a.b/c?d=e "
         "foo_bar camelCase SHOUT snake_case __init__ \\n \\t # ## *** --- ... !? ?!").split(" ")
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\t\t", " \n", "\n ", "\u00a0", "\u3000", "\u2028", "\u2029",
          "\u0085", "\u200a", "\u202f", "\u205f", "\u1680", "\u180e", "\u200b", "\ufeff", "\x0b", "\x0c", "\x1c",
          "\x1f", "\x00"]
MARKS = ["\u0301", "\u0300", "\u0327", "\u0323", "\u0344", "\u093c", "\u0f73", "\u0345", "\u20dd", "\u3099",
         "\U0001d165", "\u1161", "\u11a8", "\ufe0f", "\u200d", "\u200c"]
EMOJI = ["😀", "👩‍👩‍👧", "🇩🇪", "👍🏽", "❤️", "🏴‍☠️", "1️⃣"]


def random_character(rng):
    while True:
        limit = rng.choice([0x80, 0x250, 0x800, 0x3000, 0xA000, 0x10000, 0x20000, 0x110000])
        code = rng.randrange(limit)
        # Unassigned characters are left out: which class they are in depends on the Unicode version of the library.
        if not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn":
            return chr(code)


def piece(rng, specials):
    kind = rng.randrange(16)
    if kind < 5:
        return rng.choice(WORDS)
    if kind < 8:
        return rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 3, 7])
    if kind == 8:
        return "".join(random_character(rng) for _ in range(rng.randrange(1, 8)))
    if kind == 9:
        return rng.choice("aeoAnc가ᄀかñé") + "".join(rng.choice(MARKS) for _ in range(rng.randrange(1, 5)))
    if kind == 10:
        return rng.choice(EMOJI)
    if kind == 11 and specials:
        special = rng.choice(specials)
        return rng.choice([special, special[:-1], special[1:], "<" + special, special + special, special.upper()])
    if kind == 12:
        return str(rng.randrange(10 ** rng.randrange(1, 12)))
    if kind == 13:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randrange(1, 15)))
    if kind == 14:
        return rng.choice("<|>'\"_-=#*~.,!?$%^&()[]{}\\/`@") * rng.choice([1, 2, 3, 9, 40])
    return rng.choice(["'s", "'S", "'ſ", "'t", "'re", "'VE", "'ll", "'d", "’s"])


def make_strings(count, seed, specials):
    rng = random.Random(seed)
    strings = ["", " ", "\n", "\x00", "a" * 5000, " " * 3000, "\n" * 1000, "<" * 2000, "<|" * 500, "0" * 2000,
               "é" * 1000, "e\u0301" * 500, "\u0301" * 300, ("\u0301\u0323" * 200) + "a", "ab" * 2000, "😀" * 300]
    strings += specials[:50] + [s + " " + s for s in specials[:20]]
    while len(strings) < count:
        joiner = rng.choice(["", " ", " ", " "])
        strings.append(joiner.join(piece(rng, specials) for _ in range(rng.randrange(1, 20))))
    return strings[:max(count, 16)]


class Ours:
    def __init__(self, binary, directory):
        self.command = [binary, directory]

    def ask(self, requests):
        text = "\n".join(json.dumps(r) for r in requests) + "\n"
        run = subprocess.run(self.command, input=text, capture_output=True, text=True, check=True)
        lines = [json.loads(line) for line in run.stdout.split("\n") if line]
        assert len(lines) == len(requests) + 1, "the binary stopped early"
        return lines[0]["startup_ms"], lines[1:]


def make_cases(tokenizer, strings, seed):
    """Pairs (request, expected answer)."""
    rng = random.Random(seed + 1)
    cases = []
    for text in strings:
        for special in (False, True):
            ids = tokenizer.encode(text, add_special_tokens=special).ids
            cases.append(({"encode": text, "special": special}, {"ids": ids}))
        skip = rng.random() < 0.5
        if rng.random() < 0.5:
            ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randrange(30))]
        decoded = tokenizer.decode(ids, skip_special_tokens=skip)
        cases.append(({"decode": ids, "skip": skip}, {"text": decoded, "streamed": decoded}))
    return cases


def compare(binary, directory, args):
    tokenizer = Tokenizer.from_file(directory + "/tokenizer.json")
    specials = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    strings = make_strings(args.count, args.seed, specials)
    cases = make_cases(tokenizer, strings, args.seed)
    startup, answers = Ours(binary, directory).ask([request for request, _ in cases])
    bad = [(request, want, got) for (request, want), got in zip(cases, answers) if want != got]
    for request, want, got in bad[:args.show]:
        print("MISMATCH %s\n  expected %s\n  got      %s" % (json.dumps(request), want, got))
    print("%s: %d strings, %d comparisons, %d mismatches, start-up %.1f ms" %
          (directory, len(strings), len(cases), len(bad), startup))
    return not bad


def write_golden(path, directory, args):
    """Short strings only, each with the ids and their decoded text."""
    tokenizer = Tokenizer.from_file(directory + "/tokenizer.json")
    specials = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    strings = [s for s in make_strings(args.count * 4, args.seed, specials) if len(s) < 120][-args.count:]
    with open(path, "w", encoding="utf-8") as file:
        for text in strings:
            ids = tokenizer.encode(text).ids
            line = {"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True)}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directories", nargs="+")
    parser.add_argument("--binary", default="bazel-bin/tests/tokenizer/tokenize_cli")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=10)
    parser.add_argument("--golden", help="write this file for the one directory instead of comparing")
    args = parser.parse_args()
    if args.golden:
        write_golden(args.golden, args.directories[0], args)
        return 0
    results = [compare(args.binary, directory, args) for directory in args.directories]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())

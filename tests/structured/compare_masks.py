#!/usr/bin/env python3
"""Compares masks token by token: the server's path (the gate, our changes of grammars, the engine), or xgrammar's wheel behind the
gate, beside llguidance, over the valid instances of the schemas that both serve. A token that ours allows and llguidance does not
is a fault of one of the two, and is printed; where ours allows fewer, the gate's spelling of values is narrower
(docs/structured_outputs.md).

Needs the Python packages of judge_schemas.py: llguidance and numpy, and for "xgrammar" its wheel.
Usage: compare_masks.py GRAMMAR_CLI TOKENIZER_JSON [server|xgrammar]...   (without a name: server)
(GRAMMAR_CLI: the binary of tests/structured:grammar_cli; TOKENIZER_JSON: a tokenizer of bytes, as tests/data/tiny/qwen3's)
"""
import collections
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from judge_schemas import Gate, corpus, orders_of, spellings, suite  # noqa: E402  (the path is set above)

MOST_TEXTS = 2  # spellings of an instance
# Right, and not in llguidance 1.9.1: DEL within a string, the escape of a slash, an IPv6 address that ends with an IPv4 one.
NARROWER_THERE = {b"\x7f", b"/", b"."}
# llguidance applies the keywords beside "$ref" in the drafts that ignore them.
WRONG_THERE = "ref overrides any sibling keywords"


class Server:
    """Masks of the grammar that the gate's program has compiled last."""

    def __init__(self, gate, tokens, end):
        self.gate = gate
        gate.ask(vocabulary={"tokens": [token.hex() for token in tokens], "end": end})

    def compile(self, gated):
        pass

    def masks(self, tokens):
        """The bytes of the mask before each token, up to a token that is refused."""
        for mask in self.gate.ask(masks_along=tokens)["masks"]:
            yield bytes.fromhex(mask)


class Wheel:
    """Masks of xgrammar's wheel."""

    def __init__(self, gate, tokens, end):
        import numpy
        import xgrammar
        self.xgrammar = xgrammar
        info = xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[end])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.mask = numpy.zeros((1, (len(tokens) + 31) // 32), dtype=numpy.int32)

    def compile(self, gated):
        self.grammar = self.compiler.compile_json_schema(json.dumps(gated), any_whitespace=True, strict_mode=False)

    def masks(self, tokens):
        matcher = self.xgrammar.GrammarMatcher(self.grammar)
        for token in tokens:
            matcher.fill_next_token_bitmask(self.mask)
            yield self.mask.tobytes()
            if not matcher.accept_token(token):
                return


ENGINES = {"server": Server, "xgrammar": Wheel}


class Comparison:
    """The engines over a common vocabulary."""

    def __init__(self, grammar_cli, tokenizer, names):
        import llguidance
        import numpy
        self.llguidance, self.numpy = llguidance, numpy
        self.tokenizer = llguidance.LLTokenizer(tokenizer)
        self.tokens = [b"" if self.tokenizer.is_special_token(id) else self.tokenizer.decode_bytes([id])
                       for id in range(self.tokenizer.vocab_size)]
        self.gate = Gate(grammar_cli)
        self.engines = {name: ENGINES[name](self.gate, self.tokens, self.tokenizer.eos_token) for name in names}

    def prepare(self, schema):
        """The schema that is compiled, and llguidance's grammar; an exception where an engine refuses."""
        grammar = self.llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        theirs = self.llguidance.LLMatcher(self.tokenizer, grammar)
        if theirs.is_error():
            raise ValueError(theirs.get_error())
        gated = self.gate.gated(schema)
        for engine in self.engines.values():
            engine.compile(gated)
        return gated, grammar

    def allowed(self, mask):
        """A bit for each token."""
        return self.numpy.unpackbits(self.numpy.frombuffer(mask, dtype=self.numpy.uint8), bitorder="little")[:len(self.tokens)]

    def compare(self, engine, their_grammar, text):
        """Yields (tokens that ours alone allows, tokens that llguidance alone allows) before each token of the text."""
        theirs = self.llguidance.LLMatcher(self.tokenizer, their_grammar)
        tokens = self.tokenizer.greedy_tokenize(text) + [self.tokenizer.eos_token]
        for token, mask in zip(tokens, engine.masks(tokens)):
            mine, other = self.allowed(mask), self.allowed(theirs.compute_bitmask())
            if theirs.compute_ff_bytes():
                # Where text is forced llguidance allows only its own tokens of the text.
                mine = other
            yield ([self.tokens[i] for i in self.numpy.flatnonzero(mine & ~other & 1)],
                   [self.tokens[i] for i in self.numpy.flatnonzero(other & ~mine & 1)])
            if not theirs.consume_token(token):
                return


def judge(comparison, name, their_grammar, texts, counts, title):
    """Compares the masks of one engine along the texts of a schema."""
    shown = set()
    for text in texts:
        for ours_alone, theirs_alone in comparison.compare(comparison.engines[name], their_grammar, text):
            counts["masks"] += 1
            counts["masks where llguidance is narrower"] += bool(ours_alone)
            ours_alone = [token for token in ours_alone if token not in NARROWER_THERE]
            counts["masks with a token that ours alone allows"] += bool(ours_alone)
            counts["masks where the gate is narrower"] += bool(theirs_alone)
            for token in set(ours_alone) - shown:
                shown.add(token)
                print(f"{title}: {name} alone allows {token!r} within {text[:80]!r}")


def main():
    names = sys.argv[3:] or ["server"]
    comparison = Comparison(sys.argv[1], sys.argv[2], names)
    counts = {name: collections.Counter() for name in names}
    schemas = refused = 0
    for title, schema, tests in (*corpus(), *suite()):
        if title.endswith(WRONG_THERE):
            continue
        schemas += 1
        try:
            gated, their_grammar = comparison.prepare(schema)
        except Exception:  # the engines throw all kinds of errors
            refused += 1
            continue
        orders = orders_of(gated)
        texts = [text for valid, instance in tests if valid for text in spellings(instance, orders, exact=False)[:MOST_TEXTS]]
        for name in names:
            judge(comparison, name, their_grammar, texts, counts[name], title)
    print(f"schemas: {schemas}, refused by one: {refused}")
    for name in names:
        print(f"{name}: {dict(counts[name])}")
    sys.exit(1 if any(count["masks with a token that ours alone allows"] for count in counts.values()) else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Compares masks token by token: the gate and xgrammar beside llguidance, over the valid instances of the schemas that
both serve. A token that ours allows and llguidance does not is a fault of one of the two, and is printed; where ours allows
fewer, the gate's spelling of values is narrower (docs/structured_outputs.md).

Needs the Python packages of judge_schemas.py. Usage: compare_masks.py GRAMMAR_CLI TOKENIZER_JSON
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


class Pair:
    """Both engines over one vocabulary."""

    def __init__(self, grammar_cli, tokenizer):
        import llguidance
        import numpy
        import xgrammar
        self.llguidance, self.numpy, self.xgrammar = llguidance, numpy, xgrammar
        self.tokenizer = llguidance.LLTokenizer(tokenizer)
        rows = self.tokenizer.vocab_size
        self.tokens = [b"" if self.tokenizer.is_special_token(id) else self.tokenizer.decode_bytes([id]) for id in range(rows)]
        info = xgrammar.TokenizerInfo(self.tokens, xgrammar.VocabType.RAW, vocab_size=rows,
                                      stop_token_ids=[self.tokenizer.eos_token])
        self.gate = Gate(grammar_cli)
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.mask = numpy.zeros((1, (rows + 31) // 32), dtype=numpy.int32)

    def prepare(self, schema):
        """The schema that is compiled, and a matcher of each engine; an exception where one of them refuses."""
        grammar = self.llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        theirs = self.llguidance.LLMatcher(self.tokenizer, grammar)
        if theirs.is_error():
            raise ValueError(theirs.get_error())
        compiled = self.gate.gated(schema)
        ours = self.compiler.compile_json_schema(json.dumps(compiled), any_whitespace=True, strict_mode=False)
        return compiled, ours, grammar

    def compare(self, grammar, their_grammar, text):
        """Yields (tokens that ours alone allows, tokens that llguidance alone allows) before each token of the text."""
        ours = self.xgrammar.GrammarMatcher(grammar)
        theirs = self.llguidance.LLMatcher(self.tokenizer, their_grammar)
        for token in self.tokenizer.greedy_tokenize(text):
            ours.fill_next_token_bitmask(self.mask)
            mine = self.numpy.unpackbits(self.mask.view(self.numpy.uint8), bitorder="little")
            other = self.numpy.frombuffer(theirs.compute_bitmask(), dtype=self.numpy.uint8)
            other = self.numpy.unpackbits(other, bitorder="little")
            mine, other = mine[:len(self.tokens)], other[:len(self.tokens)]
            if theirs.compute_ff_bytes():
                # Where text is forced llguidance allows its own tokens of the text alone.
                mine = other
            yield ([self.tokens[i] for i in self.numpy.flatnonzero(mine & ~other & 1)],
                   [self.tokens[i] for i in self.numpy.flatnonzero(other & ~mine & 1)])
            if not ours.accept_token(token) or not theirs.consume_token(token):
                return


def main():
    pair = Pair(sys.argv[1], sys.argv[2])
    counts = collections.Counter()
    for name, schema, tests in (*corpus(), *suite()):
        counts["schemas"] += 1
        try:
            compiled, grammar, their_grammar = pair.prepare(schema)
        except Exception:  # the engines throw what they like
            counts["refused by one"] += 1
            continue
        shown = set()
        for valid, instance in tests:
            for text in spellings(instance, orders_of(compiled), exact=False)[:MOST_TEXTS] if valid else ():
                for ours_alone, theirs_alone in pair.compare(grammar, their_grammar, text):
                    counts["masks"] += 1
                    counts["masks where llguidance is narrower"] += bool(ours_alone)
                    ours_alone = [token for token in ours_alone if token not in NARROWER_THERE]
                    counts["masks with a token that ours alone allows"] += bool(ours_alone)
                    counts["masks where the gate is narrower"] += bool(theirs_alone)
                    for token in set(ours_alone) - shown:
                        shown.add(token)
                        print(f"{name}: ours alone allows {token!r} within {text[:80]!r}")
    for what, count in counts.items():
        print(f"{what}: {count}")
    sys.exit(1 if counts["masks with a token that ours alone allows"] else 0)


if __name__ == "__main__":
    main()

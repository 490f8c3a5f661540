"""The errors that the checks of whole streams find: a test of the tests."""
import io
import json
import random
import types
import unittest

from cluster.harness.streams import KINDS, Answer, Round, event_texts, make_requests


def events(*choices, usage=None):
    texts = [json.dumps({"choices": [{"index": 0, **choice}], "usage": None}) for choice in choices]
    return texts + [json.dumps({"choices": [], "usage": usage or {"completion_tokens": len(choices)}}), "[DONE]"]


def answer(texts):
    whole = Answer()
    for text in texts:
        whole.take(text)
    whole.check_whole()
    return whole


FIRST = {"text": "a", "token_ids": [1], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": None}
LAST = {"text": "b", "token_ids": [2], "logprobs": {"token_logprobs": [-0.25]}, "finish_reason": "length"}


class Answers(unittest.TestCase):
    def test_pieces_are_joined(self):
        both = {"text": "ab", "token_ids": [1, 2], "logprobs": {"token_logprobs": [-0.5, -0.25]}, "finish_reason": "length"}
        one, two = answer(events(FIRST, LAST)), answer(events(both, usage={"completion_tokens": 2}))
        self.assertIsNone(one.difference(two))
        self.assertEqual(one.choices[0]["token_ids"], [1, 2])

    def test_every_difference_is_found(self):
        one = answer(events(FIRST, LAST))
        for change in ({"text": "c"}, {"token_ids": [3]}, {"logprobs": {"token_logprobs": [-0.125]}}, {"finish_reason": "stop"},
                       {"index": 1}):
            with self.subTest(change=change):
                texts = events({**FIRST, **change, "finish_reason": None}, {**LAST, **change, "finish_reason": "length", **change})
                self.assertIsNotNone(one.difference(answer(texts)))
        self.assertIn("usage", one.difference(answer(events(FIRST, LAST, usage={"completion_tokens": 3}))))

    def test_what_is_no_whole_answer(self):
        good = events(FIRST, LAST)
        for texts in (good[:-1], good + ["[DONE]"], good[:1] + good[2:], good[:2] + good[3:], good[:3] + good[2:],
                      good[:1] + ['{"error": {"message": "x"}}'] + good[1:], good[:2] + good[1:]):
            with self.subTest(texts=texts), self.assertRaises(AssertionError):
                answer(texts)

    def test_lines(self):
        body = io.BytesIO(b": alive\n\ndata: 1\n\ndata: [DONE]\n\n")
        self.assertEqual(list(event_texts(body)), ["1", "[DONE]"])
        with self.assertRaises(AssertionError):
            list(event_texts(io.BytesIO(b"data: 1\nnoise\n")))


class Requests(unittest.TestCase):
    def test_a_seed_gives_the_same_ones_of_every_kind(self):
        first, again = (make_requests(random.Random(3), 2 * len(KINDS), 40) for _ in range(2))
        self.assertEqual(first, again)
        self.assertEqual(len({json.dumps(request) for request in first}), 2 * len(KINDS))


class Stalls(unittest.TestCase):
    def test_the_longest_silence_counts(self):
        round_ = types.SimpleNamespace(token_times=[1.0, 2.0, 2.1, 5.0, 5.1])
        self.assertEqual(Round.stall_after(round_, 2.05), 5.0 - 2.05)
        self.assertIsNone(Round.stall_after(round_, 6.0))

"""tools/bench/perplexity.py: how a text is cut and scored, the divergence, and the comparison of two runs."""
import json
import math
import os
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "bench"))
import perplexity  # noqa: E402


def top(**shares):
    """{id: logprob} of {"t<id>": share}."""
    return {int(name[1:]): math.log(share) for name, share in shares.items()}


class FakeServer:
    """Tokens are bytes, 1 goes before a text; the next token is the prompt's own with `share`, else the following number."""

    def __init__(self, share):
        self.share, self.prompts = share, []

    def tokens(self, model, text, special):
        return [1] * special + list(text.encode())

    def prompt_logprobs(self, model, chunk):
        self.prompts.append(chunk)
        return [None] + [{str(token): {"logprob": math.log(self.share)}, str(token + 1): {"logprob": math.log(1 - self.share)}}
                         for token in chunk[1:]]


class Cutting(unittest.TestCase):
    def test_whole_chunks_alone(self):
        self.assertEqual(perplexity.cut(list(range(11)), 4), [[0, 1, 2, 3], [4, 5, 6, 7]])
        self.assertEqual(perplexity.cut(list(range(3)), 4), [])

    def test_each_begins_with_the_special_token(self):
        self.assertEqual(perplexity.cut([9, 1, 2, 3, 4, 5, 6, 7], 4, first=9), [[9, 1, 2, 3], [9, 5, 6, 7]])

    def test_the_second_half_is_scored(self):
        chunk = [10, 11, 12, 13, 14, 15, 16, 17]
        answer = FakeServer(0.5).prompt_logprobs("m", chunk)
        self.assertEqual([one["token"] for one in perplexity.positions(chunk, answer)], [15, 16, 17])

    def test_an_answer_that_does_not_fit_is_an_error(self):
        answer = FakeServer(0.5).prompt_logprobs("m", [1, 2, 3, 4, 5, 6, 7, 8])
        with self.assertRaisesRegex(ValueError, "7 entries"):
            perplexity.positions([1, 2, 3, 4, 5, 6, 7, 8], answer[:-1])
        with self.assertRaisesRegex(ValueError, "own token at position 5"):
            perplexity.positions([1, 2, 3, 4, 5, 90, 7, 8], answer)


class Numbers(unittest.TestCase):
    def test_perplexity_is_the_inverse_of_the_mean_share(self):
        run = [{"token": 3, "top": top(t3=0.25)}, {"token": 4, "top": top(t4=0.25, t5=0.5)}]
        value, error = perplexity.perplexity(run)
        self.assertAlmostEqual(value, 4)
        self.assertAlmostEqual(error, 0)

    def test_divergence(self):
        full, other = top(t1=0.5, t2=0.5), top(t1=0.25, t2=0.75)
        self.assertAlmostEqual(perplexity.divergence(full, full), 0)
        self.assertAlmostEqual(perplexity.divergence(full, other), 0.5 * math.log(2) + 0.5 * math.log(2 / 3))
        # A token that only one list has is part of the rest: 0.4 and 0.2 here.
        self.assertAlmostEqual(perplexity.divergence(top(t1=0.6, t2=0.3), top(t1=0.8, t3=0.1)),
                               0.6 * math.log(0.6 / 0.8) + 0.4 * math.log(0.4 / 0.2))
        self.assertGreaterEqual(perplexity.divergence(top(t1=0.9), top(t2=0.9)), 0)

    def test_compare(self):
        reference = [{"token": 1, "top": top(t1=0.5, t2=0.5 - 1e-12)}, {"token": 2, "top": top(t1=0.9, t2=0.1 - 1e-12)}]
        same = perplexity.compare(reference, reference)
        self.assertAlmostEqual(same["mean_kl"], 0)
        self.assertEqual((same["same_top"], same["perplexity_ratio"]), (1, 1))
        moved = [reference[0], {"token": 2, "top": top(t1=0.4, t2=0.6 - 1e-12)}]
        result = perplexity.compare(moved, reference)
        self.assertEqual(result["same_top"], 0.5)
        self.assertAlmostEqual(result["max_kl"], 0.9 * math.log(0.9 / 0.4) + 0.1 * math.log(0.1 / 0.6), places=6)
        self.assertAlmostEqual(result["mean_kl"], result["max_kl"] / 2, places=6)
        with self.assertRaisesRegex(ValueError, "other tokens"):
            perplexity.compare(moved[::-1], reference)

    def test_what_llama_perplexity_prints(self):
        text = "[1]8.1,[2]9.0,\nFinal estimate: PPL = 18.4433 +/- 0.51234\n\nllama_perf_context_print: load"
        self.assertEqual(perplexity.peer_perplexity(text), (18.4433, 0.51234))
        with self.assertRaisesRegex(ValueError, "no final estimate"):
            perplexity.peer_perplexity("error: failed to load")


class Runs(unittest.TestCase):
    def test_a_text_through_a_server(self):
        server = FakeServer(0.25)
        run = perplexity.measure(server, "m", "abcdefghijklmnopqrstuvwxyz", 8)
        self.assertEqual([len(prompt) for prompt in server.prompts], [8, 8, 8])
        self.assertEqual([prompt[0] for prompt in server.prompts], [1, 1, 1])
        self.assertEqual(len(run), 9)
        self.assertAlmostEqual(perplexity.perplexity(run)[0], 4)
        with self.assertRaisesRegex(ValueError, "less than --ctx"):
            perplexity.measure(server, "m", "abc", 8)

    def test_a_saved_run_is_read_back(self):
        run = perplexity.measure(FakeServer(0.25), "m", "abcdefghijklmnop", 8)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"positions": run}, file)
            self.assertEqual(perplexity.read_run(path), run)

    def test_the_text_is_long_enough(self):
        with open(perplexity.TEXT, encoding="utf-8") as file:
            self.assertGreater(len(file.read().split()), 1500)


if __name__ == "__main__":
    unittest.main()

"""Tokens and log-probabilities of the tiny checkpoints, through HTTP and the whole cluster, against the reference."""
import concurrent.futures
import unittest

from cluster.harness import Cluster, expected, tiny

MODELS = ("llama-uneven", "llama-rope3", "qwen2", "qwen3", "opt")
FLOAT32 = "--dtype=float32"


def assert_tokens(test, case, tokens):
    """Equal to the reference, or different from a position on that the reference calls ambiguous."""
    if tokens == case["tokens"]:
        return
    first = next(i for i, pair in enumerate(zip(tokens + [None], case["tokens"] + [None])) if pair[0] != pair[1])
    test.assertIn(first, case["ambiguous"], f"{case['name']}: {tokens} is not {case['tokens']}")


class Tokens(unittest.TestCase):
    def check_model(self, model, workers, *flags):
        cases = expected(model)
        with Cluster(tiny(model), FLOAT32, *flags, workers=workers) as cluster:
            def ask(case):
                return cluster.complete(case["prompt"], ignore_eos=case["ignore_eos"])
            with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
                answers = list(pool.map(ask, cases))
            for case, answer in zip(cases, answers):
                with self.subTest(case=case["name"]):
                    choice = answer["choices"][0]
                    assert_tokens(self, case, choice["token_ids"])
                    self.assertEqual(choice["finish_reason"], case["finish_reason"])
                    self.assertEqual(answer["usage"]["prompt_tokens"], len(case["prompt"]))
            self.assertEqual(cluster.stop(), 0)

    def test_options_do_not_change_tokens(self):
        # The last cache holds a single longest sequence and little more: the six wait for each other or are preempted.
        for flags in (("--async-scheduling=false", "--max-num-batched-tokens=16", "--max-num-seqs=4"),
                      ("--async-scheduling", "--max-num-batched-tokens=64", "--enable-prefix-caching=false", "--max-num-seqs=3"),
                      ("--block-size=4", "--max-num-seqs=2", "--threads-per-worker=2"),
                      ("--kv-cache-memory-bytes=300KiB",)):
            with self.subTest(flags=flags):
                self.check_model("llama-uneven", 2, *flags)

    def test_prompt_logprobs(self):
        for model in MODELS:
            cases = expected(model)
            with Cluster(tiny(model), FLOAT32, workers=2) as cluster:
                for case in cases:
                    answer = cluster.complete(case["prompt"], echo=True, logprobs=1, max_tokens=1)
                    got = answer["choices"][0]["logprobs"]["token_logprobs"][:len(case["prompt"])]
                    with self.subTest(model=model, case=case["name"]):
                        self.assertEqual(len(got), len(case["prompt"]))
                        self.assertIsNone(got[0])
                        for position, (ours, reference) in enumerate(zip(got[1:], case["prompt_logprobs"][1:]), 1):
                            self.assertAlmostEqual(ours, reference, delta=1e-3, msg=f"position {position}")

    def test_repeated_prompt_hits_the_prefix_cache(self):
        case = next(case for case in expected("llama-uneven") if case["name"] == "prompt-200")
        with Cluster(tiny("llama-uneven"), FLOAT32, workers=2) as cluster:
            first = cluster.complete(case["prompt"], ignore_eos=case["ignore_eos"])
            self.assertEqual(cluster.metric("vllm:prefix_cache_hits_total"), 0)
            again = cluster.complete(case["prompt"], ignore_eos=case["ignore_eos"])
            self.assertGreaterEqual(cluster.metric("vllm:prefix_cache_hits_total"), 160)
            for answer in (first, again):
                assert_tokens(self, case, answer["choices"][0]["token_ids"])


def _add(model, workers):
    def test(self):
        self.check_model(model, workers)
    setattr(Tokens, f"test_{model.replace('-', '_')}_on_{workers}_workers", test)


for _model in MODELS:
    _add(_model, 2)
for _workers in (1, 3, 4):
    _add("llama-uneven", _workers)
    _add("qwen3", _workers)

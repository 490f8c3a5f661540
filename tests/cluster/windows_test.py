"""Models with windows through whole clusters, where every layer has one and where one layer has none: the tokens of an
undisturbed run after sleeps that keep the KV cache, preemption by recompute, hits of the prefix cache behind blocks that were
given back, and guesses of a draft model. crossings_test.py has the other disturbances."""
import os
import signal
import unittest

from cluster.harness import Cluster, tiny, wait_until
from cluster.harness.together import Together, complete, prompt
from cluster.harness.windows import window_checkpoint

MODEL = "qwen3"
BLOCK_BYTES = 8192  # of each of two ranks, in float32
GIVEN_BACK = "somnus:kv_blocks_given_back_total"
GREEDY = {"temperature": 0, "ignore_eos": True}
SAMPLED = {"temperature": 0.9, "ignore_eos": True}
LONG = {"prompt": prompt(3, 90), "max_tokens": 350, **GREEDY}
REQUESTS = [
    LONG,
    {"prompt": prompt(5, 64), "max_tokens": 200, "seed": 17, **SAMPLED},
    {"prompt": prompt(7, 37), "max_tokens": 60, "n": 3, "seed": 5, **SAMPLED},
    {"prompt": prompt(9, 120), "max_tokens": 90, "logprobs": 2, **GREEDY},
]
ATTEMPTS = 20  # a fast machine may have ended the requests before the disturbance came


def answers(cluster, body):
    return [(choice["token_ids"], choice["finish_reason"], choice["logprobs"]) for choice in complete(cluster, body)]


class Windows(unittest.TestCase):
    """Every layer has a window: running sequences give blocks back."""

    layer_types = None

    @classmethod
    def setUpClass(cls):
        cls.model = window_checkpoint(cls, MODEL, cls.layer_types)
        with cls.cluster() as cluster:
            cls.wanted = [answers(cluster, body) for body in REQUESTS]
            assert (cluster.metric(GIVEN_BACK) > 0) == (cls.layer_types is None)

    @classmethod
    def cluster(cls, *flags, blocks=300):
        return Cluster(cls.model, "--dtype=float32", f"--kv-cache-memory-bytes={(blocks + 1) * BLOCK_BYTES}", "--max-num-seqs=16",
                       *flags, workers=2)

    def disturbed(self, cluster, disturb):
        """Calls disturb() in the middle of requests, until some were open then; every answer is as wanted."""
        for _ in range(ATTEMPTS):
            before = cluster.metric("vllm:generation_tokens_total")
            asked = Together(cluster, REQUESTS, answers)
            wait_until(lambda: asked.ended() or cluster.metric("vllm:generation_tokens_total") > before + 60, 60, "tokens come")
            disturb()
            struck = not asked.ended()
            self.assertEqual(asked.join(), self.wanted)
            if struck:
                return cluster.wait_idle()
        return self.fail(f"the requests had ended before, in {ATTEMPTS} attempts")

    def test_the_window_tells(self):
        with Cluster(tiny(MODEL), "--dtype=float32", workers=1) as cluster:
            self.assertNotEqual(answers(cluster, LONG), self.wanted[0])

    def test_a_sleep_that_keeps_the_cache(self):
        with self.cluster("--keep-kv-on-sleep") as cluster:
            for paths in (["/sleep?level=1&mode=keep", "/wake_up"], ["/sleep?level=2&mode=keep", "/wake_up"],
                          ["/reload_weights?mode=keep"]):
                with self.subTest(paths):
                    self.disturbed(cluster, lambda paths=paths: [cluster.admin(path) for path in paths])

    def test_preemption_by_recompute(self):
        # A sequence alone fits: where there are only windows, with less than its tokens.
        blocks, chunk = (29, 512) if self.layer_types else (10, 64)
        with self.cluster("--preemption=recompute", f"--max-num-batched-tokens={chunk}", blocks=blocks) as cluster:
            longest = cluster.request("GET", "/v1/models").json["data"][0]["max_model_len"]
            self.assertEqual(longest, 29 * 16 if self.layer_types else 512)
            for _ in range(ATTEMPTS):
                self.assertEqual(Together(cluster, REQUESTS, answers).join(), self.wanted)
                if cluster.metric("somnus:preemptions_total", mode="recompute"):
                    break
            self.assertGreater(cluster.metric("somnus:preemptions_total", mode="recompute"), 0)
            cluster.wait_idle()

    def test_a_hit_behind_blocks_that_were_given_back(self):
        with self.cluster() as cluster:
            self.assertEqual(answers(cluster, LONG), self.wanted[0])
            tokens = LONG["prompt"] + self.wanted[0][0][0]
            whole = cluster.complete(tokens[:200], max_tokens=240, ignore_eos=True)
            self.assertEqual(whole["choices"][0]["token_ids"], tokens[200:440])
            self.assertEqual(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 192)

    def test_guesses_of_a_draft_model(self):
        # Without windows the same model guesses well.
        with self.cluster("--max-recoveries=100", "--speculative=draft", f"--draft-model={tiny(MODEL)}", "--num-speculative-tokens=4",
                          "--no-drafts-must-pay", blocks=600) as cluster:
            self.assertEqual([answers(cluster, body) for body in REQUESTS], self.wanted)
            self.disturbed(cluster, lambda: os.kill(cluster.worker_pids()[1], signal.SIGKILL))
            cluster.wait_ready()
            self.assertGreater(cluster.metric("vllm:spec_decode_num_draft_tokens_total"), 0)


class SomeWindows(Windows):
    """A layer without a window, as Gemma 3 has: nothing is given back, and rotary embeddings are the same."""

    layer_types = ["sliding_attention", "full_attention"]

"""Models with windows through whole clusters, where every layer has one and where one layer has none: the tokens of an
undisturbed run after killed workers, sleeps, reloads, updates of the weights, preemption, hits of the prefix cache, guesses, and
with structured output."""
import os
import re
import signal
import unittest

from cluster.harness import Cluster, served_weights, tiny, wait_until
from cluster.harness.other_weights import tensors_of
from cluster.harness.served_weights import DEADLINE_S, grpc
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
STRUCTURED = [{"prompt": prompt(first, 50), "max_tokens": 400, "temperature": 0, "structured_outputs": {"regex": "(ab|[c-f]|[0-9]){200}"}}
              for first in (11, 12)]
ATTEMPTS = 20  # a fast machine may have ended the requests before the disturbance came


def setUpModule():
    global pb, rpc
    pb = served_weights.generate_stubs()
    rpc = served_weights.rpc


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

    def disturbed(self, cluster, disturb, requests=None, wanted=None):
        """Calls disturb() in the middle of requests, until some were open then; every answer is as wanted."""
        for _ in range(ATTEMPTS):
            before = cluster.metric("vllm:generation_tokens_total")
            asked = Together(cluster, requests or REQUESTS, answers)
            wait_until(lambda: asked.ended() or cluster.metric("vllm:generation_tokens_total") > before + 60, 60, "tokens come")
            disturb()
            struck = not asked.ended()
            self.assertEqual(asked.join(), wanted or self.wanted)
            if struck:
                return cluster.wait_idle()
        return self.fail(f"the requests had ended before, in {ATTEMPTS} attempts")

    def test_the_window_tells(self):
        with Cluster(tiny(MODEL), "--dtype=float32", workers=1) as cluster:
            self.assertNotEqual(answers(cluster, LONG), self.wanted[0])

    def test_killed_workers(self):
        with self.cluster("--max-recoveries=100") as cluster:
            for rank in (0, 1):
                self.disturbed(cluster, lambda rank=rank: os.kill(cluster.worker_pids()[rank], signal.SIGKILL))
                cluster.wait_ready()

    def test_sleeps_reloads_and_an_update(self):
        def sleep(level):
            for path in (f"/sleep?level={level}&mode=keep", "/wake_up"):
                cluster.admin(path)
        for flags in ((), ("--keep-kv-on-sleep",)):
            with self.subTest(flags), self.cluster(*flags) as cluster:
                for level in (1, 2):
                    self.disturbed(cluster, lambda level=level: sleep(level))
                self.disturbed(cluster, lambda: cluster.admin("/reload_weights?mode=keep"))
                self.disturbed(cluster, lambda: self.update(cluster))
                self.assertGreaterEqual(int(cluster.status()["weights_version"]), 3)

    def update(self, cluster):
        """All weights come again, as they are, while requests are kept."""
        def messages():
            yield pb.UpdateWeightsRequest(begin=pb.UpdateWeightsRequest.Begin(mode=pb.SLEEP_MODE_KEEP))
            for name, shape, data in tensors_of(self.model):
                chunk = served_weights.weights_pb.WeightChunk(name=name, shape=shape, data=data)
                chunk.dtype = served_weights.weights_pb.WEIGHT_DTYPE_BFLOAT16
                yield pb.UpdateWeightsRequest(chunk=chunk)
            yield pb.UpdateWeightsRequest(finish=pb.UpdateWeightsRequest.Finish())
        with grpc.insecure_channel(f"127.0.0.1:{cluster.control_port}") as channel:
            rpc.ControlServiceStub(channel).UpdateWeights(messages(), timeout=DEADLINE_S)

    def test_preemption(self):
        for mode in ("recompute", "swap"):
            # A sequence alone fits: where there are only windows, with less than its tokens.
            blocks, chunk = (29, 512) if self.layer_types else (10, 64)
            with self.subTest(mode), self.cluster(f"--preemption={mode}", f"--max-num-batched-tokens={chunk}", blocks=blocks) as cluster:
                longest = cluster.request("GET", "/v1/models").json["data"][0]["max_model_len"]
                self.assertEqual(longest, 29 * 16 if self.layer_types else 512)
                for _ in range(ATTEMPTS):
                    self.assertEqual(Together(cluster, REQUESTS, answers).join(), self.wanted)
                    if cluster.metric("somnus:preemptions_total", mode=mode):
                        break
                self.assertGreater(cluster.metric("somnus:preemptions_total", mode=mode), 0)
                cluster.wait_idle()

    def test_a_hit_behind_blocks_that_were_given_back(self):
        with self.cluster() as cluster:
            self.assertEqual(answers(cluster, LONG), self.wanted[0])
            tokens = LONG["prompt"] + self.wanted[0][0][0]
            whole = cluster.complete(tokens[:200], max_tokens=240, ignore_eos=True)
            self.assertEqual(whole["choices"][0]["token_ids"], tokens[200:440])
            self.assertEqual(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 192)

    def test_guesses(self):
        lookup = ("--num-speculative-tokens=6", "--no-drafts-must-pay", "--prompt-lookup-min=1", "--prompt-lookup-max=4")
        # Without windows the same model guesses well.
        draft = ("--speculative=draft", f"--draft-model={tiny(MODEL)}", "--num-speculative-tokens=4", "--no-drafts-must-pay")
        for flags in (lookup, draft):
            with self.subTest(flags[0]), self.cluster("--max-recoveries=100", *flags, blocks=600) as cluster:
                self.assertEqual([answers(cluster, body) for body in REQUESTS], self.wanted)
                self.disturbed(cluster, lambda: os.kill(cluster.worker_pids()[1], signal.SIGKILL))
                cluster.wait_ready()
                self.assertGreater(cluster.metric("vllm:spec_decode_num_draft_tokens_total"), 0)

    def test_structured_output(self):
        with self.cluster("--max-recoveries=100") as cluster:
            wanted = [answers(cluster, body) for body in STRUCTURED]
            for body in STRUCTURED:
                text = complete(cluster, body)[0]["text"]
                self.assertIsNotNone(re.fullmatch("(ab|[c-f]|[0-9]){200}", text), text)
            self.disturbed(cluster, lambda: os.kill(cluster.worker_pids()[0], signal.SIGKILL), STRUCTURED, wanted)
            cluster.wait_ready()
            self.disturbed(cluster, lambda: [cluster.admin(path) for path in ("/sleep?level=1&mode=keep", "/wake_up")],
                           STRUCTURED, wanted)


class SomeWindows(Windows):
    """A layer without a window, as Gemma 3 has: nothing is given back, and rotary embeddings are the same."""

    layer_types = ["sliding_attention", "full_attention"]


if __name__ == "__main__":
    unittest.main()

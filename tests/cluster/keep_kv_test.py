"""A KV cache that outlives level-1 sleeps, through the whole cluster: the same tokens, and nothing is computed again.
EngineKeepTest (tests/engine) has level 2 and resets, and transition_faults_test.py has the rank that is lost."""
import os
import random
import threading
import unittest

from cluster.harness import BIN, Cluster, expected, tiny

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
EMULATED = os.path.join(BIN, "tests", "cuda", "emulated_worker")


ATTEMPTS = 10


class Ended(Exception):
    """The machine was so fast, or the test so slow, that a stream had ended before the engine slept."""


class Stream:
    """A streamed completion; `tokens` grows with each event."""

    def __init__(self, cluster, prompt, max_tokens):
        self.prompt, self.max_tokens, self.tokens, self.error = prompt, max_tokens, [], None
        self.events = cluster.open_stream(prompt, max_tokens=max_tokens, return_token_ids=True, temperature=0).events()
        self.take(next(self.events))
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def take(self, event):
        for choice in event["choices"]:
            self.tokens += choice.get("token_ids") or []

    def read(self):
        try:
            for event in self.events:
                self.take(event)
        except BaseException as error:  # shown by the joining thread
            self.error = error

    def join(self):
        self.thread.join(120)
        if self.error:
            raise self.error
        return self.tokens


class Counters:
    """How much the metrics have grown since."""

    NAMES = {"computed": "vllm:iteration_tokens_total_sum", "preempted": "vllm:num_preemptions_total",
             "kept_blocks": "somnus:kv_blocks_kept_total", "kept_tokens": "somnus:kv_tokens_kept_total"}

    def __init__(self, cluster):
        self.cluster, self.before = cluster, self.read(cluster)

    @classmethod
    def read(cls, cluster):
        return {name: cluster.metric(metric) or 0 for name, metric in cls.NAMES.items()}

    def grown(self):
        now = self.read(self.cluster)
        return {name: now[name] - self.before[name] for name in now}


class KeepKv(unittest.TestCase):
    def sleep(self, cluster, level=1, **more):
        query = "&".join([f"level={level}", *(f"{name}={value}" for name, value in more.items() if value)])
        response = cluster.request("POST", f"/sleep?{query}", port=cluster.admin_port)
        self.assertEqual(response.status, 200, response.text)
        return response.json

    def wake(self, cluster, tags=""):
        response = cluster.request("POST", "/wake_up" + (f"?tags={tags}" if tags else ""), port=cluster.admin_port)
        self.assertEqual(response.status, 200, response.text)
        return response.json

    def must_be_open(self, cluster, count):
        status = cluster.status()
        if status["num_requests_running"] + status["num_requests_waiting"] < count:
            raise Ended()

    def assert_open_requests_go_on(self, cluster, requests, naps):
        """Streams `requests`, (prompt, max_tokens) each, and calls every nap while the requests run. Then each has the same
        tokens as undisturbed; returns how the counters have grown, and how many tokens there are to compute."""
        wanted = [cluster.tokens(prompt, max_tokens=count, ignore_eos=True) for prompt, count in requests]
        for attempt in range(ATTEMPTS):
            cluster.admin("/reset_prefix_cache")
            counters = Counters(cluster)
            streams = [Stream(cluster, prompt, count) for prompt, count in requests]
            try:
                for nap in naps:
                    nap()
            except Ended:
                self.wake(cluster)
                for stream in streams:
                    stream.join()
                continue
            self.assertEqual([stream.join() for stream in streams], wanted)
            # The last token of each is not computed.
            return counters.grown(), sum(len(prompt) + count - 1 for prompt, count in requests)
        self.fail(f"no stream was open at a sleep, in {ATTEMPTS} attempts")

    def nap(self, cluster, requests=1):
        """A sleep and a wake-up of everything, with open requests."""
        report = self.sleep(cluster)
        self.must_be_open(cluster, requests)
        self.assertGreater(cluster.metric("somnus:kv_host_blocks_used"), 0)
        for rank in report["ranks"]:
            self.assertGreater(rank["tags"]["kv_cache"]["backed_up_bytes"], 0)
            self.assertGreater(rank["tags"]["kv_cache"]["freed_bytes"], 0)
        self.wake(cluster)
        self.assertEqual(cluster.metric("somnus:kv_host_blocks_used"), 0)

    def check_model(self, cluster, requests):
        grown, tokens = self.assert_open_requests_go_on(cluster, requests, [lambda: self.nap(cluster)] * 3)
        self.assertEqual((grown["computed"], grown["preempted"]), (tokens, 0))
        self.assertGreaterEqual(grown["kept_tokens"], 3 * min(len(prompt) for prompt, _ in requests))
        self.assertGreater(grown["kept_blocks"], 0)

    def test_two_ranks_compute_nothing_again(self):
        one = [(CASE["prompt"], 480)]
        with Cluster(tiny(MODEL), "--dtype=float32", "--keep-kv-on-sleep", workers=2) as cluster:
            with self.subTest("open requests"):
                self.check_model(cluster, [(CASE["prompt"], 480), ([7, 8, 9] * 11, 460), ([5], 490)])
            with self.subTest("the prefix cache"):
                prompt = [11, 12, 13, 14] * 12
                cluster.tokens(prompt, max_tokens=1, ignore_eos=True)
                self.sleep(cluster)
                self.wake(cluster)
                usage = cluster.complete(prompt, max_tokens=1, ignore_eos=True)["usage"]
                self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 32)
            with self.subTest("tags one by one"):
                def by_tags():
                    self.sleep(cluster, tags="weights")
                    self.must_be_open(cluster, 1)
                    self.sleep(cluster, tags="kv_cache")
                    self.wake(cluster, tags="weights")
                    self.wake(cluster)
                grown, tokens = self.assert_open_requests_go_on(cluster, one, [by_tags])
                self.assertEqual(grown["computed"], tokens)
            with self.subTest("random sleeps"):
                rng = random.Random(7)

                def somehow():
                    self.sleep(cluster, level=rng.choice((1, 1, 1, 2)), tags=rng.choice(("weights", "kv_cache", "")))
                    self.wake(cluster)
                self.assert_open_requests_go_on(cluster, [(CASE["prompt"], 480), ([3] * 40, 460)], [somehow] * 12)
            self.assertEqual(cluster.stop(), 0)

    def test_every_replica_has_a_tier_of_its_own(self):
        with Cluster(tiny(MODEL), "--dtype=float32", "--keep-kv-on-sleep", "--data-parallel-size=2", workers=1) as cluster:
            self.check_model(cluster, [([number] * 20, 480) for number in range(3, 7)])
            self.assertEqual(cluster.stop(), 0)

    @unittest.skipUnless(os.path.exists(EMULATED), "no emulated GPU was built")
    def test_emulated_gpus_keep_it_in_pinned_memory(self):
        with Cluster(tiny(MODEL), "--device=cuda", f"--worker-binary={EMULATED}", "--graph-sizes=1,2,4", "--dtype=float32",
                     "--max-num-seqs=4", "--max-num-batched-tokens=32", "--max-model-len=128", "--kv-cache-memory-bytes=1MiB",
                     "--keep-kv-on-sleep", workers=2) as cluster:
            self.check_model(cluster, [(CASE["prompt"], 40)])
            self.assertEqual(cluster.stop(), 0)

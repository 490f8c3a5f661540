"""Preemption by swap through whole clusters: the same tokens with every way of making room and with room for all, also over
sleeps, and no host memory that no request wants. crossings_test.py kills workers meanwhile."""
import unittest

from cluster.harness import Cluster, tiny
from cluster.harness.together import Together, complete, prompt

MODEL = "qwen3"
BLOCK_BYTES = 8192  # the larger of the two ranks, in float32
TIGHT = 28          # blocks: any of the requests fits alone, and three do not fit together
LARGE = 1000
SWAPPING = "--preemption=swap"

GREEDY = {"temperature": 0, "ignore_eos": True}
SAMPLED = {"temperature": 0.9, "ignore_eos": True}
REQUESTS = [
    {"prompt": prompt(3, 20), "max_tokens": 150, **GREEDY},
    {"prompt": prompt(5, 64), "max_tokens": 110, "seed": 17, **SAMPLED},
    {"prompt": prompt(7, 37), "max_tokens": 60, "n": 4, "seed": 5, **SAMPLED},  # forks with copies of the last block
    {"prompt": prompt(9, 120), "max_tokens": 90, **GREEDY},
    {"prompt": prompt(9, 120) + [1, 2, 3], "max_tokens": 80, "logprobs": 2, **GREEDY},
    {"prompt": prompt(13, 33), "max_tokens": 130, "seed": 18, **SAMPLED},
    {"prompt": prompt(15, 48), "max_tokens": 100, **GREEDY},
]
BEAMS = {"prompt": prompt(11, 50), "max_tokens": 40, "n": 5, "use_beam_search": True, "temperature": 1, "ignore_eos": True}


def cluster_of(blocks, *flags, **more):
    # The null block counts, too.
    return Cluster(tiny(MODEL), "--dtype=float32", f"--kv-cache-memory-bytes={(blocks + 1) * BLOCK_BYTES}", "--max-num-seqs=16", *flags,
                   workers=2, **more)


def answers(cluster, body):
    return [(choice["token_ids"], choice["finish_reason"], choice["logprobs"]) for choice in complete(cluster, body)]


def together(cluster, requests=REQUESTS):
    return Together(cluster, requests, answers)


class Swap(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with cluster_of(LARGE) as cluster:
            cls.wanted = [answers(cluster, body) for body in REQUESTS]
            cls.wanted_beams = answers(cluster, BEAMS)
            if together(cluster).join() != cls.wanted:
                raise AssertionError("with room for all, the requests have other tokens together than alone")
            assert cluster.metric("vllm:num_preemptions_total") == 0

    def preemptions(self, cluster, mode):
        return cluster.metric("somnus:preemptions_total", mode=mode)

    def swapped(self, cluster, direction):
        return cluster.metric("somnus:swapped_blocks_total", direction=direction)

    def host_blocks(self, cluster):
        return cluster.metric("somnus:kv_host_blocks_used")

    def host_bytes(self, cluster):
        """The bytes of the host tiers, as the ranks say, and as the engine does."""
        ranks = sum(int(rank["host_bytes_by_tag"]["kv_cache"]) for rank in cluster.status()["ranks"])
        return ranks, cluster.metric("somnus:host_bytes", tag="kv_cache")

    def assert_nothing_is_left(self, cluster):
        cluster.wait_idle()
        self.assertEqual(self.host_blocks(cluster), 0)
        ranks, engine = self.host_bytes(cluster)
        self.assertEqual(ranks, engine)

    def while_swapped(self, cluster, act, attempts=20):
        """Calls `act` while requests are open and a request is swapped out, until `act` returns true."""
        for _ in range(attempts):
            asked, done = together(cluster), False
            while not asked.ended() and not done:
                done = self.host_blocks(cluster) > 0 and act(asked)
            self.assertEqual(asked.join(), self.wanted)
            if done:
                return
        self.fail(f"no request was swapped out, in {attempts} attempts")

    def test_recompute(self):
        with cluster_of(TIGHT, "--preemption=recompute") as cluster:
            self.assertEqual(together(cluster).join(), self.wanted)
            self.assertGreater(self.preemptions(cluster, "recompute"), 0)
            self.assertEqual(self.preemptions(cluster, "swap"), 0)
            self.assertEqual(self.swapped(cluster, "out"), 0)
            self.assert_nothing_is_left(cluster)
            self.assertEqual(self.host_bytes(cluster), (0, 0))

    def test_swap_computes_nothing_again(self):
        for more in ((), ("--no-enable-prefix-caching", "--no-async-scheduling")):
            with self.subTest(more), cluster_of(TIGHT, SWAPPING, *more) as cluster:
                self.assertEqual(together(cluster).join(), self.wanted)
                self.assertGreater(self.preemptions(cluster, "swap"), 0)
                self.assertEqual(self.preemptions(cluster, "recompute"), 0)
                self.assertEqual(cluster.metric("somnus:swaps_declined_total"), 0)
                self.assertGreater(self.swapped(cluster, "out"), 0)
                self.assertGreater(self.swapped(cluster, "in"), 0)
                if more:  # else the prefix cache may have had some blocks
                    self.assertEqual(self.swapped(cluster, "in"), self.swapped(cluster, "out"))
                self.assert_nothing_is_left(cluster)
                self.assertGreater(self.host_bytes(cluster)[0], 0)
                # No request wants the blocks there.
                cluster.admin("/sleep?level=1")
                self.assertEqual(self.host_bytes(cluster), (0, 0))
                cluster.admin("/wake_up")
                self.assertEqual(answers(cluster, REQUESTS[0]), self.wanted[0])

    def test_auto_is_the_default(self):
        with cluster_of(TIGHT) as cluster:
            self.assertEqual(together(cluster).join(), self.wanted)
            made, modes = cluster.metric("vllm:num_preemptions_total"), [self.preemptions(cluster, mode) for mode in ("swap", "recompute")]
            self.assertGreater(made, 0)
            self.assertEqual(sum(modes), made)
            # A measured price alone keeps a request from being swapped out.
            self.assertEqual(cluster.metric("somnus:swaps_declined_total"), modes[1])
            self.assertEqual(cluster.metric("somnus:swaps_declined_total", reason="price"), modes[1])
            self.assert_nothing_is_left(cluster)

    def test_beams_are_swapped_as_others_are(self):
        with cluster_of(TIGHT, SWAPPING) as cluster:
            beams = together(cluster, [BEAMS, *REQUESTS]).join()
            self.assertEqual(beams, [self.wanted_beams, *self.wanted])
            self.assertGreater(self.preemptions(cluster, "swap"), 0)
            # A sequence that comes back and finds no blocks to go on may have to leave in the same step.
            declined = cluster.metric("somnus:swaps_declined_total")
            self.assertEqual(declined, cluster.metric("somnus:swaps_declined_total", reason="step_full"))
            self.assertEqual(self.preemptions(cluster, "recompute"), declined)
            self.assert_nothing_is_left(cluster)

    def returns_after_others(self, cluster):
        """Asks for a long prompt, for prompts that take the blocks, and for the first again; how many tokens came from the host then."""
        returning, others = REQUESTS[3], [i for i in range(len(REQUESTS)) if i not in (3, 4)]
        self.assertEqual(answers(cluster, returning), self.wanted[3])
        for i in others:
            self.assertEqual(answers(cluster, REQUESTS[i]), self.wanted[i])
        before = cluster.metric("somnus:prefix_cache_host_hits_total")
        self.assertEqual(answers(cluster, returning), self.wanted[3])
        return cluster.metric("somnus:prefix_cache_host_hits_total") - before

    def cached_on_host(self, cluster):
        cluster.wait_idle()
        return cluster.metric("somnus:kv_host_blocks_cached")

    def test_cached_prefixes_come_back_from_host_memory(self):
        for more in ((), ("--no-async-scheduling", f"--swap-space={80 * BLOCK_BYTES}")):
            with self.subTest(more), cluster_of(TIGHT, "--prefix-cache-on-host=on", *more) as cluster:
                self.assertGreater(self.returns_after_others(cluster), 16)
                self.assertEqual(together(cluster).join(), self.wanted)
                self.assertGreater(self.cached_on_host(cluster), 0)
                self.assertEqual(self.cached_on_host(cluster), self.host_blocks(cluster))
                self.assertGreater(cluster.metric("somnus:prefix_cache_host_blocks_total", event="stored"), 0)
                cluster.admin("/reset_prefix_cache")
                self.assertEqual(self.cached_on_host(cluster), 0)
                self.assertGreater(self.returns_after_others(cluster), 16)
                cluster.admin("/sleep?level=1")  # keeps nothing
                self.assertEqual(self.host_bytes(cluster), (0, 0))
                cluster.admin("/wake_up")
                self.assertEqual(self.cached_on_host(cluster), 0)

    def test_a_sleep_that_keeps_the_cache_keeps_what_is_swapped_out(self):
        with cluster_of(TIGHT, SWAPPING, "--keep-kv-on-sleep") as cluster:
            naps = []

            def nap(_):
                cluster.admin("/sleep?level=1&mode=keep")
                swapped = self.host_blocks(cluster)
                ranks, engine = self.host_bytes(cluster)
                self.assertEqual(ranks, engine)
                cluster.admin("/wake_up")
                naps.append(swapped)
                return len(naps) >= 3
            self.while_swapped(cluster, nap)
            self.assertEqual(self.preemptions(cluster, "recompute"), 0)
            self.assertGreater(max(naps), 0)
            self.assert_nothing_is_left(cluster)

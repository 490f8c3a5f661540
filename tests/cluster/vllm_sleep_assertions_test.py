"""The assertions of vLLM's own tests about sleep mode, pause and resume, on a served cluster. Each case has vLLM's name.

vLLM's tests use torch's allocator, or the engine as a Python object; here the same is asked over HTTP, and memory is what the
kernel counts. Not here, because there is nothing of the kind to ask:
  test_mem.py: CUDA graphs after a sleep (emulated_gpu_test.py has them); LoRA at level 2, its extra cycles and with two ranks
    (there are no adapters); reload_weights by collective_rpc after level 2 (controllers_test.py has it).
  test_sleep_mode_backend.py: the registry of allocators, unknown and duplicate names (there is one allocator, built in); its
    states are below.
  test_async_llm_dp.py: the race of staggered engines and the barrier between them (replicas share one queue and no barrier).
  weight transfer: calls out of order, NCCL, IPC, packed and sparse transfers belong to updates of weights, not to sleep.
"""
import concurrent.futures
import math
import re
import time
import unittest

from cluster.harness import SMOLLM2, Cluster, expected, tiny, wait_until
from cluster.pause_test import Asking
from cluster.poison_test import FaultyCluster
from cluster.sleep_cycles_test import holdings

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if not case["ambiguous"])
PROMPT = "The capital of France is"
KV_CACHE = "--kv-cache-memory-bytes=64MiB"
AWAKE, OFFLOADED, DISCARDED = (1, 0, 0), (0, 1, 0), (0, 0, 1)
# The weights are back and the cache sleeps: vLLM keeps saying weights_offloaded until all memory is awake.
RESIDENT = (0, 0, 0)
PAUSE_S = 0.5


def admin(cluster, target, body=None, method="POST"):
    answer = cluster.request(method, target, body, port=cluster.admin_port)
    if answer.status != 200:
        raise AssertionError(f"{target}: HTTP {answer.status}: {answer.text[:500]}")
    return answer.json


def is_sleeping(cluster):
    return admin(cluster, "/is_sleeping", method="GET")["is_sleeping"]


def gauge(cluster):
    """engine_sleep_state as (awake, weights_offloaded, discard_all)."""
    text = cluster.request("GET", "/metrics").text
    return tuple(int(float(re.search(rf'(?m)^vllm:engine_sleep_state\{{[^}}]*sleep_state="{name}"[^}}]*\}} (\S+)$', text).group(1)))
                 for name in ("awake", "weights_offloaded", "discard_all"))


def components(cluster):
    """engine_sleep_component_state: the state of the scheduler, of the weights and of the KV cache."""
    text = cluster.request("GET", "/metrics").text
    states = re.findall(r'(?m)^vllm:engine_sleep_component_state\{component="(\w+)",[^}]*state="(\w+)"\} (\S+)$', text)
    if len(states) != 7:
        raise AssertionError(f"{len(states)} series: {states}")
    active = {component: state for component, state, value in states if float(value) == 1}
    return active["scheduler"], active["weights"], active["kv_cache"]


def num_open(cluster):
    now = cluster.status()
    return now["num_requests_waiting"] + now["num_requests_running"]


def pss(cluster):
    return sum(holdings(pid)["pss_kib"] for pid in cluster.worker_pids()) * 1024


def resident(cluster):
    """Bytes over all ranks, by tag."""
    ranks = cluster.status()["ranks"]
    return {tag: sum(int(rank["bytes_by_tag"][tag]) for rank in ranks) for tag in ranks[0]["bytes_by_tag"]}


def check_table(test, cluster, max_tokens):
    """Each row of SleepEndpoints.TABLE, and then so many of CASE's tokens."""
    for name, steps in SleepEndpoints.TABLE:
        with test.subTest(name):
            test.assertEqual((is_sleeping(cluster), gauge(cluster)), (False, AWAKE))
            for target, sleeping, states in steps:
                admin(cluster, target)
                test.assertEqual((is_sleeping(cluster), gauge(cluster)), (sleeping, states), target)
            tokens = cluster.tokens(CASE["prompt"], max_tokens=max_tokens, ignore_eos=CASE["ignore_eos"])
            test.assertEqual(tokens, CASE["tokens"][:max_tokens])


class SleepEndpoints(unittest.TestCase):
    """tests/entrypoints/serve/dev/test_sleep.py: after each call, the answers of /is_sleeping and the gauge."""

    TABLE = (
        ("test_sleep_mode", (("/sleep?level=1", True, OFFLOADED), ("/wake_up", False, AWAKE))),
        ("test_sleep_mode, by tags", (("/sleep?level=1", True, OFFLOADED), ("/wake_up?tags=weights", True, RESIDENT),
                                      ("/wake_up?tags=kv_cache", False, AWAKE))),
        ("level 2", (("/sleep?level=2", True, DISCARDED), ("/wake_up", False, AWAKE))),
        ("level 1, then deeper", (("/sleep?level=1", True, OFFLOADED), ("/sleep?level=2", True, DISCARDED), ("/wake_up", False, AWAKE))),
        ("twice, each way", (("/sleep", True, OFFLOADED), ("/sleep", True, OFFLOADED), ("/wake_up", False, AWAKE), ("/wake_up", False, AWAKE))),
    )

    def test_table(self):
        with Cluster(tiny(MODEL), "--dtype=float32", KV_CACHE, workers=2) as cluster:
            check_table(self, cluster, len(CASE["tokens"]))

    def test_components(self):
        with Cluster(tiny(MODEL), "--dtype=float32", KV_CACHE, workers=2) as cluster:
            awake = ("running", "resident", "resident")
            self.assertEqual(components(cluster), awake)
            for target, states in (
                    ("/sleep?level=1", ("paused", "offloaded", "discarded")), ("/wake_up?tags=weights", ("paused", "resident", "discarded")),
                    ("/wake_up?tags=kv_cache", awake), ("/sleep?level=2", ("paused", "discarded", "discarded")), ("/wake_up", awake),
                    ("/sleep?level=0&mode=keep", ("paused", "resident", "resident")),
                    ("/release_kv_cache_memory", ("paused", "resident", "discarded")), ("/wake_up?tags=kv_cache", awake)):
                admin(cluster, target)
                self.assertEqual(components(cluster), states, target)

    def test_sleep_mode_backend_states(self):
        """test_sleep_mode_backend.py: RUNNING, SUSPENDED, RUNNING, on every rank."""
        with Cluster(tiny(MODEL), "--dtype=float32", KV_CACHE, workers=2) as cluster:
            seen = []
            for target in ("/is_sleeping", "/sleep", "/wake_up"):
                admin(cluster, target, method="GET" if target == "/is_sleeping" else "POST")
                seen.append({rank["state"] for rank in admin(cluster, "/collective_rpc", {"method": "get_status"})["results"]})
            self.assertEqual(seen, [{"awake"}, {"asleep"}, {"awake"}])


class Memory(unittest.TestCase):
    """tests/basic_correctness/test_mem.py"""

    def test_python_error(self):
        """A wake-up without room is an error, and no end: with room the wake-up works."""
        faulty = FaultyCluster("", KV_CACHE)
        with faulty as cluster:
            admin(cluster, "/sleep?level=1")
            faulty.faults.set_moment("create", "fail@0")
            answer = cluster.request("POST", "/wake_up", port=cluster.admin_port)
            self.assertEqual((answer.status, is_sleeping(cluster)), (503, True))
            self.assertRegex(answer.json["error"]["message"], r"rank 0.*bytes")
            faulty.set_faults("")
            admin(cluster, "/wake_up")
            self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def test_discard_with_tags(self):
        """A tag gives up the tag's memory; the other tags stay, and stay valid."""
        with Cluster(tiny(MODEL), "--dtype=float32", KV_CACHE, workers=2) as cluster:
            before = resident(cluster)
            for tag in ("kv_cache", "workspace"):
                admin(cluster, f"/sleep?level=2&tags={tag}")
                self.assertEqual(resident(cluster), {**before, tag: 0})
                admin(cluster, "/wake_up")
                self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def check_end_to_end(self, level, kept, *flags):
        """`kept`: the share of the weights that the workers still hold while they sleep."""
        with Cluster(SMOLLM2, KV_CACHE, *flags, workers=2) as cluster:
            wanted = cluster.tokens(PROMPT, logprobs=1)
            sizes, awake = resident(cluster), pss(cluster)
            for staged in (False, True):
                admin(cluster, f"/sleep?level={level}")
                asleep = pss(cluster)
                self.assertLess(asleep, awake - 0.99 * (sum(sizes.values()) - kept * sizes["weights"]))
                if staged:
                    admin(cluster, "/wake_up?tags=weights")
                    self.assertLess(pss(cluster) - asleep, (1.02 - kept) * sizes["weights"])
                    self.assertTrue(is_sleeping(cluster))
                admin(cluster, "/wake_up")
                self.check_text(cluster, wanted)

    def check_text(self, cluster, wanted):
        """The same text; and no single token again and again, and no log-probability that is no number (test_gdn_sleep_wake.py)."""
        choice = cluster.complete(PROMPT, logprobs=1)["choices"][0]
        self.assertEqual(choice["token_ids"], wanted)
        self.assertGreater(len(set(choice["token_ids"])), 1)
        self.assertTrue(all(math.isfinite(value) for value in choice["logprobs"]["token_logprobs"] if value is not None))

    def test_end_to_end(self):
        self.check_end_to_end(1, 1)

    def test_deep_sleep(self):
        self.check_end_to_end(2, 0)

    def test_deep_sleep_fp8_kvcache(self):
        self.check_end_to_end(2, 0, "--kv-cache-dtype=fp8")

    def test_deep_sleep_async(self):
        """As test_deep_sleep, with requests that are sent meanwhile."""
        with Cluster(SMOLLM2, KV_CACHE, workers=2) as cluster:
            wanted = cluster.tokens(PROMPT)
            admin(cluster, "/sleep?level=2")
            asking = [Asking(cluster, PROMPT) for _ in range(4)]
            wait_until(lambda: num_open(cluster) == 4, 30, "they wait")
            admin(cluster, "/wake_up?tags=weights")
            self.assertEqual(num_open(cluster), 4)
            admin(cluster, "/wake_up")
            self.assertEqual([one.tokens() for one in asking], [wanted] * 4)


class AsyncEngine(unittest.TestCase):
    """tests/v1/engine/test_async_llm.py; with two replicas below also test_async_llm_dp.py."""

    FLAGS, WORKERS = (), 2
    TOKENS = 400

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny(MODEL), "--dtype=float32", KV_CACHE, *cls.FLAGS, workers=cls.WORKERS)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.wanted = cls.cluster.tokens(CASE["prompt"], max_tokens=cls.TOKENS, ignore_eos=True)

    def tearDown(self):
        admin(self.cluster, "/resume")
        self.assertEqual(self.cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def is_paused(self):
        return admin(self.cluster, "/is_paused", method="GET")["is_paused"]

    def ask(self, **fields):
        return Asking(self.cluster, CASE["prompt"], max_tokens=self.TOKENS, ignore_eos=True, **fields)

    def streams(self, count):
        """Streams of which the first tokens have come, as (events, tokens)."""
        opened = []
        for _ in range(count):
            stream = self.cluster.open_stream(CASE["prompt"], max_tokens=self.TOKENS, return_token_ids=True)
            self.addCleanup(stream.close)
            events = stream.events()
            opened.append((events, list(next(events)["choices"][0]["token_ids"])))
        return opened

    def paused_streams(self, count, attempts=20):
        """The same, in a pause that keeps requests. Where a request had ended before, all are begun again."""
        for _ in range(attempts):
            opened = self.streams(count)
            admin(self.cluster, "/pause?mode=keep")
            if num_open(self.cluster) == count:
                return opened
            admin(self.cluster, "/resume")
            for events, tokens in opened:
                self.assertEqual(self.rest(events, tokens)[:2], (self.wanted, "length"))
        self.fail(f"a stream ended before the pause, in each of {attempts} attempts")

    def rest(self, events, tokens):
        """All tokens of a stream, its finish_reason and the longest gap between two events."""
        reason, last, gap = None, time.monotonic(), 0
        for event in events:
            last, gap = time.monotonic(), max(gap, time.monotonic() - last)
            for choice in event["choices"]:
                tokens += choice.get("token_ids") or []
                reason = choice.get("finish_reason") or reason
        return tokens, reason, gap

    def test_pause_resume_basic(self):
        self.assertFalse(self.is_paused())
        for _ in range(2):  # the call may be repeated
            admin(self.cluster, "/pause?mode=abort")
            self.assertTrue(self.is_paused())
        for _ in range(2):
            admin(self.cluster, "/resume")
            self.assertFalse(self.is_paused())

    def test_pause_resume_concurrent(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(admin, self.cluster, target) for target in ("/pause", "/resume", "/pause?mode=wait", "/resume") * 8]
            for call in calls:
                call.result(60)
        admin(self.cluster, "/resume")
        self.assertFalse(self.is_paused())

    def test_pause_abort(self):
        opened = self.streams(2)
        admin(self.cluster, "/pause?mode=abort")
        for events, tokens in opened:
            tokens, reason, _ = self.rest(events, tokens)
            self.assertEqual(tokens, self.wanted[:len(tokens)])
            self.assertEqual(reason, "length" if len(tokens) == self.TOKENS else "abort")

    def test_pause_then_submit(self):
        """A request that comes meanwhile waits, and is served after the resume."""
        admin(self.cluster, "/pause")
        asking = self.ask()
        wait_until(lambda: num_open(self.cluster) == 1, 30, "it waits")
        self.assertFalse(asking.done())
        admin(self.cluster, "/resume")
        self.assertEqual(asking.tokens(), self.wanted)

    def test_pause_wait(self):
        opened = self.streams(2)
        admin(self.cluster, "/pause?mode=wait")
        self.assertEqual(num_open(self.cluster), 0)
        for events, tokens in opened:
            self.assertEqual(self.rest(events, tokens)[:2], (self.wanted, "length"))

    def test_pause_keep(self):
        """One request, and then several: nothing comes during the pause, and every token after it."""
        for count in (1, 3):
            with self.subTest(requests=count):
                opened = self.paused_streams(count)
                with concurrent.futures.ThreadPoolExecutor(count) as pool:
                    rests = [pool.submit(self.rest, *one) for one in opened]
                    time.sleep(PAUSE_S)  # as in vLLM's test, the gap is measured
                    admin(self.cluster, "/resume")
                    for rest in rests:
                        tokens, reason, gap = rest.result(60)
                        self.assertEqual((tokens, reason), (self.wanted, "length"))
                        self.assertGreaterEqual(gap, 0.8 * PAUSE_S)


class AsyncEngineOfTwoReplicas(AsyncEngine):
    """tests/v1/distributed/test_async_llm_dp.py: one client's call is for all replicas."""

    FLAGS, WORKERS = ("--data-parallel-size=2",), 1

    def test_one_call_pauses_every_replica(self):
        opened = self.streams(4)
        admin(self.cluster, "/pause")
        self.assertEqual({replica["state"] for replica in self.cluster.status()["replicas"]}, {"ENGINE_STATE_PAUSED"})
        admin(self.cluster, "/resume")
        for events, tokens in opened:
            self.assertEqual(self.rest(events, tokens)[:2], (self.wanted, "length"))

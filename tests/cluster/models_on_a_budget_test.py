"""Six models on a budget for two, and random requests that name the models by Zipf's law: every answer is exact, nobody starves, the
budget is kept, and models are woken about as seldom as a naive cache of two would miss.

A few seconds of load for each policy; SOMNUS_LOAD_S=600 asks for ten minutes. A policy alone, with the times that users saw:
  SOMNUS_LOAD_S=600 python3 tests/cluster/models_on_a_budget_test.py ModelsOnABudgetTest.test_slo_with_elastic_caches
"""
import os
import random
import sys
import threading
import time
import unittest

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cluster.harness import Cluster, expected, tiny  # noqa: E402

MODELS = {"test-model": "llama-uneven", "qwen": "qwen3", "rope": "llama-rope3", "opt": "opt", "old": "qwen2", "last": "qwen3"}
CASES = {name: [case for case in expected(model) if not case["ambiguous"]] for name, model in MODELS.items()}
AT_ONCE = 2
LOAD_S = float(os.environ.get("SOMNUS_LOAD_S", "3"))
RATE = 12  # requests a second
ANSWER_S = 120  # who waits for longer starves
KV_BYTES = 32 << 20
FLAGS = ("--dtype=float32", f"--kv-cache-memory-bytes={KV_BYTES}", "--workers=local:1", "--max-model-len=256")
FIXED = ("--no-elastic-kv-cache",)
# Smaller caches would let all six be awake.
ELASTIC = ("--min-kv-cache-memory-bytes=12MiB",)
# Wake-ups for each that a cache of the two models that were named last would need, and for each model that begins.
MOST_WAKE_UPS = {"fifo": 1.5, "slo": 3}


def schedule(seed):
    """[(when, model, case)]"""
    draws = random.Random(seed)
    names, weights = list(MODELS), [1 / rank for rank in range(1, len(MODELS) + 1)]
    due, requests = draws.expovariate(RATE), []
    while due < LOAD_S:
        name = draws.choices(names, weights)[0]
        requests.append((due, name, draws.choice(CASES[name])))
        due += draws.expovariate(RATE)
    return requests


def naive_misses(names):
    """The misses of a cache of the last AT_ONCE names."""
    last, misses = [], 0
    for name in names:
        misses += name not in last
        last = [*(one for one in last if one != name), name][-AT_ONCE:]
    return misses


class ModelsOnABudgetTest(unittest.TestCase):
    budget = None

    def serve(self, *flags):
        named = [f"--model={name}={tiny(model)}" for name, model in MODELS.items() if name != "test-model"]
        cluster = Cluster(tiny(MODELS["test-model"]), *named, *FLAGS, *flags, workers=0)
        self.addCleanup(cluster.__exit__)
        return cluster

    def setUp(self):
        if ModelsOnABudgetTest.budget is None:
            cluster = self.serve(*FIXED)
            largest = max(cluster.metric("somnus:resident_bytes", model_name=name) for name in MODELS)
            self.assertEqual(cluster.stop(), 0)
            ModelsOnABudgetTest.budget = int(largest * (AT_ONCE + 0.1))

    def answer(self, cluster, start, due, name, case, results):
        time.sleep(max(0.0, start + due - time.monotonic()))
        try:
            body = {"model": name, "prompt": case["prompt"], "temperature": 0, "max_tokens": len(case["tokens"]),
                    "ignore_eos": case["ignore_eos"], "return_token_ids": True}
            response = cluster.request("POST", "/v1/completions", body, timeout=ANSWER_S)
            tokens = response.json["choices"][0]["token_ids"] if response.status == 200 else response.text[:200]
        except OSError as error:
            tokens = repr(error)
        results.append((name, tokens == case["tokens"], tokens, time.monotonic() - start - due))

    def load(self, policy, *flags):
        cluster = self.serve(f"--device-memory-budget={self.budget}", f"--residency-policy={policy}", *flags)
        requests, results = schedule(seed=1), []
        before = cluster.metric("somnus:residency_decisions_total", action="wake") or 0
        start = time.monotonic()
        threads = [threading.Thread(target=self.answer, args=(cluster, start, *request, results)) for request in requests]
        for thread in threads:
            thread.start()
        most = 0
        while any(thread.is_alive() for thread in threads):
            # The lower of two looks: during a look memory may go from a model that was counted to a model that was not.
            most = max(most, min(cluster.metric("somnus:resident_bytes") for _ in range(2)))
            time.sleep(0.05)
        wake_ups = cluster.metric("somnus:residency_decisions_total", action="wake") - before
        misses = naive_misses([name for _, name, _ in requests])
        waits = sorted(wait for *_, wait in results)
        phases = {phase: cluster.metric("somnus:model_switch_seconds_sum", phase=phase) /
                  max(1, cluster.metric("somnus:model_switch_seconds_count", phase=phase)) for phase in ("room", "wake_up")}
        print(f"{policy} {' '.join(flags)}: {len(results)} requests, answers after {waits[len(waits) // 2]:.2f} s (p50), "
              f"{waits[int(0.99 * len(waits))]:.2f} s (p99), {waits[-1]:.2f} s at most; {wake_ups:.0f} wake-ups, a naive cache "
              f"misses {misses}; a wake-up takes {phases['wake_up']:.3f} s after {phases['room']:.3f} s for room; "
              f"{most / self.budget:.0%} of the budget", flush=True)
        self.assertEqual([(name, tokens) for name, exact, tokens, _ in results if not exact], [])
        self.assertEqual({name for name, *_ in results}, set(MODELS))
        self.assertLessEqual(most, self.budget)
        self.assertGreater(wake_ups, 0)
        self.assertLessEqual(wake_ups, MOST_WAKE_UPS[policy] * misses + len(MODELS))
        self.assertEqual(cluster.health(), 200)
        self.assertEqual(cluster.stop(), 0)

    def test_fifo_with_elastic_caches(self):
        self.load("fifo", *ELASTIC)

    def test_slo_with_elastic_caches(self):
        self.load("slo", *ELASTIC, "--model-ttft-target=2s", "--model-tpot-target=100ms")


if __name__ == "__main__":
    unittest.main()

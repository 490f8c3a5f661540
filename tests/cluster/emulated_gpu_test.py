"""A whole cluster whose GPUs are the emulator's: the CUDA backend behind HTTP, in one process per rank, without a GPU.

Ranks reach each other's device memory across processes. The emulator takes a fraction of a second for a step: few tokens.
"""
import concurrent.futures
import json
import os
import random
import signal
import unittest

from cluster import vllm_sleep_assertions_test as vllm_sleep
from cluster.harness import BIN, ROOT, Cluster, expected, tiny, wait_until
from cluster.harness.fault_file import FaultFile
from cluster.harness.other_weights import second_checkpoint
from cluster.harness.streams import Round
from cluster.harness.together import Together, complete, prompt
from cluster.sleep_cycles_test import WITHOUT_POOLS, Sleeper, assert_nothing_grows, cycles
from cluster.transition_faults_test import ASLEEP, AWAKE, WAKE, check_truth, post, resident, sleep

WORKER = os.path.join(BIN, "tests", "cuda", "emulated_worker")
MODEL = "llama-uneven"
FLAGS = ("--dtype=float32", "--max-num-seqs=4", "--max-num-batched-tokens=32", "--max-model-len=128", "--kv-cache-memory-bytes=1MiB")
TOKENS = 6
RECOVERY_S = 60


def gpu_cluster(model, workers, *flags, **more):
    return Cluster(tiny(model), "--device=cuda", f"--worker-binary={WORKER}", "--graph-sizes=1,2,4", *FLAGS, *flags,
                   workers=workers, **more)


def cases(model):
    """The short cases whose tokens do not depend on rounding."""
    return [case for case in expected(model) if len(case["prompt"]) <= 33 and not case["ambiguous"]]


class EmulatedGpu(unittest.TestCase):
    def assert_tokens(self, cluster, model):
        for case in cases(model):
            with self.subTest(model=model, case=case["name"]):
                self.assertEqual(cluster.tokens(case["prompt"], max_tokens=TOKENS, ignore_eos=case["ignore_eos"]),
                                 case["tokens"][:TOKENS])

    def test_one_gpu_answers_as_the_cpu_does(self):
        model = "qwen3"
        prompts = [[(7 * i + 3 * j) % 400 for j in range(4 + 9 * i)] for i in range(3)]
        with Cluster(tiny(model), "--device=cpu", *FLAGS, workers=1) as cluster:
            wanted = [cluster.tokens(prompt, max_tokens=TOKENS, ignore_eos=True) for prompt in prompts]
        with gpu_cluster(model, workers=1) as cluster:
            self.assertEqual([rank["device"] for rank in cluster.status()["ranks"]], ["cuda:0"])
            self.assertEqual([cluster.tokens(prompt, max_tokens=TOKENS, ignore_eos=True) for prompt in prompts], wanted)
            self.assertEqual(cluster.stop(), 0)

    def test_two_gpus_sleep_in_the_middle_of_a_stream(self):
        with gpu_cluster(MODEL, workers=2) as cluster:
            self.assertEqual([rank["device"] for rank in cluster.status()["ranks"]], ["cuda:0", "cuda:1"])
            self.assert_tokens(cluster, MODEL)
            case = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
            wanted = cluster.tokens(case["prompt"], max_tokens=40, ignore_eos=True)
            for level in (1, 2):
                stream = cluster.open_stream(case["prompt"], max_tokens=40, return_token_ids=True)
                events = stream.events()
                tokens = list(next(events)["choices"][0]["token_ids"])
                cluster.cli("sleep", "--level", str(level))
                status = cluster.status()
                self.assertEqual(sum(int(count) for rank in status["ranks"] for count in rank["bytes_by_tag"].values()), 0)
                self.assertEqual(status["num_requests_running"] + status["num_requests_waiting"], 1)
                cluster.cli("wake-up")
                for event in events:
                    for choice in event["choices"]:
                        tokens += choice.get("token_ids") or []
                self.assertEqual(tokens, wanted, f"level {level}")
            self.assertEqual(cluster.stop(), 0)

    def test_beams_are_those_of_transformers(self):
        """Tokens that the coordinator names replace the tokens on the devices; the neighbour's tokens stay there."""
        with open(os.path.join(ROOT, "tests", "data", "beam_goldens.json"), encoding="utf-8") as file:
            searches = [case for case in json.load(file) if case["model"] == MODEL and case["n"] <= 3 and len(case["prompt"]) <= 33]
        self.assertGreater(len(searches), 1)
        with gpu_cluster(MODEL, workers=2) as cluster, concurrent.futures.ThreadPoolExecutor(1) as pool:
            neighbour = [5, 6, 7]
            wanted = cluster.tokens(neighbour, max_tokens=20, ignore_eos=True)
            for case in searches[:3]:
                beside = pool.submit(cluster.tokens, neighbour, max_tokens=20, ignore_eos=True)
                body = {name: case[name] for name in ("n", "max_tokens", "length_penalty", "ignore_eos")}
                choices = cluster.complete(case["prompt"], use_beam_search=True, **body)["choices"]
                self.assertEqual([choice["token_ids"] for choice in choices], [answer["tokens"] for answer in case["answers"]])
                self.assertEqual(beside.result(), wanted)
            self.assertEqual(cluster.stop(), 0)

    def test_batch_invariant_answers_do_not_depend_on_company(self):
        prompts = [[(7 * i + 3 * j) % 400 for j in range(9 + 8 * i)] for i in range(4)]
        with gpu_cluster(MODEL, 2, "--batch-invariant") as cluster:
            def ask(prompt):
                answer = cluster.complete(prompt, max_tokens=TOKENS, ignore_eos=True, logprobs=3)
                return answer["choices"][0]["token_ids"], answer["choices"][0]["logprobs"]

            alone = [ask(prompt) for prompt in prompts]
            with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
                together = list(pool.map(ask, prompts))
            # Every digit of every log-probability is the same. The second time prefixes come from the cache.
            self.assertEqual(together, alone)
            self.assertEqual(cluster.stop(), 0)

    def test_killed_rank_is_replaced_and_streams_go_on(self):
        requests = [("/v1/completions", {"prompt": [(7 * i + 3 * j) % 400 for j in range(9 + 8 * i)], "max_tokens": 20,
                                         "temperature": i % 2, "seed": 7, "logprobs": 2, "ignore_eos": True,
                                         "return_token_ids": True, "stream": True,
                                         "stream_options": {"include_usage": True}}) for i in range(3)]
        with gpu_cluster(MODEL, 2, "--batch-invariant") as cluster:
            wanted = Round(cluster, requests).answers()
            ranks = [rank["pid"] for rank in cluster.status()["ranks"]]
            around = Round(cluster, requests)
            wait_until(lambda: len(around.token_times) >= 2 * len(requests), RECOVERY_S, "tokens")
            os.kill(ranks[1], signal.SIGKILL)
            around.check(wanted)
            status = cluster.status()
            self.assertEqual((int(status["epoch"]), int(status["num_recoveries"])), (2, 1))
            # The rank that lived has kept the process and the weights.
            self.assertEqual([rank["pid"] == pid for rank, pid in zip(status["ranks"], ranks)], [True, False])
            self.assertRegex(cluster.log(), rf"rank 1 \(pid {ranks[1]}\).*killed by signal 9")
            self.assertEqual(cluster.stop(), 0)

    def test_what_is_preempted_comes_back_from_pinned_memory(self):
        requests = [{"prompt": prompt(first, 62), "max_tokens": 8, "temperature": 0, "ignore_eos": True} for first in (3, 5)]

        def ask(cluster, body):
            return complete(cluster, body)[0]["token_ids"]
        # Room for a request and a half: each request needs five blocks of two layers, two heads, and K and V of 16 x 8 floats.
        blocks, block_bytes = 8, 2 * 2 * 2 * 16 * 8 * 4
        with gpu_cluster(MODEL, 2, "--preemption=swap", "--no-enable-prefix-caching",
                         f"--kv-cache-memory-bytes={(blocks + 1) * block_bytes}") as cluster:
            self.assertEqual(cluster.status()["total_blocks"], blocks)
            wanted = [ask(cluster, body) for body in requests]
            self.assertEqual(post(cluster, "/pause").status, 200)
            both = Together(cluster, requests, ask)
            wait_until(lambda: vllm_sleep.num_open(cluster) == len(requests), 60, "both are there")
            self.assertEqual(post(cluster, "/resume").status, 200)
            self.assertEqual(both.join(), wanted)
            swapped = [cluster.metric("somnus:swapped_blocks_total", direction=direction) for direction in ("out", "in")]
            self.assertGreaterEqual(swapped[1], 4, "the blocks of a prompt")
            self.assertEqual(*swapped)
            self.assertEqual(cluster.metric("somnus:preemptions_total", mode="recompute"), 0)
            self.assertEqual(cluster.stop(), 0)


class Sleeps(unittest.TestCase):
    """The cases of vllm_sleep_assertions_test.py and weights_test.py, of GPUs."""

    CASE = next(case for case in cases(MODEL) if case["name"] == "prompt-17")

    @classmethod
    def setUpClass(cls):
        cls.cluster = gpu_cluster(MODEL, 2, env=WITHOUT_POOLS)
        cls.addClassCleanup(cls.cluster.__exit__)

    def tokens(self, cluster):
        return cluster.tokens(self.CASE["prompt"], max_tokens=TOKENS, ignore_eos=True)

    def test_by_level_and_by_tag(self):
        vllm_sleep.check_table(self, self.cluster, max_tokens=3)

    def test_at_random_in_an_open_stream(self):
        wanted = self.cluster.tokens(self.CASE["prompt"], max_tokens=24, ignore_eos=True)
        sleeper = Sleeper(self.cluster, random.Random(3))
        for _ in range(20):  # until each call came before the stream's end
            stream = self.cluster.open_stream(self.CASE["prompt"], max_tokens=24, return_token_ids=True)
            self.addCleanup(stream.close)
            tokens, in_the_middle = [], 0
            for number, event in enumerate(stream.events()):
                for choice in event["choices"]:
                    tokens += choice.get("token_ids") or []
                if number < 4:
                    sleeper.random_transition()
                    in_the_middle += vllm_sleep.num_open(self.cluster)
            self.assertEqual(tokens, wanted, sleeper.calls)
            if in_the_middle == 4:
                return
        self.fail("the stream ended before a transition, each time")

    def test_another_checkpoint_by_its_path(self):
        other = second_checkpoint(type(self), tiny(MODEL))
        with Cluster(other, "--device=cpu", *FLAGS, workers=1) as cluster:
            others = self.tokens(cluster)
        first = self.tokens(self.cluster)
        self.assertNotEqual(others, first)
        for path, wanted in ((other, others), (tiny(MODEL), first)):
            self.cluster.cli("reload-weights", path)
            self.assertEqual(self.tokens(self.cluster), wanted)

    def test_nothing_grows(self):
        assert_nothing_grows(lambda: cycles(self.cluster, 10))


class StruckSleeps(unittest.TestCase):
    """A rank is killed, or finds no memory, in the middle of a sleep or a wake-up."""

    # (the calls before, the call, the moment and the fault then, the call's status)
    CASES = (
        ((), sleep(1), "Prepare", "kill@1", 200),
        ((sleep(1),), WAKE, "create#1", "fail@0", 503),
        ((sleep(1),), WAKE, "access#1", "kill@0", 200),
        ((sleep(2),), WAKE, "Commit", "kill@1", 200),
    )

    def test_struck_at_a_moment(self):
        faults = FaultFile()
        self.addCleanup(faults.close)
        with gpu_cluster(MODEL, 2, env=faults.environment) as cluster:
            awake = [resident(rank) for rank in cluster.status()["ranks"]]
            wanted = cluster.tokens([5, 6, 7], max_tokens=TOKENS, ignore_eos=True)
            for before, target, moment, action, status in self.CASES:
                with self.subTest(target=target, moment=moment):
                    for call in before:
                        self.assertEqual(post(cluster, call).status, 200)
                    line = faults.set_moment(moment, action)
                    answer = post(cluster, target)
                    self.assertEqual((answer.status, faults.strikes(line)), (status, 1), answer.text)
                    wait_until(lambda: cluster.status()["state"] in (AWAKE, ASLEEP), RECOVERY_S, cluster.log)
                    self.assertEqual(check_truth(self, cluster, awake), AWAKE if (target, status) == (WAKE, 200) else ASLEEP)
                    faults.set("")
                    self.assertEqual(post(cluster, WAKE).status, 200)
                    self.assertEqual(check_truth(self, cluster, awake), AWAKE)
                    self.assertEqual(cluster.tokens([5, 6, 7], max_tokens=TOKENS, ignore_eos=True), wanted)
            self.assertEqual(int(cluster.status()["num_recoveries"]), sum("kill" in case[3] for case in self.CASES))
            self.assertEqual(cluster.stop(), 0)

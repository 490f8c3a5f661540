#!/usr/bin/env python3
"""Pipelines of workers: the tokens of a single stage, on a host and on two, and the load of experts. crossings_test.py has losses,
sleeps, forms and drafts.

As a script the file measures steps of two hosts that divide the layers beside two hosts that divide each layer, in turns (needs
root, as two_hosts_test.py):
  pipeline_test.py [--model PATH] [--rounds 5] [--concurrency 1,8,32]
"""
import argparse
import concurrent.futures
import os
import statistics
import sys
import tempfile
import unittest

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cluster.harness import SMOLLM2, Cluster, expected, free_ports, tiny  # noqa: E402
from cluster.harness.tokenized import with_tokenizer  # noqa: E402
from cluster.two_hosts_test import Lan, start_coordinator, start_two_hosts, step_ms, why_not  # noqa: E402

MODEL = "llama-uneven"
FLAGS = ("--dtype=float32", "--threads-per-worker=1", "--max-recoveries=1000000")
PROMPT = [5, 17, 42, 9]
TOKENS = 300
HEAL_S = 90


def stages(count, *flags):
    return (*FLAGS, f"--pipeline-parallel-size={count}", *flags)


def answers(cluster):
    """The answers that clients get at once: greedily, at random with penalties, with log-probabilities of the prompts."""
    requests = []
    for i in range(8):
        fields = {"max_tokens": 24, "logprobs": 3, "ignore_eos": True, "seed": i}
        if i % 2:
            fields.update(temperature=0.8, frequency_penalty=0.5)
        if i == 2:
            fields["echo"] = True
        requests.append(([(7 * i + 3 * j) % 400 for j in range(4 + 30 * i)], fields))
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: cluster.complete(request[0], **request[1])["choices"], requests))


class Splits(unittest.TestCase):
    def assert_as_one_stage(self, model, workers, count):
        with Cluster(model, *FLAGS, workers=workers) as one, Cluster(model, *stages(count), workers=workers) as staged:
            self.assertEqual(len(staged.status()["ranks"]), workers * count)
            self.assertEqual(answers(staged), answers(one))

    def test_two_stages_of_two_workers(self):
        self.assert_as_one_stage(tiny(MODEL), workers=2, count=2)

    def test_three_stages_of_thirty_quantized_layers(self):
        self.assert_as_one_stage(SMOLLM2, workers=1, count=3)

    def test_more_stages_than_layers_are_refused(self):
        with self.assertRaisesRegex(AssertionError, "--pipeline-parallel-size: 3 stages, but the model has 2 layers"):
            Cluster(tiny(MODEL), *stages(3), workers=1)


class TwoStages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny(MODEL), *stages(2, "--num-speculative-tokens=3"), workers=1)
        cls.addClassCleanup(cls.cluster.__exit__)

    def test_tokens_are_those_of_transformers(self):
        for case in expected(MODEL):
            with self.subTest(case=case["name"]):
                self.assertEqual(self.cluster.tokens(case["prompt"], ignore_eos=case["ignore_eos"]), case["tokens"])


class LoadOfExperts(unittest.TestCase):
    """Each token that steps have computed counts once for each expert of the token, in each layer that has experts, however the
    workers divide the model."""

    layers, experts, experts_of_a_token = (0, 2), 7, 3  # as in the checkpoint; layer 1 has no experts

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="somnus_experts_")
        cls.addClassCleanup(folder.cleanup)
        cls.model = with_tokenizer("qwen3-moe", os.path.join(folder.name, "model"))

    def load(self, cluster):
        """The counts of each expert, by layer, which add up to the tokens that were computed."""
        cluster.wait_idle()
        counts = {}
        for layer in self.layers:
            counts[layer] = [cluster.metric("somnus:expert_tokens_total", layer=layer, expert=expert)
                             for expert in range(self.experts)]
            computed = cluster.metric("vllm:iteration_tokens_total_sum")
            self.assertEqual(sum(counts[layer]), computed * self.experts_of_a_token, f"layer {layer}")
        self.assertEqual(sum(map(sum, counts.values())), cluster.metric("somnus:expert_tokens_total"), "and no other layers")
        return counts

    def test_ranks_that_divide_the_model(self):
        wanted = None
        for workers, flags in ((1, ()), (2, ()), (2, ("--enable-expert-parallel",)), (1, ("--pipeline-parallel-size=2",))):
            with self.subTest(workers=workers, flags=flags), \
                    Cluster(self.model, *FLAGS, "--expert-load-metrics", *flags, workers=workers) as cluster:
                for length in (4, 90):
                    cluster.complete([(7 * i) % 400 for i in range(length)], max_tokens=1)
                counts = self.load(cluster)
                self.assertEqual(sum(counts[0]), (4 + 90) * self.experts_of_a_token)
                self.assertGreaterEqual(cluster.metric("somnus:expert_load_imbalance"), 1)
                wanted = wanted or counts
                self.assertEqual(counts, wanted)

    def test_without_the_flag(self):
        with Cluster(self.model, *FLAGS, workers=1) as cluster:
            cluster.complete(PROMPT, max_tokens=8, ignore_eos=True)
            self.assertIsNone(cluster.metric("somnus:expert_tokens_total"))


class StagesOfTwoHosts(unittest.TestCase):
    def test_tokens_and_the_loss_of_a_host(self):
        reason = why_not()
        if reason:
            self.skipTest(reason)
        lan = self.enterContext(Lan())
        cluster_port, = free_ports(1)
        cluster = self.enterContext(start_coordinator(tiny(MODEL), cluster_port, *stages(2), workers="remote:1"))
        workers = start_two_hosts(lan, cluster_port)
        cluster.wait_ready()
        with Cluster(tiny(MODEL), *FLAGS, workers=1) as one:
            self.assertEqual(answers(cluster), answers(one))
            wanted = one.tokens(PROMPT, max_tokens=TOKENS, ignore_eos=True)
        lan.start_worker(lan.add_host(), cluster_port, "--register-timeout=5m")
        events = cluster.open_stream(PROMPT, max_tokens=TOKENS, return_token_ids=True, timeout=HEAL_S).events()
        tokens = list(next(events)["choices"][0]["token_ids"])
        workers[1].kill()
        for event in events:
            self.assertNotIn("error", event, f"{cluster.log()[-6000:]}\n{lan.logs()}")
            tokens += event["choices"][0]["token_ids"]
        self.assertEqual(tokens, wanted)


def measure(args):
    """Two hosts that divide each layer, and two hosts that divide the layers, in turns."""
    flags = ("--threads-per-worker=1", "--max-num-seqs=64")
    with Lan() as divided, Lan(prefix="smp", network="198.18.78") as staged:
        ports = free_ports(2)
        with start_coordinator(args.model, ports[0], *flags) as tp, \
                start_coordinator(args.model, ports[1], *flags, "--pipeline-parallel-size=2", workers="remote:1",
                                  host=staged.coordinator) as pp:
            for lan, port, cluster in ((divided, ports[0], tp), (staged, ports[1], pp)):
                start_two_hosts(lan, port)
                cluster.wait_ready()
            for concurrency in map(int, args.concurrency.split(",")):
                samples = [(step_ms(tp, concurrency), step_ms(pp, concurrency)) for _ in range(args.rounds + 1)]
                ratios = [one / other for one, other in samples[1:]]  # the first round warms up
                one, other = (statistics.median(column) for column in zip(*samples[1:]))
                print(f"concurrency {concurrency}: tensor parallel {one:.2f} ms per token, pipeline parallel {other:.2f}, "
                      f"{statistics.median(ratios):.2f} times as fast ({min(ratios):.2f}..{max(ratios):.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", default="1,8,32")
    reason = why_not()
    if reason:
        sys.exit(reason)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Clients that never stop asking while the engine sleeps, wakes, reloads and gets new weights: every answer is that of the
weights with the answer's version.

As a script the file goes on for longer:
  weights_hammer_test.py [--seconds 300] [--clients 32] [--seed 1] [--workers 2]
"""
import argparse
import collections
import os
import random
import signal
import sys
import tempfile
import threading
import time
import unittest

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cluster.harness import Cluster, tiny  # noqa: E402
from cluster.harness.other_weights import swapped_layers  # noqa: E402
from cluster.harness.python_client import InstalledClient  # noqa: E402
from cluster.sleep_cycles_test import Sleeper  # noqa: E402

SEED, SECONDS, CLIENTS = 6, 8, 16
PROMPTS = 12
MODEL = "qwen3"
TAGS = ("weights", "kv_cache")
ANSWER_S = 120


def make_bodies(rng):
    """Requests whose answers depend on nothing but the weights."""
    return [{"prompt": [rng.randrange(3, 500) for _ in range(rng.randrange(4, 60))], "max_tokens": rng.randrange(4, 40),
             "temperature": rng.choice((0, 0.8)), "seed": rng.randrange(1 << 30), "ignore_eos": True, "return_token_ids": True}
            for _ in range(PROMPTS)]


class Hammer:
    """A cluster with two checkpoints, clients, and an operator."""

    def __init__(self, cluster, checkpoints, trainer, rng):
        self.cluster, self.checkpoints, self.trainer, self.rng = cluster, checkpoints, trainer, rng
        self.bodies = make_bodies(rng)
        self.over = threading.Event()
        self.answers, self.errors = [], []
        self.operator = Sleeper(cluster, rng)
        self.source_of = {1: checkpoints[0]}  # by version
        self.trained = False  # the weights came by an update
        self.slept_by_tags = 0  # how often

    def ask(self, body):
        """(version, finish_reason, tokens). An answer that was aborted before the first token has no version: None."""
        response = self.cluster.request("POST", "/v1/completions", {"model": self.cluster.name, **body}, timeout=ANSWER_S)
        if response.status != 200:
            raise AssertionError(f"HTTP {response.status}: {response.text[:500]}")
        choice = response.json["choices"][0]
        version = response.headers["X-Weight-Version"]
        return version and int(version), choice["finish_reason"], tuple(choice["token_ids"])

    def client(self, rng):
        try:
            while not self.over.is_set():
                index = rng.randrange(PROMPTS)
                self.answers.append((index, *self.ask(self.bodies[index])))
        except Exception as error:  # pylint: disable=broad-except
            self.errors.append(error)

    def sleep_and_wake(self):
        level = self.rng.randrange(3)
        named = self.rng.choice(((), TAGS[:1], TAGS[1:], TAGS)) if level > 0 else ()
        tags = "".join(f"&tags={tag}" for tag in named)
        discards_weights = level == 2 and named != TAGS[1:]
        # After this a reload or an update has to bring weights, with which open requests must not go on.
        if discards_weights and self.trained:
            self.operator.call(f"/sleep?level=2&force=true&mode=wait{tags}")
            self.operator.call("/wake_up?tags=weights")
            return self.rng.choice((self.reload, self.train))()
        self.operator.call(f"/sleep?level={level}&mode={self.rng.choice(('keep', 'keep', 'wait', 'abort'))}{tags}")
        self.slept_by_tags += bool(named)
        if self.rng.random() < 0.5:
            self.operator.call(f"/wake_up?tags={self.rng.choice(TAGS)}")

    def reload(self):
        checkpoint = self.rng.choice(self.checkpoints)
        version = self.operator.call(f"/reload_weights?path={checkpoint}&mode={self.rng.choice(('wait', 'abort'))}")["weight_version"]
        self.source_of[version], self.trained = checkpoint, False

    def train(self):
        """The steps of a trainer: level 2, memory of weights, an update, the rest."""
        checkpoint = self.rng.choice(self.checkpoints)
        self.operator.calls.append(f"a step with {os.path.basename(checkpoint)}")
        step = self.trainer.rlhf_step(self.cluster, checkpoint, "A", max_tokens=1, shared_memory=self.rng.random() < 0.5)
        self.source_of[step["weights_version"]], self.trained = checkpoint, True

    def operate(self, seconds):
        """Random calls for so long, and until each kind has come; weights change while everything is resident."""
        deadline = time.monotonic() + seconds
        calls, counts = (self.sleep_and_wake, self.sleep_and_wake, self.reload, self.train), collections.Counter()
        while (time.monotonic() < deadline or len(counts) < len(set(calls))) and not self.errors:
            call = self.rng.choice(calls)
            call()
            counts[call.__name__] += 1
            self.operator.call("/wake_up")
            time.sleep(self.rng.random() * 0.2)
        return counts

    def expected(self):
        """By checkpoint, the answers of an engine that nobody disturbs."""
        found = {}
        for checkpoint in self.checkpoints:
            version = self.operator.call(f"/reload_weights?path={checkpoint}")["weight_version"]
            self.source_of[version] = checkpoint
            answers = [self.ask(body) for body in self.bodies]
            if {answer[0] for answer in answers} != {version}:
                raise AssertionError(f"answers of version {version} carry {answers}")
            found[checkpoint] = [answer[2] for answer in answers]
        return found

    def hammer(self, seconds, clients):
        """Returns how many answers there were, whole and aborted, and how often each call was made; AssertionError for a wrong answer."""
        expected = self.expected()
        if len({tuple(answers) for answers in expected.values()}) != len(self.checkpoints):
            raise AssertionError("the checkpoints cannot be told apart")
        threads = [threading.Thread(target=self.client, args=(random.Random(self.rng.random()),)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            counts = self.operate(seconds)
        finally:
            self.over.set()
            for thread in threads:
                thread.join()
        if self.errors:
            raise AssertionError(f"after {self.operator.calls[-9:]}") from self.errors[0]
        whole = 0
        for index, version, finish_reason, tokens in self.answers:
            if (version, finish_reason, tokens) == (None, "abort", ()):
                continue
            right = expected[self.source_of[version]][index]
            if finish_reason == "abort":
                right = right[:len(tokens)]
            if tokens != right:
                raise AssertionError(f"prompt {index} with version {version}, {self.source_of[version]}: {tokens} instead of {right}")
            whole += finish_reason != "abort"
        return whole, len(self.answers) - whole, counts


def hammer(seconds, clients, seed, workers):
    rng = random.Random(seed)
    with InstalledClient() as trainer, tempfile.TemporaryDirectory() as folder:
        checkpoints = [tiny(MODEL), swapped_layers(tiny(MODEL), os.path.join(folder, "other"))]
        with Cluster(checkpoints[0], "--dtype=float32", workers=workers) as cluster:
            try:
                result = Hammer(cluster, checkpoints, trainer, rng).hammer(seconds, clients)
            except AssertionError:
                print(cluster.log()[-5000:], file=sys.stderr)
                raise
            cluster.wait_idle()
            if cluster.stop() != 0:
                raise AssertionError("the server did not end well")
    return result


class WeightsHammer(unittest.TestCase):
    def test_every_answer_is_of_the_version_that_it_carries(self):
        whole, _, counts = hammer(SECONDS, CLIENTS, SEED, workers=2)
        self.assertGreater(whole, CLIENTS)
        self.assertEqual(sorted(counts), ["reload", "sleep_and_wake", "train"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the cluster ends with the script
    whole, aborted, counts = hammer(args.seconds, args.clients, args.seed, args.workers)
    print(f"{whole} answers, each that of its version, and the beginnings of {aborted} that were aborted; {dict(counts)}")


if __name__ == "__main__":
    main()

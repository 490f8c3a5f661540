#!/usr/bin/env python3
"""Many sleeps and wake-ups: open requests go on with the same tokens, and nothing grows.

As a script the file does more, and prints the holdings of every process:
  sleep_cycles_test.py [--transitions 100] [--cycles 200] [--streams 16] [--seed 1] [--workers 2] [--model PATH] [-- SERVE FLAGS]
"""
import argparse
import os
import random
import re
import signal
import sys
import unittest

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cluster.harness import SMOLLM2, Cluster, tiny, wait_until  # noqa: E402
from cluster.harness.streams import Round, make_requests  # noqa: E402

SEED = 12
TRANSITIONS, CYCLES = 12, 30
STREAMS, MAX_TOKENS = 8, 50
TAGS = ("weights", "kv_cache", "workspace")
# Calls of the first cycles fill pools of the allocator, of gRPC and of threads.
WARM_UP_CYCLES = 5
GROWTH_KIB = 2048
# The C library keeps an arena for a thread that once had none of its own, and stacks of threads that have ended: pools
# that grow at other moments, and hide the mappings that are looked for.
WITHOUT_POOLS = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1:glibc.pthread.stack_cache_size=0"}


def some_tags(rng):
    """A query with some of the tags, or with none, which means all."""
    return "".join(f"&tags={tag}" for tag in rng.sample(TAGS, rng.choice((0, 0, 1, 2))))


def memory_kib(pid):
    """A process's share of memory, without program and libraries, whose share changes with every such process."""
    exe, total, counts = os.readlink(f"/proc/{pid}/exe"), 0, True
    with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                path = line.split(maxsplit=5)[5:]
                counts = not path or not (path[0].strip() == exe or ".so" in os.path.basename(path[0]))
            elif counts and line.startswith("Pss:"):
                total += int(line.split()[1])
    return total


def holdings(pid):
    """The holdings of a process: share of memory (KiB), mappings, descriptors and threads."""
    pss = memory_kib(pid)
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        mappings = sum(1 for _ in file)
    return {"pss_kib": pss, "mappings": mappings, "files": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": len(os.listdir(f"/proc/{pid}/task"))}


class Sleeper:
    """An operator of a cluster, who remembers the calls."""

    def __init__(self, cluster, rng):
        self.cluster, self.rng, self.calls = cluster, rng, []

    def call(self, target):
        self.calls.append(target)
        answer = self.cluster.request("POST", target, port=self.cluster.admin_port)
        if answer.status != 200:
            raise AssertionError(f"{target}: HTTP {answer.status}: {answer.text[:500]}; the calls before: {self.calls[-9:-1]}")
        return answer.json

    def random_transition(self):
        """A sleep or more of any level and tags, and wake-ups until all is resident."""
        while True:
            level = self.rng.randrange(3)
            self.call(f"/sleep?level={level}&mode=keep{some_tags(self.rng) if level else ''}")
            if self.rng.random() < 0.7:
                break
        while self.rng.random() < 0.4:
            self.call(f"/wake_up?{some_tags(self.rng)[1:]}")
        self.call("/wake_up")


def transitions_under_load(cluster, requests, rng, count):
    """Rounds of all requests, during which the engine sleeps and wakes `count` times; every answer is the undisturbed answer."""
    expected = Round(cluster, requests).answers()
    sleeper, rounds, done = Sleeper(cluster, rng), 0, 0
    while done < count:
        open_round = Round(cluster, requests)
        # From the first token on there is something to keep.
        wait_until(lambda: open_round.token_times or open_round.over(), 60, "a token")
        while done < count and not open_round.over():
            sleeper.random_transition()
            done += 1
            tokens = len(open_round.token_times)
            wait_until(lambda: len(open_round.token_times) > tokens or open_round.over(), 60, lambda: f"a token after {sleeper.calls[-9:]}")
        open_round.check(expected)
        rounds += 1
    cluster.wait_idle()
    return rounds, sleeper


def cycles(cluster, count, note=lambda cycle, held: None, warm_up=WARM_UP_CYCLES):
    """Sleeps at both levels in turn; returns the holdings of every process after the first cycles, and at the end."""
    sleeper = Sleeper(cluster, None)
    pids = [cluster.process.pid, *cluster.worker_pids()]
    for cycle in range(count):
        sleeper.call(f"/sleep?level={1 + cycle % 2}")
        sleeper.call("/wake_up")
        cluster.tokens([5, 6, 7], max_tokens=4)
        held = {pid: holdings(pid) for pid in pids}
        note(cycle, held)
        if cycle == warm_up:
            first = held
    return first, held


def growth(first, last, mappings=4):
    """The growth, in words; up to `mappings` more mappings are no growth."""
    found = []
    for pid, before in first.items():
        for kind, slack in (("pss_kib", GROWTH_KIB), ("mappings", mappings), ("files", 2), ("threads", 0)):
            if last[pid][kind] > before[kind] + slack:
                found.append(f"process {pid}: {kind} {before[kind]} -> {last[pid][kind]}")
    return found


def assert_no_growth(first, pids, patience_s=30):
    """Nothing of the processes has grown since `first`, once threads of calls that have just been answered have ended."""
    def grown():
        return "; ".join(growth(first, {pid: holdings(pid) for pid in pids}))
    wait_until(lambda: not grown(), patience_s, grown)


def assert_nothing_grows(run):
    """`run` goes through some cycles, and returns the holdings of each process after the first cycles. More threads at once than ever
    before leave stacks and arenas behind; a leak grows in each of the repetitions."""
    for last in (False, False, True):
        first = run()
        try:
            return assert_no_growth(first, first, patience_s=30 if last else 3)
        except AssertionError:
            if last:
                raise


class UnderLoad(unittest.TestCase):
    def test_requests_go_on_with_the_same_tokens(self):
        rng = random.Random(SEED)
        with Cluster(SMOLLM2, workers=2) as cluster:
            transitions_under_load(cluster, make_requests(rng, STREAMS, MAX_TOKENS), rng, TRANSITIONS)
            self.assertEqual(cluster.stop(), 0)


class Memory(unittest.TestCase):
    def test_nothing_grows(self):
        with Cluster(tiny("llama-uneven"), "--dtype=float32", workers=2, env=WITHOUT_POOLS) as cluster:
            assert_nothing_grows(lambda: cycles(cluster, CYCLES)[0])


def report(args):
    rng = random.Random(args.seed)
    with Cluster(args.model, *args.flags, workers=args.workers) as cluster:
        rounds, sleeper = transitions_under_load(cluster, make_requests(rng, args.streams, MAX_TOKENS), rng, args.transitions)
        print(f"{args.transitions} times asleep and awake in {len(sleeper.calls)} calls, during {rounds} rounds of {args.streams} "
              "streams: every answer is the undisturbed one", flush=True)
        # A load reads with several threads, and until each of malloc's arenas has served a thread the arenas keep a little more.
        first, last = cycles(cluster, args.cycles, lambda cycle, held: print(cycle, held, flush=True) if cycle % 20 == 0 else None,
                             warm_up=min(20, args.cycles // 2))
        print("grew: " + ("; ".join(growth(first, last)) or "nothing"))
        return 1 if growth(first, last) or cluster.stop() != 0 else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=100)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("flags", nargs="*")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the cluster ends with the script
    sys.exit(report(parser.parse_args()))


if __name__ == "__main__":
    main()

"""Many sleeps and wake-ups: open requests of a quantized checkpoint go on with the same tokens, and no process holds more than before;
and the holdings of processes, for other suites."""
import collections
import os
import random
import re
import unittest

from cluster.harness import SMOLLM2, Cluster, tiny, wait_until
from cluster.harness.streams import Round, make_requests

CYCLES = 30
TRANSITIONS, STREAMS, MAX_TOKENS, SEED = 8, 4, 30, 12
PATIENCE_S = 300  # each transition has the prompts computed again, on a machine that is busy with other suites, too
TAGS = ("weights", "kv_cache", "workspace")
# Calls of the first cycles fill pools of the allocator, of gRPC and of threads.
WARM_UP_CYCLES = 5
GROWTH_KIB = 2048
# The C library keeps an arena for a thread that once had no arena, and stacks of threads that have ended: pools
# that grow at other moments, and hide the mappings that are looked for.
WITHOUT_POOLS = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1:glibc.pthread.stack_cache_size=0"}


def some_tags(rng):
    """A query with some of the tags, or with none, which means all."""
    return "".join(f"&tags={tag}" for tag in rng.sample(TAGS, rng.choice((0, 0, 1, 2))))


def memory_kib(pid):
    """A process's share of memory, without program and libraries, the share of which changes with every such process."""
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
    """The holdings of a process: share of memory (KiB), mappings, descriptors, and threads with how many have each name."""
    pss = memory_kib(pid)
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        mappings = sum(1 for _ in file)
    names = collections.Counter()
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
                names[file.read().strip()] += 1
        except (FileNotFoundError, ProcessLookupError):
            pass  # the thread has ended
    return {"pss_kib": pss, "mappings": mappings, "files": len(os.listdir(f"/proc/{pid}/fd")), "threads": sum(names.values()),
            "names": names}


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


def cycles(cluster, count):
    """Sleeps at both levels in turn; returns the holdings of every process after the first cycles."""
    sleeper = Sleeper(cluster, None)
    pids = [cluster.process.pid, *cluster.worker_pids()]
    for cycle in range(count):
        sleeper.call(f"/sleep?level={1 + cycle % 2}")
        sleeper.call("/wake_up")
        cluster.tokens([5, 6, 7], max_tokens=4)
        if cycle == WARM_UP_CYCLES:
            first = {pid: holdings(pid) for pid in pids}
    return first


def growth(first, last, mappings=4):
    """The growth, in words, with the names of threads that came; up to `mappings` more mappings are no growth."""
    found = []
    for pid, before in first.items():
        for kind, slack in (("pss_kib", GROWTH_KIB), ("mappings", mappings), ("files", 2), ("threads", 0)):
            if last[pid][kind] > before[kind] + slack:
                names = f" ({dict(last[pid]['names'] - before['names'])})" if kind == "threads" else ""
                found.append(f"process {pid}: {kind} {before[kind]} -> {last[pid][kind]}{names}")
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


@unittest.skipUnless(os.path.exists(SMOLLM2), "SmolLM2 is not there (tools/setup.sh model)")
class UnderLoad(unittest.TestCase):
    def test_requests_go_on_with_the_same_tokens(self):
        rng = random.Random(SEED)
        requests = make_requests(rng, STREAMS, MAX_TOKENS)
        with Cluster(SMOLLM2, workers=2) as cluster:
            wanted = Round(cluster, requests).answers()
            sleeper, done = Sleeper(cluster, rng), 0
            while done < TRANSITIONS:
                now = Round(cluster, requests)
                wait_until(lambda now=now: now.token_times or now.over(), PATIENCE_S, "a token")
                while done < TRANSITIONS and not now.over():
                    sleeper.random_transition()
                    done += 1
                    tokens = len(now.token_times)
                    wait_until(lambda now=now, tokens=tokens: len(now.token_times) > tokens or now.over(), PATIENCE_S,
                               lambda: f"a token after {sleeper.calls[-9:]}")
                now.check(wanted)
            cluster.wait_idle()
            self.assertEqual(cluster.stop(), 0)


class Memory(unittest.TestCase):
    def test_nothing_grows(self):
        with Cluster(tiny("llama-uneven"), "--dtype=float32", workers=2, env=WITHOUT_POOLS) as cluster:
            assert_nothing_grows(lambda: cycles(cluster, CYCLES))

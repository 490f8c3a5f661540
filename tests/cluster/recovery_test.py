#!/usr/bin/env python3
"""Workers are killed, stopped and ended while streams are open: no client notices, and nothing leaks.

As a script the file strikes at many random moments, and prints the cost of each fault:
  recovery_test.py [--moments 100] [--seed 1] [--workers 2] [--streams 32] [--only N] [--model PATH] [-- SERVE FLAGS]
"""
import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import time
import unittest

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cluster.harness import SMOLLM2, Cluster, tiny, wait_until  # noqa: E402
from cluster.harness.chaos import FAULTS, Chaos, open_files  # noqa: E402
from cluster.harness.streams import Round, make_requests  # noqa: E402

MOMENTS = ("prefill", "decode", "falling_asleep", "asleep", "waking", "load", "recovery")
STREAMS, MAX_TOKENS, SEED = 16, 28, 11  # two streams of each kind (streams.py)
# Many more faults than an operator would put up with.
FLAGS = ("--max-recoveries=1000000",)
RECOVERIES_WITHOUT_GROWTH = 5


def start(workers, rng, streams=STREAMS, max_tokens=MAX_TOKENS, model=SMOLLM2, flags=(), prefix=()):
    """A cluster that serves, as (cluster, chaos)."""
    cluster = Cluster(model, *FLAGS, *flags, workers=workers, prefix=prefix)
    try:
        return cluster, Chaos(cluster, make_requests(rng, streams, max_tokens), rng)
    except BaseException:
        cluster.__exit__()
        raise


class Struck(unittest.TestCase):
    """All moments of a class share a cluster; a case that fails takes the cluster down, and the next case starts a cluster.

    A row of MOMENTS has the moment, the fault, the rank and the moment's arguments; each row is a case. The moments within a
    sleep or a wake-up stand in transition_faults_test.py, by name.
    """

    WORKERS, MOMENTS = 2, ()
    cluster = chaos = None

    def __init_subclass__(cls):
        for moment, kind, rank, arguments in cls.MOMENTS:
            def case(self, moment=moment, kind=kind, rank=rank, arguments=arguments):
                self.strike(moment, kind, rank, **arguments)
                if kind == "hang":  # when the hang was named is a benchmark, which the script prints
                    self.assertIsNotNone(self.chaos.faults[0].named_s, "the log does not name the rank and its process")
            setattr(cls, f"test_{kind}_in_{moment}", case)

    def setUp(self):
        cls = type(self)
        if cls.cluster is None:
            cls.cluster, cls.chaos = start(cls.WORKERS, random.Random(SEED))
            cls.addClassCleanup(cls.cluster.__exit__)

    def strike(self, *args, **arguments):
        try:
            self.chaos.run(*args, **arguments)
        except (AssertionError, OSError) as error:
            log = self.cluster.log()[-8000:]
            self.cluster.__exit__()
            type(self).cluster = None
            raise AssertionError(f"{error}\n{log}") from error


class TwoWorkers(Struck):
    MOMENTS = (("prefill", "kill", 1, {}), ("decode", "kill", 0, {}), ("decode", "abort", 1, {}), ("decode", "exit", 0, {}),
               ("decode", "hang", 1, {}), ("asleep", "kill", 1, {"level": 2}), ("load", "kill", 0, {}), ("recovery", "kill", 1, {}))


class ThreeWorkers(Struck):
    """A rank is lost in a step, and a second rank while the first is replaced."""

    WORKERS = 3
    MOMENTS = (("recovery", "kill", 1, {}),)


def tiny_requests(rng, count=8, max_tokens=450):
    """For a model whose tokens come fast."""
    return [("/v1/completions", {"prompt": [rng.randrange(3, 500) for _ in range(30)], "max_tokens": max_tokens, "seed": 5,
                                 "temperature": rng.choice((0, 1)), "ignore_eos": True, "return_token_ids": True,
                                 "stream": True, "stream_options": {"include_usage": True}}) for _ in range(count)]


class TinyModel(unittest.TestCase):
    def test_many_recoveries_leave_nothing_behind(self):
        rng = random.Random(SEED)
        with Cluster(tiny("llama-uneven"), "--dtype=float32", *FLAGS, workers=2) as cluster:
            chaos = Chaos(cluster, tiny_requests(rng), rng)
            chaos.run("decode", "kill", 0)
            files = open_files(cluster.process.pid)
            for number in range(RECOVERIES_WITHOUT_GROWTH):
                chaos.run("decode", ("kill", "exit")[number % 2], number % 2)
            wait_until(lambda: open_files(cluster.process.pid) <= files, 30,
                       lambda: f"{files} files open, as after the first recovery: {open_files(cluster.process.pid)}")
            self.assertGreaterEqual(chaos.epoch(), RECOVERIES_WITHOUT_GROWTH + 2)
            self.assertEqual(cluster.stop(), 0)
            self.assertFalse(os.path.exists(chaos.socket_directory))

    def test_idle_group_is_recovered(self):
        rng = random.Random(SEED)
        with Cluster(tiny("llama-uneven"), "--dtype=float32", workers=2) as cluster:
            chaos = Chaos(cluster, tiny_requests(rng), rng)
            for kind in ("kill", "abort", "exit"):
                before, chaos.faults = cluster.status(), []
                chaos.strike(kind, 1)
                chaos.heal()
                chaos.check_status(before)
            Round(cluster, chaos.requests).check(chaos.expected)
            chaos.check_leaks()


# A /dev/shm of the server's own, in a mount namespace that nobody else sees.
PRIVATE_SHM = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=256k tmpfs /dev/shm && exec "$@"', "sh")


def can_mount():
    return subprocess.run([*PRIVATE_SHM, "true"], capture_output=True, check=False).returncode == 0


class FullSharedMemory(unittest.TestCase):
    @unittest.skipUnless(can_mount(), "a private /dev/shm needs the right to mount (root)")
    def test_a_recovery_needs_none(self):
        rng = random.Random(SEED)
        with Cluster(tiny("llama-uneven"), "--dtype=float32", *FLAGS, workers=2, prefix=PRIVATE_SHM) as cluster:
            chaos = Chaos(cluster, tiny_requests(rng), rng)
            # The namespace is reached through a process in the namespace.
            with open(f"/proc/{cluster.process.pid}/root/dev/shm/full", "wb", buffering=0) as file:
                with self.assertRaises(OSError):
                    while True:
                        file.write(bytes(4096))
            for rank in (0, 1):
                chaos.run("decode", "kill", rank)
            self.assertEqual(cluster.stop(), 0)


def measure(args):
    """All moments of one seed; returns the exit code."""
    rng = random.Random(args.seed)
    cluster, chaos = start(args.workers, rng, args.streams, args.max_tokens, args.model, args.flags)
    stalls = {}
    with cluster:
        for number in range(args.moments) if args.only is None else [args.only]:
            # A generator for each moment: a moment can be repeated alone.
            chaos.rng = random.Random(f"{args.seed}-{number}")
            moment, kind = chaos.rng.choice(MOMENTS), chaos.rng.choice(list(FAULTS))
            rank = chaos.rng.randrange(args.workers)
            begin = time.monotonic()
            try:
                stall = chaos.run(moment, kind, rank)
            except (AssertionError, OSError) as error:
                print(f"{number}: {moment}, {kind} of rank {rank}: FAILED: {error}\n{cluster.log()[-20000:]}", flush=True)
                return 1
            stalls.setdefault((moment, kind), []).append(stall)
            print(f"{number}: {moment}, {', '.join(map(str, chaos.faults))}: "
                  + (f"{stall:.3f} s to the next token" if stall is not None else "no token was due")
                  + "".join(f", named after {fault.named_s:.2f} s" for fault in chaos.faults if fault.named_s is not None)
                  + f"; {time.monotonic() - begin:.1f} s in all", flush=True)
        code = cluster.stop()
    report(stalls)
    return 0 if code == 0 else 1


def report(stalls):
    print("\n| moment | fault | times | median, s | largest, s |\n|---|---|---|---|---|")
    for (moment, kind), found in sorted(stalls.items()):
        seconds = [stall for stall in found if stall is not None]
        shown = f"{statistics.median(seconds):.2f} | {max(seconds):.2f}" if seconds else "- | -"
        print(f"| {moment} | {kind} | {len(found)} | {shown} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    parser.add_argument("--only", type=int, help="this moment alone")
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("flags", nargs="*")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the cluster ends with the script
    sys.exit(measure(parser.parse_args()))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Many concurrent streams of mixed lengths, some of whose clients vanish: nothing leaks, nothing gets stuck.

Usage: soak.py MODEL [--seconds 600] [--streams 64] [--workers 2] [--seed 1] [-- SERVE FLAGS]
Prints memory and file descriptors of every process as it goes; exit 1 when something leaked or got stuck.
"""
import argparse
import http.client
import os
import random
import sys
import threading
import time

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir)))
from cluster.harness import Cluster  # noqa: E402

STUCK_S = 120


def rss_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) / 1024


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Soak:
    def __init__(self, cluster, streams, seed, max_prompt=200, max_tokens=200, vocabulary=(3, 500)):
        self.cluster, self.streams, self.seed = cluster, streams, seed
        self.max_prompt, self.max_tokens, self.vocabulary = max_prompt, max_tokens, vocabulary
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.finished = self.vanished = 0
        self.errors = []

    def one_request(self, rng):
        prompt = [rng.randrange(*self.vocabulary) for _ in range(rng.randint(1, self.max_prompt))]
        limit = rng.randint(1, self.max_tokens)
        leave_after = rng.randint(0, limit) if rng.random() < 0.4 else None
        sampling = rng.choice(({"temperature": 0}, {"temperature": 0.8}, {"temperature": 1.2, "top_p": 0.9, "n": 2}))
        stream = self.cluster.open_stream(prompt, timeout=STUCK_S, max_tokens=limit, **sampling)
        if stream.status != 200:
            raise AssertionError(f"HTTP {stream.status}: {stream.answer.read()[:200]}")
        reasons = []
        for count, event in enumerate(stream.events()):
            if "error" in event:
                raise AssertionError(f"error event: {event['error']}")
            reasons += [choice["finish_reason"] for choice in event["choices"] if choice["finish_reason"]]
            if leave_after is not None and count >= leave_after:
                stream.drop()
                with self.lock:
                    self.vanished += 1
                return
        stream.close()
        if not reasons or set(reasons) - {"length"}:
            raise AssertionError(f"finish reasons {reasons}")
        with self.lock:
            self.finished += 1

    def client(self, number):
        rng = random.Random(self.seed * 1000 + number)
        while not self.stopping.is_set():
            try:
                self.one_request(rng)
            except (OSError, http.client.HTTPException, AssertionError, ValueError) as error:
                with self.lock:
                    self.errors.append(f"{type(error).__name__}: {error}")
                return

    def run(self, seconds, report=lambda line: None, interval=30):
        """Runs for `seconds`; returns (rss, files) samples per process, taken while loaded."""
        pids = [self.cluster.process.pid, *self.cluster.worker_pids()]
        threads = [threading.Thread(target=self.client, args=(number,)) for number in range(self.streams)]
        for thread in threads:
            thread.start()
        samples, end = [], time.monotonic() + seconds
        while time.monotonic() < end and not self.errors:
            time.sleep(min(interval, max(0.1, end - time.monotonic())))
            samples.append({pid: (rss_mib(pid), open_files(pid)) for pid in pids})
            report(f"{self.finished} finished, {self.vanished} vanished; "
                   + ", ".join(f"pid {pid}: {rss:.1f} MiB, {files} files" for pid, (rss, files) in samples[-1].items()))
        self.stopping.set()
        for thread in threads:
            thread.join(STUCK_S)
        if any(thread.is_alive() for thread in threads):
            self.errors.append("a client is stuck")
        return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    with Cluster(args.model, *args.flags, workers=args.workers) as cluster:
        before = {pid: open_files(pid) for pid in [cluster.process.pid, *cluster.worker_pids()]}
        soak = Soak(cluster, args.streams, args.seed)
        samples = soak.run(args.seconds, lambda line: print(line, flush=True))
        problems = list(soak.errors)
        try:
            cluster.wait_idle()
        except AssertionError as error:
            problems.append(str(error))
        # After the first third everything is warm: a process that grows by more than a tenth after that leaks.
        warm = samples[len(samples) // 3] if samples else {}  # none: a client has failed at once
        for pid, (rss, _) in (samples[-1] if samples else {}).items():
            if rss > warm[pid][0] * 1.1 + 8:
                problems.append(f"pid {pid} grew from {warm[pid][0]:.1f} to {rss:.1f} MiB")
            if open_files(pid) > before[pid] + 4:
                problems.append(f"pid {pid} had {before[pid]} files open, now {open_files(pid)}")
        if cluster.stop() != 0:
            problems.append("the coordinator did not exit with 0")
    print("\n".join(problems) or f"clean: {soak.finished} finished, {soak.vanished} vanished")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

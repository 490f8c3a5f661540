#!/usr/bin/env python3
"""Ranks on several hosts, which are network namespaces with host names: tokens, and cables that are cut.

Needs root, `ip` (iproute2) and `unshare` (util-linux); skipped elsewhere. As a script the file measures a step over two hosts
beside a step over shared memory, in turns, and how long a cut cable holds up a stream:
  two_hosts_test.py [--model PATH] [--rounds 5] [--concurrency 1,8]
"""
import argparse
import concurrent.futures
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cluster.harness import SMOLLM2, WORKER, Cluster, expected, free_ports, tiny, wait_until  # noqa: E402

MODEL = "llama-uneven"
# A network that is set aside for tests (RFC 2544).
NETWORK = "198.18.77"
COORDINATOR_IP = f"{NETWORK}.1"
FLAGS = ("--dtype=float32", "--threads-per-worker=1")
TOKENS = 300
HEAL_S = 90
# Found by the hosts' own probes after 4 s, or by the coordinator's heartbeats; the rest is for a busy machine.
NAMED_S = 30
NOWHERE = "02:00:00:00:00:99"
SECRET = {"SOMNUS_CLUSTER_SECRET": "0123456789abcdef" * 4}


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


class Lan:
    """A switch, which the coordinator is plugged into, and hosts on it. Leaving the context ends the switch and the hosts."""

    def __init__(self, prefix="smn", network=NETWORK):
        self.switch, self.network = f"{prefix}{os.getpid() % 100000}", network
        self.coordinator = f"{network}.1"
        self.hosts, self._processes, self._logs = [], [], []

    def __enter__(self):
        try:
            run("ip", "link", "add", self.switch, "type", "bridge")
            run("ip", "address", "add", f"{self.coordinator}/24", "dev", self.switch)
            run("ip", "link", "set", self.switch, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.kill()
            process.wait()
        for log in self._logs:
            log.close()
        for number, host in enumerate(self.hosts):
            # A namespace takes time to end, and so does its cable: the next host's cable would have the same name.
            subprocess.run(["ip", "link", "delete", self.port(number)], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "delete", host], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", self.switch], capture_output=True, check=False)

    def add_host(self):
        """Returns the number of a new host, which counts from 0."""
        number = len(self.hosts)
        host = f"{self.switch}h{number}"
        run("ip", "netns", "add", host)
        self.hosts.append(host)
        run("ip", "link", "add", self.port(number), "type", "veth", "peer", "name", "eth0", "netns", host)
        run("ip", "link", "set", self.port(number), "up")
        run("ip", "-n", host, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
        run("ip", "-n", host, "link", "set", "eth0", "up")
        run("ip", "-n", host, "link", "set", "lo", "up")
        self.plug(number)
        return number

    def address(self, host):
        return f"{self.network}.{10 + host}"

    def port(self, host):
        return f"{self.switch}p{host}"

    def plug(self, host):
        run("ip", "link", "set", self.port(host), "master", self.switch)

    def unplug(self, host):
        """From then on nothing that the host sends arrives anywhere, and the host is told nothing."""
        run("ip", "link", "set", self.port(host), "nomaster")

    def break_between(self, one, other):
        """The two hosts no longer reach each other; all other hosts still reach both."""
        for host, peer in ((one, other), (other, one)):
            run("ip", "-n", self.hosts[host], "neighbour", "replace", self.address(peer), "lladdr", NOWHERE, "dev", "eth0",
                "nud", "permanent")

    def mend_between(self, one, other):
        for host, peer in ((one, other), (other, one)):
            run("ip", "-n", self.hosts[host], "neighbour", "delete", self.address(peer), "dev", "eth0")

    def start_worker(self, host, cluster_port, *flags):
        """A worker on the host, under the host's name. The process has the worker's pid."""
        log = tempfile.NamedTemporaryFile(prefix="somnus_worker_", suffix=".log")
        name = 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"'
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.hosts[host], "unshare", "--uts", "sh", "-c", name, f"host{host}", WORKER,
             f"--coordinator={self.coordinator}:{cluster_port}", *flags],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **SECRET})
        self._logs.append(log)
        self._processes.append(process)
        return process

    def logs(self):
        texts = []
        for log in self._logs:
            with open(log.name, encoding="utf-8", errors="replace") as file:
                texts.append(f"{os.path.basename(log.name)}:\n{file.read()[-3000:]}")
        return "\n".join(texts)


def start_coordinator(model, cluster_port, *flags, workers="remote:2", host=COORDINATOR_IP):
    return Cluster(model, *flags, f"--workers={workers}", f"--cluster-host={host}", f"--cluster-port={cluster_port}",
                   workers=0, wait=False, env=SECRET)


def start_two_hosts(lan, cluster_port):
    """Two hosts with a worker each: rank 0 on host 0, rank 1 on host 1."""
    return [lan.start_worker(lan.add_host(), cluster_port, f"--rank={rank}") for rank in range(2)]


def why_not():
    """Why this machine cannot have several hosts; empty where it can."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if not (shutil.which("ip") and shutil.which("unshare")):
        return "needs ip (iproute2) and unshare (util-linux)"
    try:
        with Lan() as lan:
            hosts = [lan.add_host(), lan.add_host()]
            script = f"exec 3<>/dev/tcp/{lan.address(hosts[1])}/9"
            run("ip", "netns", "exec", lan.hosts[hosts[0]], "unshare", "--uts", "true")
            # Nobody listens, and the other host says so; a packet filter between the hosts would say nothing.
            reached = subprocess.run(["ip", "netns", "exec", lan.hosts[hosts[0]], "timeout", "5", "bash", "-c", script],
                                     capture_output=True, text=True, check=False)
            return "" if "refused" in reached.stderr else f"hosts on a bridge do not reach each other: {reached.stderr}"
    except (OSError, subprocess.SubprocessError) as error:
        return f"network namespaces cannot be made here: {getattr(error, 'stderr', None) or error}"


class TwoHosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        reason = why_not()
        if reason:
            raise unittest.SkipTest(reason)

    def setUp(self):
        self.lan = self.enterContext(Lan())
        self.cluster_port, = free_ports(1)
        self.cluster = self.enterContext(start_coordinator(tiny(MODEL), self.cluster_port, *FLAGS))
        self.workers = start_two_hosts(self.lan, self.cluster_port)
        self.cluster.wait_ready()

    def logs(self):
        return f"coordinator:\n{self.cluster.log()[-6000:]}\n{self.lan.logs()}"

    def epoch(self):
        return int(self.cluster.status()["epoch"])

    def rank_pids(self):
        return [rank["pid"] for rank in self.cluster.status()["ranks"]]

    def start_stream(self, prompt):
        """A stream that has begun, as (first tokens, the rest of the events)."""
        events = self.cluster.open_stream(prompt, max_tokens=TOKENS, return_token_ids=True, timeout=HEAL_S).events()
        return list(next(events)["choices"][0]["token_ids"]), events

    def finish(self, tokens, events):
        for event in events:
            self.assertNotIn("error", event, self.logs())
            for choice in event["choices"]:
                tokens += choice["token_ids"]
        return tokens

    def test_tokens_and_logprobs_are_those_of_one_host(self):
        for case in expected(MODEL):
            with self.subTest(case=case["name"]):
                self.assertEqual(self.cluster.tokens(case["prompt"], ignore_eos=case["ignore_eos"]), case["tokens"])
        prompts = [[(7 * i + 3 * j) % 400 for j in range(4 + 60 * i)] for i in range(4)]
        fields = {"max_tokens": 24, "logprobs": 5, "ignore_eos": True}
        found = [self.cluster.complete(prompt, **fields)["choices"] for prompt in prompts]
        with Cluster(tiny(MODEL), *FLAGS, workers=2) as one_host:
            self.assertEqual(found, [one_host.complete(prompt, **fields)["choices"] for prompt in prompts])
        self.assertEqual(sorted(self.rank_pids()), sorted(worker.pid for worker in self.workers))
        self.assertEqual(self.cluster.stop(), 0)
        for worker in self.workers:
            self.assertEqual(worker.wait(HEAL_S), 0)

    def test_sleep_over_two_hosts(self):
        wanted = self.cluster.tokens([5, 17, 42, 9], max_tokens=24, ignore_eos=True)
        for level in ("1", "2"):
            self.cluster.cli("sleep", "--level", level)
            self.cluster.cli("wake-up")
            self.assertEqual(self.cluster.tokens([5, 17, 42, 9], max_tokens=24, ignore_eos=True), wanted)
        self.assertEqual(self.epoch(), 1)

    def test_a_host_whose_cable_is_cut_is_replaced_by_a_spare(self):
        prompt = [5, 17, 42, 9]
        wanted = self.cluster.tokens(prompt, max_tokens=TOKENS, ignore_eos=True)
        spare = self.lan.start_worker(self.lan.add_host(), self.cluster_port, "--register-timeout=5m")
        tokens, events = self.start_stream(prompt)
        self.lan.unplug(1)
        self.assertEqual(self.finish(tokens, events), wanted, self.logs())
        self.assertGreater(self.epoch(), 1)
        self.assertEqual(self.rank_pids(), [self.workers[0].pid, spare.pid])
        self.assertEqual(self.cluster.tokens(prompt, max_tokens=TOKENS, ignore_eos=True), wanted)

    def test_a_cable_between_two_hosts_that_is_cut_for_a_while(self):
        prompt = [42, 9, 5, 17]
        wanted = self.cluster.tokens(prompt, max_tokens=TOKENS, ignore_eos=True)
        tokens, events = self.start_stream(prompt)
        self.lan.break_between(0, 1)
        wait_until(lambda: "RECOVERING" in self.cluster.status()["state"], NAMED_S,
                   lambda: f"the cut is found:\n{self.logs()}")
        self.lan.mend_between(0, 1)
        self.assertEqual(self.finish(tokens, events), wanted, self.logs())
        self.assertGreater(self.epoch(), 1)
        self.assertEqual(self.rank_pids(), [worker.pid for worker in self.workers], "nobody had to be replaced")


def step_ms(cluster, concurrency, tokens=128):
    """Milliseconds per step of `concurrency` completions at once, with their prompts."""
    prompts = [[100 * i + j for j in range(16)] for i in range(concurrency)]
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        start = time.monotonic()
        list(pool.map(lambda prompt: cluster.tokens(prompt, max_tokens=tokens, ignore_eos=True), prompts))
        return (time.monotonic() - start) * 1000 / tokens


def longest_gap_s(cluster, prompt, tokens, cut):
    """The longest time between two events of a stream; `cut` is called after the first event."""
    events = cluster.open_stream(prompt, max_tokens=tokens, timeout=HEAL_S).events()
    next(events)
    cut()
    last, longest = time.monotonic(), 0
    for event in events:
        assert "error" not in event, event
        now = time.monotonic()
        last, longest = now, max(longest, now - last)
    return longest


def measure(args):
    with Lan() as lan:
        cluster_port, = free_ports(1)
        flags = ("--threads-per-worker=1",)
        with start_coordinator(args.model, cluster_port, *flags) as two_hosts, \
                Cluster(args.model, *flags, workers=2) as one_host:
            start_two_hosts(lan, cluster_port)
            two_hosts.wait_ready()
            for concurrency in map(int, args.concurrency.split(",")):
                samples = [(step_ms(one_host, concurrency), step_ms(two_hosts, concurrency)) for _ in range(args.rounds + 1)]
                shm, tcp = zip(*samples[1:])  # the first round warms up
                ratios = [b / a for a, b in samples[1:]]
                print(f"concurrency {concurrency}: shared memory {statistics.median(shm):.2f} ms per step "
                      f"({min(shm):.2f}..{max(shm):.2f}), two hosts {statistics.median(tcp):.2f} ({min(tcp):.2f}..{max(tcp):.2f}), "
                      f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})", flush=True)
            spare = lan.start_worker(lan.add_host(), cluster_port, "--register-timeout=5m")
            gap = longest_gap_s(two_hosts, [1, 2, 3], 64, lambda: lan.unplug(1))
            assert spare.poll() is None
            print(f"a host's cable is cut, a spare takes its place: no token for {gap:.1f} s")
            gap = longest_gap_s(two_hosts, [1, 2, 3], 64, lambda: lan.unplug(2) or time.sleep(1) or lan.plug(2))
            print(f"a host's cable is out for a second: no token for {gap:.1f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", default="1,8")
    reason = why_not()
    if reason:
        sys.exit(reason)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()

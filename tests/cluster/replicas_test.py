#!/usr/bin/env python3
"""Two replicas behind one queue: a replica is killed or hangs, or both are put to sleep or rolled, while 16 streams are open.
No client notices.

Run by run_suites.py; needs a build of //coordinator, //worker and //tools:somnus.
"""
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import unittest

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cluster.harness import SMOLLM2, SOMNUS, Cluster, alive, begin_and_stop, expected, tiny, wait_until  # noqa: E402
from cluster.harness.run_directory import SOON_S, RunDirectory, kill  # noqa: E402
from cluster.harness.streams import Round, make_requests  # noqa: E402

STREAMS, MAX_TOKENS, SEED = 16, 40, 5
HEAL_S = 120
MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")


class HealthWatch:
    """Asks /health again and again until stop(): the set of all statuses."""

    def __init__(self, cluster):
        self._cluster, self._over, self._seen = cluster, threading.Event(), set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._over.is_set():
            self._seen.add(self._cluster.health())
            self._over.wait(0.02)

    def stop(self):
        self._over.set()
        self._thread.join()
        return self._seen


class Replicas(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(SMOLLM2, "--data-parallel-size=2", "--max-recoveries=1000000", workers=1)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.requests = make_requests(random.Random(SEED), STREAMS, MAX_TOKENS)
        cls.expected = Round(cls.cluster, cls.requests).answers()

    def replicas(self):
        return self.cluster.status()["replicas"]

    def running_round(self):
        """A round under way, with a fifth of the tokens delivered."""
        enough = STREAMS * MAX_TOKENS // 5
        streams = Round(self.cluster, self.requests)
        wait_until(lambda: len(streams.token_times) > enough or streams.over(), HEAL_S, "tokens come", poll=0.005)
        return streams

    def stopped_round(self, replica):
        """A round under way, and the replica's worker, which is stopped in the middle of the round."""
        pid = self.cluster.status()["ranks"][replica]["pid"]
        return begin_and_stop(pid, self.running_round, lambda: self.replicas()[replica]["num_requests_running"] > 0,
                              lambda streams: streams.check(self.expected)), pid

    def wait_healed(self):
        def healed():
            status = self.cluster.status()
            return all(replica["state"] == "ENGINE_STATE_AWAKE" for replica in status["replicas"])
        wait_until(healed, HEAL_S, lambda: f"all replicas are awake; log:\n{self.cluster.log()[-4000:]}")
        self.cluster.wait_idle()

    def test_each_replica_has_workers_of_its_own(self):
        status = self.cluster.status()
        self.assertEqual([(rank["replica"], rank["rank"]) for rank in status["ranks"]], [(0, 0), (1, 0)])
        self.assertEqual(len({rank["pid"] for rank in status["ranks"]}), 2)
        self.assertEqual([replica["state"] for replica in status["replicas"]], ["ENGINE_STATE_AWAKE"] * 2)
        for replica in status["replicas"]:
            self.assertGreater(replica["num_requests"], 0, "both have had requests")
            self.assertGreaterEqual(replica["epoch"], 1)
        shown = self.cluster.cli("status").stdout
        self.assertIn("replica 1 awake", shown)
        self.assertIn("1.0   ", shown)

    def test_a_killed_replica_costs_nobody_anything(self):
        """Replica 1; replica 0 is left below. ReplicaSetTest.RandomLosses (tests/replicas) loses all of three."""
        moved = self.cluster.metric("somnus:requests_moved_total")
        before = self.replicas()[1]
        streams, pid = self.stopped_round(1)
        health = HealthWatch(self.cluster)
        with contextlib.suppress(ProcessLookupError):  # the coordinator may have killed the stopped worker
            os.kill(pid, signal.SIGKILL)
        streams.check(self.expected)
        self.wait_healed()
        self.assertEqual(health.stop(), {200}, "the other replica serves all the while")
        after = self.replicas()[1]
        self.assertEqual(after["num_recoveries"], before["num_recoveries"] + 1)
        self.assertGreater(self.cluster.metric("somnus:requests_moved_total"), moved)
        Round(self.cluster, self.requests).check(self.expected)

    def test_a_replica_that_hangs_is_left(self):
        before = self.replicas()[0]["num_recoveries"]
        self.stopped_round(0)[0].check(self.expected)
        wait_until(lambda: self.replicas()[0]["num_recoveries"] == before + 1, HEAL_S, "the recovery")
        self.wait_healed()

    def test_sleep_and_wake_up_under_load(self):
        streams = self.running_round()
        self.cluster.cli("sleep")
        status = self.cluster.status()
        self.assertEqual(status["state"], "ENGINE_STATE_ASLEEP")
        self.assertEqual([replica["state"] for replica in status["replicas"]], ["ENGINE_STATE_ASLEEP"] * 2)
        for rank in status["ranks"]:
            self.assertEqual(sum(map(int, rank["bytes_by_tag"].values())), 0)
        self.cluster.cli("wake-up")
        streams.check(self.expected)
        self.cluster.wait_idle()

    def test_a_roll_under_load_loses_nothing(self):
        before = {rank["pid"] for rank in self.cluster.status()["ranks"]}
        recoveries = self.cluster.metric("somnus:recoveries_total")
        streams = self.running_round()
        health = HealthWatch(self.cluster)
        self.assertRegex(self.cluster.cli("roll", "--grace=0").stdout, r"^restarted 2 replicas in .* s\n$")
        streams.check(self.expected)
        self.assertEqual(health.stop(), {200}, "one replica serves all the while")
        after = {rank["pid"] for rank in self.cluster.status()["ranks"]}
        self.assertEqual((len(after), before & after), (2, set()), "all workers are new processes")
        self.assertEqual(self.cluster.metric("somnus:recoveries_total"), recoveries, "a roll is no recovery")
        response = self.cluster.request("POST", "/roll?grace_s=5", port=self.cluster.admin_port)
        self.assertEqual((response.status, response.json["num_replicas"]), (200, 2))
        Round(self.cluster, self.requests).check(self.expected)


def pids(cluster):
    return {(rank["replica"], rank["rank"]): rank["pid"] for rank in cluster.status()["ranks"]}


class Adoption(unittest.TestCase):
    """A coordinator that comes back finds the workers of every replica."""

    FLAGS = ("--data-parallel-size=2", "--dtype=float32")

    def setUp(self):
        self.run_dir = RunDirectory(tiny(MODEL), *self.FLAGS)
        self.addCleanup(self.run_dir.close)

    def assert_serves(self, cluster):
        self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def assert_nothing_left(self):
        self.assertEqual([pid for pid in self.run_dir.workers if alive(pid)], [])
        self.assertEqual(os.listdir(self.run_dir.path), ["lock"])

    def test_awake_and_asleep_the_workers_of_all_replicas_go_on(self):
        cluster = self.run_dir.start()
        known = pids(cluster)
        self.assertEqual(sorted(known), [(0, 0), (0, 1), (1, 0), (1, 1)])
        for how in (signal.SIGKILL, signal.SIGUSR1):
            with self.subTest(how=how):
                cluster.process.send_signal(how)
                self.assertEqual(cluster.process.wait(SOON_S), 0 if how == signal.SIGUSR1 else -how)
                cluster = self.run_dir.start()
                self.assertEqual(pids(cluster), known)
                self.assertNotIn("weights loaded", cluster.log())
                for _ in range(4):  # so that both replicas compute
                    self.assert_serves(cluster)
                cluster.cli("sleep")
                cluster.process.send_signal(how)
                cluster.process.wait(SOON_S)
                cluster = self.run_dir.start_asleep()
                self.assertEqual([replica["state"] for replica in cluster.status()["replicas"]], ["ENGINE_STATE_ASLEEP"] * 2)
                self.assertEqual(pids(cluster), known)
                cluster.cli("wake-up")
                self.assert_serves(cluster)
        self.assertEqual(cluster.stop(), 0)
        self.assert_nothing_left()

    def test_what_a_replica_has_lost_meanwhile_is_replaced(self):
        cluster = self.run_dir.start()
        known = pids(cluster)
        kill(cluster)
        lost = {(0, 1), (1, 0), (1, 1)}  # a worker of replica 0, replica 1 as a whole
        for place in lost:
            os.kill(known[place], signal.SIGKILL)
        cluster = self.run_dir.start()
        now = pids(cluster)
        self.assertEqual({place for place in known if now[place] != known[place]}, lost)
        for _ in range(4):
            self.assert_serves(cluster)

    def test_workers_of_one_replica_end_and_somnus_stop_ends_those_of_two(self):
        cluster = self.run_dir.start("--data-parallel-size=1")
        of_one = pids(cluster).values()
        kill(cluster)
        cluster = self.run_dir.start()
        self.assertEqual([pid for pid in of_one if alive(pid)], [])
        known = pids(cluster)
        self.assertEqual(len(known), 4)
        refused = subprocess.run([SOMNUS, "serve", tiny(MODEL), "--port=0", "--admin-port=0", "--grpc-port=0",
                                  "--control-port=0", f"--run-dir={self.run_dir.path}", *self.FLAGS],
                                 capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"another coordinator (pid {cluster.process.pid}) uses {self.run_dir.path}", refused.stderr)
        kill(cluster)
        done = cluster.cli("stop", f"--run-dir={self.run_dir.path}")
        self.assertRegex(done.stdout, r"^ended 4 workers that were left \(pid .*\)\n$")
        self.assertEqual([pid for pid in known.values() if alive(pid)], [])
        self.assert_nothing_left()


class FailedReplica(unittest.TestCase):
    """A replica whose workers were lost too often is tried again unasked; ReplicaRollTest (tests/replicas) has a roll."""

    def lose(self, cluster, replica):
        os.kill(pids(cluster)[replica, 0], signal.SIGKILL)
        wait_until(lambda: f"replica {replica}: the engine has failed" in cluster.log(), SOON_S, cluster.log)

    def wait_awake(self, cluster):
        wait_until(lambda: [replica["state"] for replica in cluster.status()["replicas"]] == ["ENGINE_STATE_AWAKE"] * 2,
                   HEAL_S, cluster.log)
        self.assertEqual([replica["error"] for replica in cluster.status()["replicas"]], ["", ""])

    def test_after_a_pause(self):
        with Cluster(tiny(MODEL), "--dtype=float32", "--data-parallel-size=2", "--max-recoveries=0",
                     "--replica-retry-pause=100ms", workers=1) as cluster:
            for lost in (0, 1):
                with self.subTest(lost=lost):
                    known = pids(cluster)
                    health = HealthWatch(cluster)
                    self.lose(cluster, lost)
                    self.wait_awake(cluster)
                    self.assertEqual(health.stop(), {200}, "the other replica serves all the while")
                    now = pids(cluster)
                    self.assertEqual([place for place in known if now[place] != known[place]], [(lost, 0)])
                    for _ in range(4):
                        self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])


if __name__ == "__main__":
    unittest.main()

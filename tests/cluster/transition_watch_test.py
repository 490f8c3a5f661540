"""Sleeps and wake-ups that somebody watches, with real processes: over gRPC, in the status, and by the bar of `somnus`.

The workers are tests/worker:faulty_worker. A worker stops in the middle of a transition, as in a long transition.
"""
import json
import os
import pty
import re
import select
import subprocess
import threading
import unittest

from cluster.harness import SOMNUS, expected, grpc, stubs, wait_until
from cluster.poison_test import FaultyCluster

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if not case["ambiguous"])
END_S = 60


def setUpModule():
    stubs.generate("model", "transition", "weights", "control")
    global pb, rpc
    from proto import control_pb2 as pb, control_pb2_grpc as rpc


class Watcher:
    """A stream of WatchTransition, read by a thread. A context manager; the end of the context cancels the stream."""

    def __init__(self, cluster, follow=True):
        self._channel = grpc.insecure_channel(f"127.0.0.1:{cluster.control_port}")
        self.messages, self.code = [], None
        self._call = rpc.ControlServiceStub(self._channel).WatchTransition(pb.WatchTransitionRequest(interval_s=0.05, follow=follow))
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        try:
            for message in self._call:
                self.messages.append(message)
        except grpc.RpcError:
            pass
        self.code = self._call.code()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._call.cancel()
        self._thread.join(END_S)
        self._channel.close()

    def state(self):
        return pb.EngineState.Name(self.messages[-1].state).removeprefix("ENGINE_STATE_") if self.messages else ""

    def wait_for(self, condition, what):
        """The first message from now on for which `condition` holds."""
        begin = len(self.messages)
        return wait_until(lambda: next((message for message in self.messages[begin:] if condition(message)), None), END_S,
                          lambda: f"{what}; last: {self.messages[-1:]}")

    def ended(self):
        self._thread.join(END_S)
        return not self._thread.is_alive()

    def progress(self, wakes_up):
        """The reports of every rank on its last such transition, as {(replica, rank): [TransitionProgress]}."""
        found = {}
        for message in self.messages:
            for rank in message.ranks:
                if rank.HasField("progress") and rank.progress.wakes_up == wakes_up:
                    found.setdefault((rank.replica, rank.rank), []).append(rank.progress)
        return {name: [one for one in all_of_rank if one.prepare_operation_id == all_of_rank[-1].prepare_operation_id]
                for name, all_of_rank in found.items()}


class Call(threading.Thread):
    """A call of operators in a thread."""

    def __init__(self, cluster, target):
        super().__init__()
        self.response = None
        self._ask = lambda: cluster.request("POST", target, port=cluster.admin_port, timeout=END_S)
        self.start()

    def run(self):
        self.response = self._ask()


class Held(unittest.TestCase):
    """A rank stands still within a wake-up, at the second region."""

    def setUp(self):
        self.faulty = FaultyCluster("", "--kv-cache-memory-bytes=16MiB")
        self.cluster = self.faulty.__enter__()
        self.addCleanup(self.faulty.__exit__)
        self.addCleanup(self.faulty.set_faults, "")  # nobody waits any longer
        self.assertEqual(self.admin("/sleep?level=2").status, 200)

    def admin(self, target):
        return self.cluster.request("POST", target, port=self.cluster.admin_port, timeout=END_S)

    def hold(self):
        return self.faulty.faults.set_moment("access#2", "wait@1")

    def let_go(self):
        self.faulty.set_faults("")

    def check_progress(self, watcher, wakes_up):
        by_rank = watcher.progress(wakes_up)
        self.assertEqual(sorted(by_rank), [(0, 0), (0, 1)])
        for seen in by_rank.values():
            done = [one.bytes_done for one in seen]
            self.assertEqual(done, sorted(done), "it never goes back")
            self.assertEqual(len({one.bytes_total for one in seen}), 1, "the total is known from the beginning")
            self.assertEqual(seen[-1].phase, "committed")
            self.assertEqual(done[-1], seen[-1].bytes_total)
            self.assertGreater(done[-1], 0)

    def test_a_watcher_sees_how_far_each_rank_is(self):
        line = self.hold()
        with Watcher(self.cluster) as watcher:
            wait_until(lambda: watcher.messages, END_S, "a first message, before the call")
            call = Call(self.cluster, "/wake_up")
            self.faulty.faults.wait_for(line)
            held = watcher.wait_for(lambda message: len(message.ranks) == 2 and message.ranks[0].progress.phase == "prepared",
                                    "rank 0 waits for rank 1")
            self.assertEqual(held.state, pb.ENGINE_STATE_WAKING)
            slow = held.ranks[1].progress
            self.assertTrue(slow.wakes_up)
            self.assertEqual(slow.phase, "map")
            self.assertGreater(slow.bytes_done, 0, "its first region is there")
            self.assertLess(slow.bytes_done, slow.bytes_total)
            # Nothing waits for the transition but the call: neither the status nor another watcher.
            status = self.cluster.status()
            self.assertEqual(status["state"], "ENGINE_STATE_WAKING")
            self.assertEqual([rank["transition"]["phase"] for rank in status["ranks"]], ["prepared", "map"])
            with Watcher(self.cluster, follow=False) as other:
                wait_until(lambda: other.messages, END_S, "another watcher")
                self.assertTrue(call.is_alive())
                self.let_go()
                call.join(END_S)
                self.assertEqual(call.response.status, 200)
                self.assertTrue(other.ended(), "with the transition")
                self.assertEqual(other.code, grpc.StatusCode.OK)
                self.assertEqual(other.state(), "AWAKE")
                self.check_progress(other, wakes_up=True)
            watcher.wait_for(lambda message: message.state == pb.ENGINE_STATE_AWAKE and all(
                rank.progress.phase == "committed" for rank in message.ranks), "the end")
            self.check_progress(watcher, wakes_up=True)
            self.assertIsNone(watcher.code, "who follows goes on")
            self.assertEqual(self.admin("/sleep").status, 200)
            watcher.wait_for(lambda message: message.state == pb.ENGINE_STATE_ASLEEP, "the next sleep")
            self.check_progress(watcher, wakes_up=False)
        self.assertEqual(self.admin("/wake_up").status, 200)
        self.assertEqual(self.cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def test_the_bar_is_for_a_terminal(self):
        line = self.hold()
        master, terminal = pty.openpty()
        self.addCleanup(os.close, master)
        process = subprocess.Popen([SOMNUS, "wake-up"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=terminal, text=True,
                                   env={**self.cluster.cli_environment(), "TERM": "xterm"})
        self.addCleanup(process.kill)
        os.close(terminal)
        self.faulty.faults.wait_for(line)
        drawn = ""
        while not re.search(r"waking up \[#+ +\] +\d+%  .* of .*  map", drawn):
            self.assertTrue(select.select([master], [], [], END_S)[0], drawn)
            drawn += os.read(master, 4096).decode()
        self.let_go()
        out, _ = process.communicate(timeout=END_S)
        self.assertEqual(process.returncode, 0)
        self.assertRegex(out, r"^mapped .* in .* s\n$")
        self.assertNotIn("waking", out)

    def test_scripts_get_the_report_and_no_bar(self):
        done = self.cluster.cli("wake-up", "--json")
        self.assertEqual(done.stderr, "")
        woken = json.loads(done.stdout)
        self.assertTrue(woken["awake"])
        self.assertEqual([rank["rank"] for rank in woken["report"]["ranks"]], [0, 1])
        mapped = sum(rank["tags"]["weights"]["mapped_bytes"] for rank in woken["report"]["ranks"])
        self.assertEqual(mapped, woken["mapped_bytes_by_tag"]["weights"])
        slept = json.loads(self.cluster.cli("sleep", "--json").stdout)
        self.assertEqual(slept["level"], 1)
        self.assertEqual(slept["report"]["tags"]["weights"], {"state": "backed_up", "changed": True})

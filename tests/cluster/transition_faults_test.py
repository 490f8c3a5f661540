"""Sleeps and wake-ups that lose a rank, the coordinator, the memory or the disk at a named moment, with real processes.

Open requests get exactly the undisturbed tokens, the state is the truth on every rank, the engine ends awake or
asleep, nothing is left behind, and the same call works later. The workers are tests/worker:faulty_worker, which strike
themselves.
"""
import json
import os
import random
import re
import shutil
import tempfile
import threading
import time
import unittest

from cluster.harness import expected, tiny, wait_until
from cluster.harness.chaos import Chaos, Fault
from cluster.harness.fault_file import WORKER, FaultFile
from cluster.harness.run_directory import SOON_S, RunDirectory, kill, pids, status
from cluster.harness.streams import Round
from cluster.poison_test import FaultyCluster
from cluster.recovery_test import can_mount, tiny_requests
from cluster.sleep_cycles_test import WITHOUT_POOLS, assert_no_growth, assert_nothing_grows, growth, holdings

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if not case["ambiguous"])
KV_CACHE = "--kv-cache-memory-bytes=16MiB"
END_S = 120
# Mappings of pools that threads make over time; sixteen restarts that leak a mapping each are above this slack.
MAPPINGS_SLACK = 12
AWAKE, ASLEEP = "ENGINE_STATE_AWAKE", "ENGINE_STATE_ASLEEP"
WAKE = "/wake_up"


def sleep(level):
    return f"/sleep?level={level}"


def post(cluster, target):
    return cluster.request("POST", target, port=cluster.admin_port, timeout=END_S)


def resident(rank):
    """Resident bytes of a rank, by tag, without tags that have no bytes."""
    return {tag: int(count) for tag, count in rank["bytes_by_tag"].items() if int(count)}


def check_truth(test, cluster, awake):
    """The engine is awake or asleep, and says so everywhere; `awake`: the bytes of each rank in that state. Returns the state."""
    now = cluster.status()
    test.assertIn(now["state"], (AWAKE, ASLEEP))
    is_awake = now["state"] == AWAKE
    sleeping = cluster.request("GET", "/is_sleeping", port=cluster.admin_port).json["is_sleeping"]
    test.assertEqual((sleeping, cluster.health()), (not is_awake, 200 if is_awake else 503))
    test.assertEqual([rank["state"] for rank in now["ranks"]], ["awake" if is_awake else "asleep"] * len(now["ranks"]))
    test.assertEqual([resident(rank) for rank in now["ranks"]], awake if is_awake else [{} for _ in awake])
    return now["state"]


class KilledRanks(unittest.TestCase):
    """A rank dies as by kill -9 at a moment of a call, with requests open; the call goes on after the recovery.

    A row of MOMENTS has the calls before, the call, and the call's moments; each row is a case. The rows have moments in which memory
    of a process is half given back or half filled, and a phase that ends or begins. GroupSleepTest (tests/executor) and the
    simulation lose a rank in and between all phases.
    """

    FLAGS, MOMENTS = (), ()

    def __init_subclass__(cls):
        for before, target, moments in cls.MOMENTS:
            def case(self, before=before, target=target, moments=moments):
                for number, moment in enumerate(moments):
                    answer, state = self.strike(before, target, moment, number % 2)
                    self.assertEqual((answer.status, state), (200, AWAKE if target == WAKE else ASLEEP), f"{moment}: {answer.text}")
            setattr(cls, "test" + re.sub(r"(\W|level=)+", "_", "".join((*before, target))), case)

    @classmethod
    def setUpClass(cls):
        cls.faulty = FaultyCluster("", KV_CACHE, *cls.FLAGS, "--max-recoveries=1000000", env=WITHOUT_POOLS)
        cls.addClassCleanup(cls.faulty.__exit__)
        cls.cluster = cls.faulty.cluster
        cls.chaos = Chaos(cls.cluster, tiny_requests(random.Random(3), count=4), random.Random(3))
        cls.awake = [resident(rank) for rank in cls.cluster.status()["ranks"]]

    def strike(self, before, target, moment, rank, times=1):
        """A call that is struck at the moment; returns the call's answer and the state that the engine has then."""
        status_before = self.cluster.status()
        open_round = Round(self.cluster, self.chaos.requests)
        wait_until(lambda: open_round.token_times or open_round.over(), END_S, "a token", poll=0.005)
        for call in before:
            self.assertEqual(post(self.cluster, call).status, 200)
        line = self.faulty.faults.set_moment(moment, f"kill@{rank}", times)
        self.chaos.faults = [Fault("kill", rank, status_before["ranks"][rank]["pid"], time.monotonic())]
        answer = post(self.cluster, target)
        wait_until(lambda: self.cluster.status()["state"] in (AWAKE, ASLEEP), END_S, lambda: f"an end: {self.cluster.log()[-5000:]}")
        state = check_truth(self, self.cluster, self.awake)
        self.assertEqual(self.faulty.faults.strikes(line), times, f"{moment} of {target} did not come")
        self.faulty.set_faults("")
        self.chaos.heal()
        open_round.check(self.chaos.expected)
        check_truth(self, self.cluster, self.awake)
        self.chaos.check_status(status_before)
        self.chaos.check_metrics()
        self.chaos.check_leaks()
        return answer, state

    def tearDown(self):
        self.faulty.set_faults("")
        self.chaos.heal()


class RankIsKilled(KilledRanks):
    # Level 1 keeps the weights in a copy, so that a sleep saves the copy in Prepare, and a wake-up restores it; the copy is
    # retained until level 2 discards it.
    FLAGS = ("--backup=retain",)
    MOMENTS = (
        ((), sleep(1), ("Prepare:done", "unmap#3", "release")),
        ((sleep(2), WAKE), sleep(1), ("save",)),
        ((sleep(1),), WAKE, ("create", "restore", "access#3", "Commit:done")),
        ((), sleep(2), ("Prepare", "unmap#2")),
        ((sleep(2),), WAKE, ("map#2", "read", "reset")),
    )

    def test_again_and_again(self):
        """At the fourth loss the call returns the error, and the engine is in the state from before the call."""
        answer, state = self.strike((), sleep(1), "Prepare", 1, times=4)
        self.assertEqual((answer.status, state), (503, AWAKE), answer.text)

    def test_nothing_grows(self):
        """Neither in the coordinator, which lives through all losses, nor in the rank that stays while the other dies."""
        def held():
            return {pid: holdings(pid) for pid in (self.cluster.process.pid, self.cluster.status()["ranks"][0]["pid"])}

        def run():
            for number in range(8):
                self.strike((), sleep(1 + number % 2), "Commit", 1)
                if number == 2:
                    first = held()
            self.assertEqual(first.keys(), held().keys())
            return first
        assert_nothing_grows(run)


class RankThatKeepsBlocksIsKilled(KilledRanks):
    """The transition takes the blocks of open requests along."""

    FLAGS = ("--backup=retain", "--keep-kv-on-sleep")
    MOMENTS = (
        ((), sleep(1), ("Prepare:done", "Commit:done")),
        ((sleep(1),), WAKE, ("access#1", "Commit")),
    )


class RankWithACompressedBackupIsKilled(KilledRanks):
    FLAGS = ("--backup=compress",)
    MOMENTS = (
        # Level 2 has given up the backup, so that the sleep makes a new backup.
        ((sleep(2), WAKE), sleep(1), ("save",)),
        ((sleep(1),), WAKE, ("restore",)),
    )


class RankThatKeepsItsPagesIsKilled(KilledRanks):
    """The backup that is the default on a CPU: weights that sleep at level 1 stay in place."""

    FLAGS = ("--backup=release",)
    MOMENTS = (
        ((), sleep(1), ("unmap#1",)),
        ((sleep(1),), WAKE, ("access#1",)),
    )


LITTLE = 3 << 20  # the memory that a rank sees where "available" fails


class OutOfMemory(unittest.TestCase):
    """A wake-up that is known not to fit, and a wake-up in which each call of a kind for memory of a rank fails in turn;
    FailEveryCall (tests/worker) does so with every kind at both levels."""

    def test_what_does_not_fit_begins_nowhere(self):
        """Ranks of one host share the host's memory, so where a rank sees little, every rank and tag lacks a part of the rest."""
        faulty = FaultyCluster("", KV_CACHE, "--backup=retain", env=WITHOUT_POOLS)
        with faulty as cluster:
            awake = [resident(rank) for rank in cluster.status()["ranks"]]
            needed = {(rank, tag): count for rank, tags in enumerate(awake) for tag, count in tags.items()}
            wanted = cluster.tokens(CASE["prompt"], max_tokens=100, ignore_eos=True)
            for level, rank in ((1, 0), (1, 1), (2, 0), (2, 1)):
                with self.subTest(level=level, rank=rank):
                    self.assertEqual(post(cluster, sleep(level)).status, 200)
                    little, *creates = faulty.faults.set_moments(
                        ("available", f"fail@{rank}"), ("create", "fail@0"), ("create", "fail@1"))
                    answer = post(cluster, WAKE)
                    self.assertEqual((answer.status, faulty.faults.strikes(little)), (503, 1), answer.text)
                    self.assertEqual([faulty.faults.strikes(line) for line in creates], [0, 0], "a rank has begun to map")
                    missing = {(one["rank"], one["tag"]): one for one in answer.json["error"]["missing"]}
                    self.assertEqual({key: one["needed_bytes"] for key, one in missing.items()}, needed)
                    self.assertGreater(min(one["missing_bytes"] for one in missing.values()), 0)
                    self.assertEqual(sum(one["missing_bytes"] for one in missing.values()), sum(needed.values()) - LITTLE)
                    self.assertEqual({one["memory"] for one in missing.values()}, {"device"})
                    self.assertEqual(check_truth(self, cluster, awake), ASLEEP)
                    faulty.set_faults("")
                    self.assertEqual(post(cluster, WAKE).status, 200)
                    self.assertEqual(check_truth(self, cluster, awake), AWAKE)
                    self.assertEqual(cluster.tokens(CASE["prompt"], max_tokens=100, ignore_eos=True), wanted)
            self.assertEqual(cluster.stop(), 0)

    def test_at_each_call_of_a_wake_up(self):
        faulty = FaultyCluster("", KV_CACHE, "--backup=retain", env=WITHOUT_POOLS)
        with faulty as cluster:
            before, awake = cluster.status(), [resident(rank) for rank in cluster.status()["ranks"]]
            stream = cluster.open_stream(CASE["prompt"], max_tokens=450, return_token_ids=True)
            self.addCleanup(stream.close)
            events = stream.events()
            tokens = list(next(events)["choices"][0]["token_ids"])
            for level, call in ((1, "create"), (2, "map"), (1, "access")):
                self.assertEqual(post(cluster, sleep(level)).status, 200)
                failures = self.fail_until_it_wakes(faulty, call, awake)
                self.assertGreaterEqual(failures, 3, f"{call} at level {level}: three regions are mapped")
            for event in events:
                tokens += event["choices"][0].get("token_ids") or []
            self.assertEqual(tokens, cluster.tokens(CASE["prompt"], max_tokens=450, ignore_eos=True))
            after = cluster.status()
            self.assertEqual(*([rank["pid"] for rank in one["ranks"]] + [one["epoch"]] for one in (before, after)))
            self.assertEqual(cluster.stop(), 0)

    def fail_until_it_wakes(self, faulty, call, awake):
        """Wakes the engine while the first, the second, ... such call of rank 1 fails; returns how many did."""
        cluster, held = faulty.cluster, None
        for number in range(1, 100):
            line = faulty.faults.set_moment(f"{call}#{number}", "fail@1")
            answer = post(cluster, WAKE)
            state = check_truth(self, cluster, awake)
            if answer.status == 200:
                self.assertEqual((state, faulty.faults.strikes(line)), (AWAKE, 0))
                return number - 1
            self.assertEqual((answer.status, state, faulty.faults.strikes(line)), (503, ASLEEP, 1), answer.text)
            self.assertIn("rank 1", answer.json["error"]["message"])
            held = held or {pid: holdings(pid) for pid in pids(cluster).values()}
            assert_no_growth(held, held)
        self.fail("it does not wake up")


PIECE = 8 << 20  # the bytes of a write of a spill file (allocator/spill_store.h)


def wide_model(folder):
    """A model with tens of MiB of random weights, in two ranks' float32; a test needs the size alone."""
    model = os.path.join(folder, "wide")
    shutil.copytree(tiny(MODEL), model, ignore=shutil.ignore_patterns("*.safetensors"))
    path = os.path.join(model, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config.update(num_hidden_layers=8, intermediate_size=10240)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return model


class SleepFails(unittest.TestCase):
    """Each copy into a backup fails in turn on a rank, and so does each write of a spill file."""

    def tokens(self, cluster):
        return cluster.tokens(CASE["prompt"], max_tokens=50, ignore_eos=True)

    def fail_until_it_sleeps(self, faulty, moment, rank, check):
        """Puts the engine to sleep at level 1 while the first, the second, ... such moment of the rank fails; calls `check`
        with the answer each time. Returns how many failed."""
        cluster, held = faulty.cluster, None
        for number in range(1, 100):
            line = faulty.faults.set_moment(f"{moment}#{number}", f"fail@{rank}")
            answer = post(cluster, sleep(1))
            state = check_truth(self, cluster, self.awake)
            if answer.status == 200:
                self.assertEqual((state, faulty.faults.strikes(line)), (ASLEEP, 0))
                return number - 1
            self.assertEqual((answer.status, state, faulty.faults.strikes(line)), (503, AWAKE, 1), answer.text)
            self.assertIn(f"rank {rank} ", answer.json["error"]["message"])
            check(answer.json["error"])
            self.assertEqual(self.tokens(cluster), self.wanted)
            held = held or {pid: holdings(pid) for pid in pids(cluster).values()}
            assert_no_growth(held, pids(cluster).values())
        self.fail("it does not fall asleep")

    def begin(self, cluster):
        self.awake = [resident(rank) for rank in cluster.status()["ranks"]]
        self.wanted = self.tokens(cluster)

    def wake_and_forget(self, cluster):
        """The engine wakes up with the same tokens; then no backup is left."""
        self.assertEqual(post(cluster, WAKE).status, 200)
        self.assertEqual(self.tokens(cluster), self.wanted)
        for call in (sleep(2), WAKE):
            self.assertEqual(post(cluster, call).status, 200)
        self.assertEqual(check_truth(self, cluster, self.awake), AWAKE)
        self.assertEqual(self.tokens(cluster), self.wanted)

    def test_at_each_copy(self):
        faulty = FaultyCluster("", KV_CACHE, "--backup=retain", env=WITHOUT_POOLS)
        with faulty as cluster:
            self.begin(cluster)

            def no_copy_is_left(_):
                self.assertEqual([int(rank["host_bytes_by_tag"].get("weights", 0)) for rank in cluster.status()["ranks"]], [0, 0])
            for rank in (1, 0):
                with self.subTest(rank=rank):
                    self.assertGreaterEqual(self.fail_until_it_sleeps(faulty, "save", rank, no_copy_is_left), 1)
                    self.wake_and_forget(cluster)
            self.assertEqual(cluster.stop(), 0)

    def spilled(self, cluster, folder):
        """Bytes on the disk of the ranks' files without names."""
        total = 0
        for pid in pids(cluster).values():
            for fd in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{fd}"
                if os.readlink(path).startswith(folder):
                    total += 512 * os.stat(path).st_blocks
        return total

    def test_a_full_disk_at_each_write(self):
        with tempfile.TemporaryDirectory() as folder:
            spill_dir = os.path.join(folder, "spill")
            os.mkdir(spill_dir)
            faulty = FaultyCluster("", KV_CACHE, "--backup=file", f"--spill-dir={spill_dir}", "--load-format=dummy",
                                   model=wide_model(folder), env=WITHOUT_POOLS)
            with faulty as cluster:
                self.begin(cluster)
                weights = [rank["weights"] for rank in self.awake]
                for rank in (1, 0):
                    def the_disk_has_its_space_again(error, rank=rank):
                        self.assertIn("writing the spill file in", error["message"])
                        lacks = {(one["rank"], one["tag"], one["memory"]) for one in error["missing"]}
                        self.assertEqual(lacks, {(rank, "weights", "disk")})
                        self.assertGreater(min(one["missing_bytes"] for one in error["missing"]), 0)
                        self.assertEqual(self.spilled(cluster, spill_dir), 0)
                    with self.subTest(rank=rank):
                        failures = self.fail_until_it_sleeps(faulty, "write", rank, the_disk_has_its_space_again)
                        self.assertGreater(weights[rank], 3 * PIECE)
                        self.assertEqual(failures, -(-weights[rank] // PIECE))
                        self.assertGreaterEqual(self.spilled(cluster, spill_dir), sum(weights))
                        self.wake_and_forget(cluster)
                        self.assertEqual(self.spilled(cluster, spill_dir), 0)
                self.assertEqual(cluster.stop(), 0)


def in_a_small_disk(folder, mib):
    """A command prefix: the folder is a disk of this size, which only the processes of the command see."""
    return ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size={mib}m tmpfs {folder} && exec "$@"', "sh")


@unittest.skipUnless(can_mount(), "a disk of one's own needs the right to mount (root)")
class SpillDisk(unittest.TestCase):
    MIB = 64

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.faulty = FaultyCluster("", KV_CACHE, "--backup=file", f"--spill-dir={self.folder}",
                                    prefix=in_a_small_disk(self.folder, self.MIB))
        self.addCleanup(self.faulty.__exit__)
        self.cluster = self.faulty.cluster
        # The namespace is reached through a process in the namespace.
        self.disk = f"/proc/{self.cluster.process.pid}/root{self.folder}"
        self.awake = [resident(rank) for rank in self.cluster.status()["ranks"]]
        self.weights = [rank["weights"] for rank in self.awake]
        self.wanted = self.cluster.tokens(CASE["prompt"], max_tokens=400, ignore_eos=True)

    def used(self):
        disk = os.statvfs(self.disk)
        return (disk.f_blocks - disk.f_bfree) * disk.f_frsize

    def leave_room(self, room):
        disk = os.statvfs(self.disk)
        with open(os.path.join(self.disk, "filler"), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - room)

    def assert_tokens(self):
        self.assertEqual(self.cluster.tokens(CASE["prompt"], max_tokens=400, ignore_eos=True), self.wanted)

    def test_a_full_disk_leaves_the_engine_awake(self):
        """Room for nobody, and for a single rank, which retains the written file: the sleep fails on both ranks."""
        for room in (0, max(self.weights)):
            with self.subTest(room=room):
                self.leave_room(room)
                used = self.used()
                for _ in range(2):
                    answer = post(self.cluster, sleep(1))
                    self.assertEqual(answer.status, 503, answer.text)
                    self.assertIn("the spill file in", answer.json["error"]["message"])
                    self.assertEqual(check_truth(self, self.cluster, self.awake), AWAKE)
                    self.assertLessEqual(self.used(), used + room)
                    self.assert_tokens()
                os.remove(os.path.join(self.disk, "filler"))
        self.assertLessEqual(self.used(), max(self.weights))
        self.assertEqual(post(self.cluster, sleep(1)).status, 200)
        self.assertEqual(self.used(), sum(self.weights))
        self.assertEqual(post(self.cluster, WAKE).status, 200)
        self.assert_tokens()

    def test_a_damaged_file_is_found_and_given_up(self):
        self.assertEqual(post(self.cluster, sleep(1)).status, 200)
        worker = self.cluster.status()["ranks"][1]["pid"]
        spilled = [path for path in (f"/proc/{worker}/fd/{fd}" for fd in os.listdir(f"/proc/{worker}/fd"))
                   if os.readlink(path).startswith(self.folder)]
        self.assertEqual(len(spilled), 1, "one spill file without a name")
        with open(spilled[0], "r+b", buffering=0) as file:
            file.seek(self.weights[1] // 2)
            byte = file.read(1)[0]
            file.seek(self.weights[1] // 2)
            file.write(bytes([byte ^ 1]))
        for _ in range(2):
            answer = post(self.cluster, WAKE)
            self.assertEqual(answer.status, 500, answer.text)
            self.assertEqual(check_truth(self, self.cluster, self.awake), ASLEEP)
        self.assertEqual(post(self.cluster, sleep(2)).status, 200)
        self.assertEqual(self.used(), 0)
        self.assertEqual(post(self.cluster, WAKE).status, 200)
        self.assertEqual(check_truth(self, self.cluster, self.awake), AWAKE)
        self.assert_tokens()

    def test_a_killed_rank_leaves_nothing_on_the_disk(self):
        for moment in ("Prepare:done", "Commit"):
            with self.subTest(moment=moment):
                line = self.faulty.faults.set_moment(moment, "kill@1")
                self.assertEqual(post(self.cluster, sleep(1)).status, 200)
                self.assertEqual(self.faulty.faults.strikes(line), 1)
                self.assertEqual(check_truth(self, self.cluster, self.awake), ASLEEP)
                self.assertLess(self.used(), sum(self.weights) + max(self.weights))
                self.assertEqual(post(self.cluster, WAKE).status, 200)
                self.assert_tokens()
        self.assertEqual(self.cluster.stop(), 0)


class CoordinatorIsKilled(unittest.TestCase):
    """While the engine sleeps, and in the middle of a transition that a rank has not done; then a new coordinator adopts the workers."""

    def setUp(self):
        self.faults = FaultFile()
        self.addCleanup(self.faults.close)
        self.run_dir = RunDirectory(tiny(MODEL), "--dtype=float32", KV_CACHE, f"--worker-binary={WORKER}", env=self.faults.environment)
        self.addCleanup(self.run_dir.close)
        self.cluster = self.run_dir.start()
        self.workers = pids(self.cluster)
        self.awake = [resident(rank) for rank in self.cluster.status()["ranks"]]

    def post(self, target):
        """The status; of a coordinator that is killed meanwhile there is none."""
        try:
            return post(self.cluster, target).status
        except OSError:
            return None

    def restart(self):
        """Kills the coordinator and starts a successor; returns the state in which the successor goes on."""
        kill(self.cluster)
        self.cluster = self.run_dir.start(wait=False)
        wait_until(lambda: status(self.cluster)["state"] in (AWAKE, ASLEEP), SOON_S, self.cluster.log)
        self.assertEqual(pids(self.cluster), self.workers, f"the workers are adopted: {self.cluster.log()}")
        return check_truth(self, self.cluster, self.awake)

    def assert_serves(self):
        if self.cluster.status()["state"] == ASLEEP:
            self.assertEqual(self.post(WAKE), 200)
        self.assertEqual(check_truth(self, self.cluster, self.awake), AWAKE)
        self.assertEqual(self.cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def holdings(self):
        return {pid: holdings(pid) for pid in self.workers.values()}

    def test_while_it_sleeps_in_part(self):
        for tags in (("kv_cache",), ("weights", "workspace")):
            with self.subTest(tags=tags):
                self.assertEqual(self.post(sleep(1) + "".join(f"&tags={tag}" for tag in tags)), 200)
                kill(self.cluster)
                self.cluster = self.run_dir.start_asleep()
                self.assertEqual(pids(self.cluster), self.workers)
                left = [{tag: count for tag, count in rank.items() if tag not in tags} for rank in self.awake]
                self.assertEqual([resident(rank) for rank in self.cluster.status()["ranks"]], left)
                self.assert_serves()

    def test_in_the_middle(self):
        for before, target in ((None, sleep(2)), (sleep(2), WAKE), (None, sleep(1)), (sleep(1), WAKE)):
            # The waiting call ends before the next coordinator comes, or after that coordinator has formed the group.
            for moment, ends_before in (("Prepare", False), ("Prepare:done", True), ("Commit", True), ("Commit:done", False)):
                with self.subTest(before=before, target=target, moment=moment, ends_before=ends_before):
                    self.in_the_middle(before, target, moment, ends_before)
            if target == WAKE and before == sleep(2):
                held = self.holdings()  # from here on pools are full
        self.assertEqual(growth(held, self.holdings(), mappings=MAPPINGS_SLACK), [])
        self.assertEqual(self.cluster.stop(), 0)

    def in_the_middle(self, before, target, moment, ends_before):
        if before:
            self.assertEqual(self.post(before), 200)
        line = self.faults.set_moment(moment, "wait@1")
        call = threading.Thread(target=self.post, args=(target,))
        call.start()
        self.faults.wait_for(line)
        if ends_before:
            kill(self.cluster)
            self.faults.set("")
        self.restart()
        self.faults.set("")
        call.join(END_S)
        self.assert_serves()

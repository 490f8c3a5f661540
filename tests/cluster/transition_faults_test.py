"""Sleeps and wake-ups that lose a rank, the coordinator, the memory or the disk at a named moment, with real processes.

Whatever strikes: open requests get exactly their tokens, the state is the truth on every rank, the engine ends awake or
asleep, and nothing is left behind. The workers are tests/worker:faulty_worker, which strike themselves.
"""
import os
import random
import tempfile
import threading
import time
import unittest

from cluster.chaos import Chaos, Fault
from cluster.fault_file import WORKER, FaultFile
from cluster.harness import expected, tiny, wait_until
from cluster.poison_test import FaultyCluster
from cluster.recovery_test import can_mount, tiny_requests
from cluster.run_directory import SOON_S, RunDirectory, kill, pids, status
from cluster.sleep_cycles_test import WITHOUT_POOLS, assert_nothing_grows, growth, holdings
from cluster.streams import Round

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if not case["ambiguous"])
KV_CACHE = "--kv-cache-memory-bytes=16MiB"
END_S = 120
# Of pools that threads make one after the other; sixteen restarts that leak one each are above it.
MAPPINGS_SLACK = 12
AWAKE, ASLEEP = "ENGINE_STATE_AWAKE", "ENGINE_STATE_ASLEEP"
WAKE = "/wake_up"


def sleep(level):
    return f"/sleep?level={level}"


def post(cluster, target):
    return cluster.request("POST", target, port=cluster.admin_port, timeout=END_S)


def resident(rank):
    """Resident bytes of one rank, by tag; a tag without any is left out."""
    return {tag: int(count) for tag, count in rank["bytes_by_tag"].items() if int(count)}


def check_truth(test, cluster, awake):
    """The engine is awake or asleep, and says so everywhere; `awake`: what each rank holds while it is awake. Returns its state."""
    now = cluster.status()
    test.assertIn(now["state"], (AWAKE, ASLEEP))
    is_awake = now["state"] == AWAKE
    sleeping = cluster.request("GET", "/is_sleeping", port=cluster.admin_port).json["is_sleeping"]
    test.assertEqual((sleeping, cluster.health()), (not is_awake, 200 if is_awake else 503))
    test.assertEqual([rank["state"] for rank in now["ranks"]], ["awake" if is_awake else "asleep"] * len(now["ranks"]))
    test.assertEqual([resident(rank) for rank in now["ranks"]], awake if is_awake else [{} for _ in awake])
    return now["state"]


class KilledRanks(unittest.TestCase):
    """Strikes one call after the other, with requests open; those that derive from it have the calls."""

    # Level 1 keeps the weights in a copy, so that a sleep saves it in Prepare, and a wake-up restores it; the copy is
    # retained until level 2 discards it.
    FLAGS = ("--backup=retain",)

    @classmethod
    def setUpClass(cls):
        cls.faulty = FaultyCluster("", KV_CACHE, *cls.FLAGS, "--max-recoveries=1000000", env=WITHOUT_POOLS)
        cls.addClassCleanup(cls.faulty.__exit__)
        cls.cluster = cls.faulty.cluster
        cls.chaos = Chaos(cls.cluster, tiny_requests(random.Random(3), count=4), random.Random(3))
        cls.awake = [resident(rank) for rank in cls.cluster.status()["ranks"]]

    def strike(self, before, target, moment, rank, times=1):
        """One call that is struck at its moment; returns the call's answer and the state that the engine has then."""
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

    def check(self, case):
        before, target, moments = case
        for number, moment in enumerate(moments):
            answer, state = self.strike(before, target, moment, number % 2)
            self.assertEqual((answer.status, state), (200, AWAKE if target == WAKE else ASLEEP), f"{moment} of {target}: {answer.text}")


class RankIsKilled(KilledRanks):
    """kill -9 of one rank at every moment of a transition, with requests open; the call goes on after the recovery."""

    # (the calls before, the call, its moments)
    CASES = (
        ((), sleep(1), ("Prepare", "Prepare:done", "Commit", "unmap#1", "unmap#3", "release", "Commit:done")),
        ((sleep(2), WAKE), sleep(1), ("save",)),
        ((sleep(1),), WAKE, ("Plan", "Prepare", "create", "access#1", "restore", "access#3", "reset", "Prepare:done", "Commit", "Commit:done")),
        ((), sleep(2), ("Prepare", "Prepare:done", "Commit", "unmap#2", "Commit:done")),
        ((sleep(2),), WAKE, ("Prepare", "map#2", "read", "reset", "Prepare:done", "Commit", "Commit:done")),
    )

    def test_in_a_sleep_at_level_1(self):
        self.check(self.CASES[0])
        self.check(self.CASES[1])

    def test_in_the_wake_up_from_it(self):
        self.check(self.CASES[2])

    def test_in_a_sleep_at_level_2(self):
        self.check(self.CASES[3])

    def test_in_the_wake_up_from_level_2(self):
        self.check(self.CASES[4])

    def test_again_and_again(self):
        """At its fourth loss the call returns it, and the engine is where it was."""
        answer, state = self.strike((), sleep(1), "Prepare", 1, times=4)
        self.assertEqual((answer.status, state), (503, AWAKE), answer.text)

    def test_nothing_grows(self):
        """Neither in the coordinator, which lives through all of it, nor in the rank that stays while the other one dies."""
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


LITTLE = 3 << 20  # what a rank sees as its memory where "available" fails


class OutOfMemory(unittest.TestCase):
    """A wake-up that is known not to fit, and one of which every call of one rank's memory finds none, one after the other."""

    def test_what_does_not_fit_begins_nowhere(self):
        """Ranks of one host share its memory, so where one sees little, every rank and tag lacks its part of the rest."""
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
            for level in (1, 2):
                for call in ("create", "map", "access"):
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
            now = {pid: holdings(pid) for pid in pids(cluster).values()}
            held = held or now
            self.assertEqual(growth(held, now), [])
        self.fail("it does not wake up")


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
        # The namespace is reached through a process in it.
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
        """Room for nobody, and for one rank, which retains what it has written: the sleep fails on both."""
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
    """While the engine sleeps, and in the middle of a transition that one rank has not done; the next one adopts the workers."""

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
        """Another coordinator, in place of the one that is killed now; returns the state in which it goes on."""
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
            for moment in ("Prepare", "Prepare:done", "Commit", "Commit:done"):
                # What waits ends before the next coordinator comes, or after it has formed the group.
                for ends_before in (True, False):
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


if __name__ == "__main__":
    unittest.main()

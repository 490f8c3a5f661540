"""Sleeps that find no host memory, a full disk, or lose a rank while they keep the KV cache, with real processes.

As transition_faults_test.py: the state is the truth on every rank, nothing is left behind, and the same call works later.
The workers are tests/worker:faulty_worker, which strike themselves.
"""
import json
import os
import shutil
import tempfile
import unittest

from cluster.harness import tiny
from cluster.poison_test import FaultyCluster
from cluster.sleep_cycles_test import WITHOUT_POOLS, assert_no_growth, holdings
from cluster.transition_faults_test import (ASLEEP, AWAKE, CASE, KV_CACHE, MODEL, WAKE, KilledRanks, check_truth, pids, post,
                                            resident, sleep)

PIECE = 8 << 20  # what one write of a spill file has (allocator/spill_store.h)


def wide_model(folder):
    """A model with tens of MiB of random weights, in two ranks' float32: what one test needs of it is its size."""
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
    """Every copy into a backup fails on one rank, one after the other, and so does every write of its file."""

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
        """What was slept wakes up with the same tokens; then no backup is left."""
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


class RankThatKeepsBlocksIsKilled(KilledRanks):
    """kill -9 of a rank in a transition that takes the blocks of open requests along."""

    FLAGS = ("--backup=retain", "--keep-kv-on-sleep")

    def test_in_a_sleep(self):
        self.check(((), sleep(1), ("Prepare", "Prepare:done", "Commit", "unmap#1", "Commit:done")))

    def test_in_the_wake_up(self):
        self.check(((sleep(1),), WAKE, ("Prepare", "access#1", "Prepare:done", "Commit", "Commit:done")))


class RankWithACompressedBackupIsKilled(KilledRanks):
    """As transition_faults_test.py: RankIsKilled, whose copies are not compressed."""

    FLAGS = ("--backup=compress",)

    def test_in_a_sleep(self):
        # Level 2 has given up the backup, so that there is one to be made.
        self.check(((sleep(2), WAKE), sleep(1), ("save", "Commit")))

    def test_in_the_wake_up(self):
        self.check(((sleep(1),), WAKE, ("restore", "Commit")))


class RankThatKeepsItsPagesIsKilled(KilledRanks):
    """As RankIsKilled, with the backup that is the default on a CPU: weights that sleep at level 1 stay where they are."""

    FLAGS = ("--backup=release",)

    def test_in_a_sleep(self):
        self.check(((), sleep(1), ("Commit", "unmap#1")))

    def test_in_the_wake_up(self):
        self.check(((sleep(1),), WAKE, ("access#1", "Commit")))


if __name__ == "__main__":
    unittest.main()

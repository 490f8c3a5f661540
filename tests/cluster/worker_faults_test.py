"""Single faults that need a special setting: NaN, memory that ends, a worker that dies in the
very first load."""
import errno
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

from cluster.harness import Cluster, expected, tiny, wait_until
from cluster.harness.streams import Round, event_texts
from cluster.poison_test import FaultyCluster
from cluster.recovery_test import tiny_requests

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
END_S = 120
MEMORY_CGROUPS = "/sys/fs/cgroup/memory"  # version 1: of version 2 an ordinary cgroup with processes has no children


def tensor(file, name):
    """(offset, header entry) of a tensor in an open safetensors file."""
    size = struct.unpack("<Q", file.read(8))[0]
    entry = json.loads(file.read(size))[name]
    return 8 + size + entry["data_offsets"][0], entry


class RefusedStart(unittest.TestCase):
    def test_a_worker_that_does_not_understand_it_is_started_once(self):
        with tempfile.TemporaryDirectory() as folder:
            starts, script = os.path.join(folder, "starts"), os.path.join(folder, "worker")
            with open(script, "w", encoding="ascii") as file:
                file.write(f"#!/bin/sh\necho start >> {starts}\nexit 2\n")
            os.chmod(script, 0o755)
            with Cluster(tiny(MODEL), f"--worker-binary={script}", workers=1, wait=False) as cluster:
                self.assertEqual(cluster.process.wait(END_S), 1)
                self.assertIn("exited with code 2", cluster.log())
            with open(starts, encoding="ascii") as file:
                self.assertEqual(file.read(), "start\n")

    def test_of_several_models_the_error_names_the_one(self):
        with Cluster(tiny(MODEL), f"--model=other={tiny('qwen3')}", "--workers=local:1", "--worker-binary=/bin/false",
                     workers=0, wait=False) as cluster:
            self.assertEqual(cluster.process.wait(END_S), 1)
            self.assertRegex(cluster.log(), r"coordinator: test-model: rank 0 \(pid \d+\) exited with code 1")

    @unittest.skipIf(os.path.exists("/dev/nvidia0"), "there is a GPU")
    def test_a_device_that_is_not_there_is_named_in_one_line(self):
        with Cluster(tiny(MODEL), "--device=cuda", workers=1, wait=False) as cluster:
            self.assertEqual(cluster.process.wait(END_S), 1)
            self.assertRegex(cluster.log(), r"rank 0 \(pid \d+\) exited with code 1: --device=cuda, GPU 0: .*--device=cpu needs none")
            self.assertNotIn("was not formed", cluster.log())
            self.assertEqual(cluster.log().count("exited with code"), 1, cluster.log())


class NotANumber(unittest.TestCase):
    NAN_TOKEN = 501

    def model(self):
        """A model for which the hidden state of one token is not a number."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = shutil.copytree(tiny(MODEL), os.path.join(folder.name, MODEL))
        with open(os.path.join(path, "model.safetensors"), "r+b") as file:
            offset, entry = tensor(file, "model.embed_tokens.weight")
            self.assertEqual(entry["dtype"], "F32")
            file.seek(offset + self.NAN_TOKEN * entry["shape"][1] * 4)
            file.write(struct.pack("<f", float("nan")))
        return path

    def test_its_request_ends_alone(self):
        with Cluster(self.model(), "--dtype=float32", workers=2) as cluster:
            requests = tiny_requests(random.Random(5))
            for _, body in requests:
                body["logit_bias"] = {str(self.NAN_TOKEN): -100}
            undisturbed = Round(cluster, requests).answers()
            before = cluster.status()
            around = Round(cluster, requests)
            wait_until(lambda: len(around.token_times) >= len(requests), END_S, "tokens", poll=0.005)
            shared = requests[0][1]["prompt"]  # whose blocks other requests may have cached
            for prompt in ([*shared, self.NAN_TOKEN], [self.NAN_TOKEN, *shared]):
                stream = cluster.open_stream(prompt, timeout=END_S)
                self.addCleanup(stream.close)
                text = "".join(event_texts(stream.answer)) if stream.status == 200 else stream.answer.read().decode()
                self.assertIn('"error"', text)
            around.check(undisturbed)
            Round(cluster, requests).check(undisturbed)
            after = cluster.status()
            self.assertEqual((before["epoch"], [rank["pid"] for rank in before["ranks"]]),
                             (after["epoch"], [rank["pid"] for rank in after["ranks"]]))
            self.assertEqual(cluster.stop(), 0)


class MemoryCgroup:
    """A cgroup below this process's cgroup whose memory ends at once. Raises OSError where that is not permitted."""

    def __init__(self):
        with open("/proc/self/cgroup", encoding="ascii") as file:
            own = next((line.rstrip("\n").split(":", 2)[2] for line in file if ":memory:" in line), None)
        if own is None:
            raise OSError("there is no memory controller of version 1")
        self.path = os.path.join(MEMORY_CGROUPS, own.lstrip("/"), f"somnus-test-{os.getpid()}")
        os.mkdir(self.path)

    def write(self, name, value):
        with open(os.path.join(self.path, name), "w", encoding="ascii") as file:
            file.write(str(value))

    def kills(self):
        with open(os.path.join(self.path, "memory.oom_control"), encoding="ascii") as file:
            return int(dict(line.split() for line in file).get("oom_kill", 0))

    def usage(self):
        with open(os.path.join(self.path, "memory.usage_in_bytes"), encoding="ascii") as file:
            return int(file.read())

    def remove(self):
        wait_until(self.is_removed, END_S, "the cgroup's processes are gone")

    def is_removed(self):
        try:
            os.rmdir(self.path)
        except OSError as error:  # a process that has ended can still be there
            if error.errno != errno.EBUSY:
                raise
            return False
        return True


# Takes the memory that the cgroup has left.
EATER = """
import sys, time
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write("0")
eaten = bytearray(int(sys.argv[2]))
for page in range(0, len(eaten), 4096):
    eaten[page] = 1
time.sleep(1000)
"""


class OutOfMemory(unittest.TestCase):
    LIMIT = 128 << 20

    def setUp(self):
        try:
            self.cgroup = MemoryCgroup()
        except OSError as error:
            self.skipTest(f"the kernel's out-of-memory killer needs a cgroup of one's own: {error}")
        self.addCleanup(self.cgroup.remove)

    def start_eater(self, eaten):
        eater = subprocess.Popen([sys.executable, "-c", EATER, self.cgroup.path, str(eaten)], stdin=subprocess.DEVNULL)

        def end():
            eater.kill()
            eater.wait()
        self.addCleanup(end)
        return eater

    def eat(self):
        # Too much beside the worker; once that has ended, there is room.
        eaten = self.LIMIT - self.cgroup.usage() + (4 << 20)
        self.assertLess(eaten, self.LIMIT - (8 << 20))
        eater = self.start_eater(eaten)
        wait_until(lambda: self.cgroup.kills() > 0 or eater.poll() is not None, END_S, "the kernel kills")
        if eater.poll() is not None and self.cgroup.kills() == 2:
            # Some kernels kill once more though the first process's memory is free already: a second eater finds the room.
            eater = self.start_eater(eaten)
        self.assertIsNone(eater.poll())

    def test_the_kernel_kills_a_worker(self):
        with Cluster(tiny(MODEL), "--dtype=float32", "--kv-cache-memory-bytes=16MiB", workers=2) as cluster:
            requests = tiny_requests(random.Random(5))
            undisturbed = Round(cluster, requests).answers()
            # Memory counts for the cgroup in which it is touched: the worker takes memory anew.
            cluster.cli("sleep", "--level", "1")
            before = [rank["pid"] for rank in cluster.status()["ranks"]]
            self.cgroup.write("memory.limit_in_bytes", self.LIMIT)
            self.cgroup.write("cgroup.procs", before[1])
            with open(f"/proc/{before[1]}/oom_score_adj", "w", encoding="ascii") as file:
                file.write("1000")  # the first to be killed
            cluster.cli("wake-up")
            around = Round(cluster, requests)
            wait_until(lambda: len(around.token_times) >= len(requests), END_S, "tokens", poll=0.005)
            self.eat()
            around.check(undisturbed)
            # On a busy machine the requests may end before the kill.
            killed = f"rank 1 (pid {before[1]}) was killed by signal {int(signal.SIGKILL)}"
            wait_until(lambda: killed in cluster.log() and "the group is whole again" in cluster.log(), END_S, cluster.log)
            after = [rank["pid"] for rank in cluster.status()["ranks"]]
            self.assertEqual([old == new for old, new in zip(before, after)], [True, False])
            self.assertEqual(cluster.stop(), 0)


class FirstLoad(unittest.TestCase):
    def test_a_worker_that_is_killed_in_it_is_replaced(self):
        faulty = FaultyCluster("load-wait", wait=False)
        with faulty as cluster:
            wait_until(lambda: cluster.log().count("epoch 1 begins") == 2, END_S, cluster.log)
            known = cluster.worker_pids()
            self.assertEqual(len(known), 2)
            os.kill(known[1], signal.SIGKILL)
            wait_until(lambda: len(set(cluster.worker_pids()) - {known[1]}) == 2, END_S, cluster.log)
            faulty.set_faults("")
            cluster.wait_ready()
            self.assertIn(f"(pid {known[1]}) was killed by signal", cluster.log())
            self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])
            self.assertEqual(cluster.stop(), 0)

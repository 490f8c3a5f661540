"""A log without a reader holds up neither the engine nor the workers nor the end of a server; dropped lines are counted."""
import fcntl
import os
import re
import signal
import unittest

from cluster.harness import Cluster, expected, tiny, wait_until

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
PATIENCE_S = 60
PIPE_BYTES = 4096
F_SETPIPE_SZ = 1031


class Pipe:
    """The log of a cluster, as a pipe that is not read before drain()."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, F_SETPIPE_SZ, PIPE_BYTES)

    def fill(self):
        os.set_blocking(self.writer, False)
        try:
            while True:
                os.write(self.writer, b"-" * 64 + b"\n")
        except BlockingIOError:
            pass
        finally:
            os.set_blocking(self.writer, True)

    def drain_until(self, pattern):
        text = ""
        while not re.search(pattern, text):
            piece = os.read(self.reader, 65536)
            if not piece:
                raise AssertionError(f"the log ends without {pattern}:\n{text}")
            text += piece.decode("utf-8", errors="replace")
        return text

    def close(self):
        for end in (self.reader, self.writer):
            os.close(end)


class FullLog(unittest.TestCase):
    def setUp(self):
        self.pipe = Pipe()
        self.addCleanup(self.pipe.close)

    def recover(self, cluster, count):
        """Kills a worker; the coordinator and the workers log several lines about the loss."""
        os.kill(cluster.worker_pids()[0], signal.SIGKILL)
        wait_until(lambda: cluster.metric("somnus:recoveries_total") == count, PATIENCE_S, f"recovery {count}")
        self.assertEqual(cluster.tokens(CASE["prompt"], max_tokens=8), self.answer)

    def test_serves_recovers_and_stops(self):
        with Cluster(tiny(MODEL), "--dtype=float32", "--log-level=debug", "--log-queue-bytes=1KiB", "--max-recoveries=100", workers=2,
                     log=self.pipe.writer) as cluster:
            self.pipe.fill()
            self.answer = cluster.tokens(CASE["prompt"], max_tokens=8)
            for count in range(1, 4):
                self.recover(cluster, count)
            cluster.admin("/sleep")
            cluster.admin("/wake_up")
            self.assertEqual(cluster.request("GET", "/livez").status, 200)
            self.assertGreater(cluster.metric("somnus:log_lines_dropped_total"), 0)
            self.assertEqual(cluster.stop(), 0)

    def test_says_how_many_lines_are_missing_once_it_is_read(self):
        with Cluster(tiny(MODEL), "--dtype=float32", "--log-level=debug", "--log-queue-bytes=1KiB", "--max-recoveries=100", workers=1,
                     log=self.pipe.writer) as cluster:
            self.pipe.fill()
            self.answer = cluster.tokens(CASE["prompt"], max_tokens=8)
            count = 0
            while not cluster.metric("somnus:log_lines_dropped_total"):
                count += 1
                self.recover(cluster, count)
            self.pipe.drain_until(r"\d+ lines? w\w+ dropped here: the log was not read\n")
            os.kill(cluster.process.pid, signal.SIGTERM)
            self.pipe.drain_until(r"stopping; open requests have")
            self.assertEqual(cluster.process.wait(PATIENCE_S), 0)

"""A request that makes workers fail ends alone; a worker that fails at every start ends the server.

The workers are tests/worker:faulty_worker, which fails on demand.
"""
import concurrent.futures
import contextlib
import http.client
import os
import random
import shutil
import signal
import tempfile
import unittest

from cluster.harness import Cluster, alive, begin_and_stop, children, tiny, wait_until
from cluster.harness.fault_file import WORKER, FaultFile
from cluster.harness.streams import Round, ask, event_texts

MODEL = "llama-uneven"
POISON = [77, 78, 79]
MAX_RECOVERIES_PER_REQUEST = 3  # the flag's default
END_S = 120


def neighbours(rng, count=8):
    """Streams of token ids without the poison, long enough to be open at each try of the poison."""
    return [("/v1/completions", {"prompt": [rng.randrange(100, 500) for _ in range(rng.randint(5, 60))], "max_tokens": 440,
                                 "temperature": rng.choice((0, 0.8)), "seed": rng.randrange(1000), "logprobs": 1,
                                 "ignore_eos": True, "return_token_ids": True, "stream": True,
                                 "stream_options": {"include_usage": True}}) for _ in range(count)]


class FaultyCluster:
    """A cluster of faulty workers, and the file that says how the workers fail. A context manager."""

    def __init__(self, faults, *flags, workers=2, model=tiny(MODEL), wait=True, prefix=(), env=None):
        self.faults = FaultFile()
        self.set_faults(faults)
        try:
            self.cluster = Cluster(model, "--dtype=float32", f"--worker-binary={WORKER}", *flags, workers=workers, wait=wait,
                                   env={**self.faults.environment, **(env or {})}, prefix=prefix)
        except BaseException:
            self.faults.close()
            raise

    def set_faults(self, faults):
        self.faults.set(faults)

    def __enter__(self):
        return self.cluster

    def __exit__(self, *_):
        self.cluster.__exit__()
        self.faults.close()


class Poison(unittest.TestCase):
    def refusal(self, cluster, prompt):
        """The message with which a streamed request ends, by the status or by an event."""
        stream = cluster.open_stream(prompt, timeout=END_S)
        self.addCleanup(stream.close)
        if stream.status != 200:
            return stream.answer.read().decode()
        texts = list(event_texts(stream.answer))
        return next((text for text in texts if '"error"' in text), f"no error event: {texts}")

    def check(self, fault, *flags, replaced, tries=MAX_RECOVERIES_PER_REQUEST):
        """`replaced`: the ranks whose processes a try costs. `tries`: failures after which the request is suspected."""
        ids = ",".join(map(str, POISON))
        with FaultyCluster(f"{fault} {ids}", *flags) as cluster:
            requests = neighbours(random.Random(5))
            expected = Round(cluster, requests).answers()
            before = cluster.status()
            around = Round(cluster, requests)
            wait_until(lambda: len(around.token_times) >= len(requests), END_S, "the neighbours are answered", poll=0.005)
            message = self.refusal(cluster, [150, *POISON, 160])
            self.assertIn("failures of the workers", message)
            self.assertRegex(message, r"rank \d")
            around.check(expected)
            # The request that was tried alone may be the last that was open.
            wait_until(lambda: cluster.status()["state"] == "ENGINE_STATE_AWAKE", END_S, "awake")
            after = cluster.status()
            # The request is suspected after the first failures, fails once more alone, and is not tried again.
            self.assertEqual(int(after["num_recoveries"]), tries + 1)
            changed = [old["pid"] != new["pid"] for old, new in zip(before["ranks"], after["ranks"])]
            self.assertEqual(changed, replaced)
            again = ask(cluster, requests[0])
            self.assertIsNone(expected[0].difference(again))
            cluster.wait_idle()
            self.assertEqual(cluster.stop(), 0)

    def test_aborts_every_rank(self):
        self.check("abort", replaced=[True, True])

    def test_aborts_one_rank(self):
        self.check("abort@1", replaced=[False, True])

    def test_fails_the_step(self):
        # The processes and the weights are whole: nobody is replaced.
        self.check("fail@0", replaced=[False, False])

    def test_hangs(self):
        # Heartbeats of a worker that hangs in a step go on: the step's time ends the step, and the fence's time (5 s) the worker.
        self.check("hang@1", "--step-timeout=2s", "--max-recoveries-per-request=1", replaced=[False, True], tries=1)


def kill(cluster, rank):
    pid = cluster.status()["ranks"][rank]["pid"]
    assert pid > 0
    os.kill(pid, signal.SIGKILL)


class SlowNewcomer(unittest.TestCase):
    """The server during a recovery, which lasts because a newcomer waits before the load."""

    def test_live_and_not_ready_and_open_for_requests(self):
        faulty = FaultyCluster("", "--sse-keepalive=50ms")
        with faulty as cluster:
            requests = neighbours(random.Random(7))
            expected = Round(cluster, requests).answers()
            faulty.set_faults("load-wait")
            pid = cluster.status()["ranks"][1]["pid"]
            quiet = cluster.open_stream([37], timeout=END_S, max_tokens=440)
            self.addCleanup(quiet.close)
            open_before = Round(cluster, requests[:4])
            wait_until(lambda: len(open_before.token_times) > 4, END_S, "tokens", poll=0.005)
            os.kill(pid, signal.SIGKILL)  # at once: a fast model would answer all meanwhile
            wait_until(lambda: cluster.status()["state"] == "ENGINE_STATE_RECOVERING", END_S, "recovering")
            late = Round(cluster, requests[4:])
            # Comments keep proxies from closing a stream that has begun.
            wait_until(lambda: quiet.answer.readline().startswith(b":"), END_S, "a comment", poll=0)
            cluster.wait_waiting(9, END_S)
            self.assertEqual(cluster.request("GET", "/livez").status, 200)
            for path in ("/health", "/readyz"):
                response = cluster.request("GET", path)
                self.assertEqual(response.status, 503)
                self.assertIn("recover", response.json["error"]["message"].lower())
            self.assertEqual(cluster.request("GET", "/is_sleeping", port=cluster.admin_port).json, {"is_sleeping": False})
            self.assertEqual(cluster.metric("somnus:engine_state"), 1)
            self.assertEqual(cluster.metric("vllm:engine_sleep_state"), 0)
            faulty.set_faults("")
            open_before.check(expected[:4])
            late.check(expected[4:])
            self.assertTrue(list(quiet.events()))
            self.assertEqual(cluster.health(), 200)
            self.assertEqual(cluster.stop(), 0)

    def test_sleep_waits_for_the_recovery(self):
        faulty = FaultyCluster("")
        with faulty as cluster:
            requests = neighbours(random.Random(7))
            expected = Round(cluster, requests).answers()
            faulty.set_faults("load-wait")
            pid = cluster.status()["ranks"][0]["pid"]
            around = Round(cluster, requests)
            wait_until(lambda: len(around.token_times) > 8, END_S, "tokens", poll=0.005)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: cluster.status()["state"] == "ENGINE_STATE_RECOVERING", END_S, "recovering")
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                slept = pool.submit(cluster.request, "POST", "/sleep?level=1", port=cluster.admin_port)
                faulty.set_faults("")
                self.assertEqual(slept.result(END_S).status, 200)
            self.assertEqual(cluster.status()["state"], "ENGINE_STATE_ASLEEP")
            cluster.admin("/wake_up")
            around.check(expected)
            self.assertEqual(cluster.stop(), 0)

    def test_the_end_does_not_wait_for_the_recovery(self):
        faulty = FaultyCluster("", "--shutdown-timeout=0")
        with faulty as cluster:
            faulty.set_faults("load-wait")
            kill(cluster, 0)
            wait_until(lambda: cluster.status()["state"] == "ENGINE_STATE_RECOVERING", END_S, "recovering")
            self.assertEqual(cluster.stop(), 0)


def rank_of(pid):
    """The rank in the command line of a local worker that runs; None for a process without a rank."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return next((int(word[len("--rank="):]) for word in file.read().decode().split("\0") if word.startswith("--rank=")), None)
    except OSError:
        return None


class HangsAtStart(unittest.TestCase):
    def test_a_newcomer_that_never_registers_is_started_once_more_alone(self):
        faulty = FaultyCluster("", "--register-timeout=5s")
        with faulty as cluster:
            before = set(children(cluster.process.pid))
            faulty.set_faults("start-hang@0")
            for pid in before:
                os.kill(pid, signal.SIGKILL)

            def newcomers():
                found = {rank_of(pid): pid for pid in set(children(cluster.process.pid)) - before}
                return found if set(found) == {0, 1} else None
            first = wait_until(newcomers, END_S, cluster.log)
            wait_until(lambda: "hangs before it registers" in cluster.log(), END_S, cluster.log)
            faulty.set_faults("")
            wait_until(lambda: cluster.health() == 200, END_S, cluster.log)
            after = {rank["rank"]: rank["pid"] for rank in cluster.status()["ranks"]}
            self.assertEqual(after[1], first[1])
            self.assertNotEqual(after[0], first[0])
            self.assertFalse(alive(first[0]))
            self.assertEqual(cluster.stop(), 0)


class FailsAtEveryStart(unittest.TestCase):
    """The server ends with a code other than 0 and says which rank failed and how, after a bounded number of tries."""

    FLAGS = ("--max-recoveries=3",)

    def end(self, cluster, words):
        """Waits for the end; returns how many workers were started."""
        started = set()

        def ended():
            started.update(children(cluster.process.pid))
            return cluster.process.poll() is not None
        wait_until(ended, END_S, lambda: f"an end: {cluster.log()[-3000:]}", poll=0.01)
        self.assertEqual(cluster.process.returncode, 1, cluster.log()[-3000:])
        self.assertRegex(cluster.log(), words)
        wait_until(lambda: not [pid for pid in started if alive(pid)], END_S, "no worker is left")
        return len(started)

    def test_at_the_first_start(self):
        for fault, words in (("start-exit", r"rank \d.*exit(ed)?.* 7"), ("load-exit", r"rank \d.*exit(ed)?.* 7"),
                             ("load-fail", r"rank \d.*a fault was injected into this load")):
            with self.subTest(fault=fault), FaultyCluster(fault, *self.FLAGS, wait=False) as cluster:
                self.assertLessEqual(self.end(cluster, words), 2 * 5)

    def test_newcomers(self):
        for fault, words in (("start-exit", r"rank 1.*exit(ed)?.* 7"), ("load-fail", r"rank 1.*a fault was injected into this load")):
            with self.subTest(fault=fault):
                faulty = FaultyCluster("", *self.FLAGS)
                with faulty as cluster:
                    faulty.set_faults(fault)
                    kill(cluster, 1)
                    self.assertLessEqual(self.end(cluster, words), 1 + 5)

    def test_the_model_is_gone(self):
        with tempfile.TemporaryDirectory() as folder:
            model = shutil.copytree(tiny(MODEL), os.path.join(folder, "model"))
            with Cluster(model, "--dtype=float32", *self.FLAGS, workers=2) as cluster:
                shutil.rmtree(model)
                def begin():
                    stream = cluster.open_stream([37, 38], timeout=END_S, max_tokens=400)
                    next(stream.events())
                    return stream
                pid = cluster.status()["ranks"][1]["pid"]
                stream = begin_and_stop(pid, begin, lambda: cluster.status()["num_requests_running"] == 1,
                                        lambda stream: list(stream.events()))
                with contextlib.suppress(ProcessLookupError):  # the coordinator may have found the worker stopped for too long
                    os.kill(pid, signal.SIGKILL)
                # The client learns the end from an error event, or the connection ends.
                try:
                    self.assertTrue([event for event in stream.events() if "error" in event])
                except http.client.IncompleteRead:
                    pass
                self.assertLessEqual(self.end(cluster, r"rank 1.*(No such file|not found|does not exist|cannot open)"), 1 + 5)

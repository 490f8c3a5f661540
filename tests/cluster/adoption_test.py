#!/usr/bin/env python3
"""Coordinators are killed, and the next one with the same run directory adopts the workers that were left.

As a script the file measures the time from exec to the first token, after a cold start and after a restart:
  adoption_test.py [--rounds 20] [--workers 2] [--model PATH] [-- SERVE FLAGS]
"""
import argparse
import http.client
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import unittest

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cluster.harness import SMOLLM2, SOMNUS, Cluster, Stream, alive, expected, tiny, wait_until  # noqa: E402
from cluster.harness.run_directory import SOON_S, RunDirectory, kill, pids  # noqa: E402
from cluster.harness.tokenized import cut_tokenizer  # noqa: E402

MODEL, OTHER_MODEL = "llama-uneven", "qwen3"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
FLAGS = ("--dtype=float32",)
ROUNDS = 2
SHM = "/dev/shm"


def shared_memory():
    """Segments of groups; the account of the host's memory is one for all clusters and stays."""
    return {name for name in os.listdir(SHM) if name.startswith("somnus") and not name.startswith("somnus-memory")}


def ended_with_the_server(cluster):
    try:
        cluster.tokens(CASE["prompt"], max_tokens=450)
    except (AssertionError, OSError, http.client.HTTPException):
        pass  # the server has ended meanwhile


class Adoption(unittest.TestCase):
    def setUp(self):
        self.before = shared_memory()
        self.run_dir = RunDirectory(tiny(MODEL), *FLAGS)
        self.addCleanup(self.run_dir.close)

    def assert_serves(self, cluster):
        self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def assert_nothing_left(self):
        wait_until(lambda: not [pid for pid in self.run_dir.workers if alive(pid)], SOON_S, "the workers end")
        self.assertEqual(os.listdir(self.run_dir.path), ["lock"])
        self.assertEqual(shared_memory() - self.before, set())

    def assert_adopted(self, cluster, known, epoch):
        now = cluster.status()
        self.assertEqual({rank["rank"]: rank["pid"] for rank in now["ranks"]}, known)
        self.assertGreater(int(now["epoch"]), epoch)
        self.assertNotIn("weights loaded", cluster.log())
        return int(now["epoch"])

    def test_awake_and_asleep_the_workers_go_on(self):
        cluster = self.run_dir.start()
        self.assert_serves(cluster)
        known, epoch = pids(cluster), int(cluster.status()["epoch"])
        for _ in range(ROUNDS):
            kill(cluster)
            cluster = self.run_dir.start()
            epoch = self.assert_adopted(cluster, known, epoch)
            self.assert_serves(cluster)
            for level in (1, 2):
                with self.subTest(level=level):
                    cluster.cli("sleep", "--level", str(level))
                    kill(cluster)
                    cluster = self.run_dir.start_asleep()
                    epoch = self.assert_adopted(cluster, known, epoch)
                    self.assertEqual(cluster.status()["sleep_level"], level)
                    self.assertEqual(cluster.request("GET", "/is_sleeping", port=cluster.admin_port).json["is_sleeping"], True)
                    cluster.cli("wake-up")
                    self.assert_serves(cluster)
        self.assertEqual(cluster.stop(), 0)
        self.assert_nothing_left()

    def test_killed_in_the_middle_of_steps(self):
        cluster = self.run_dir.start()
        known = pids(cluster)
        for _ in range(ROUNDS):
            stream = cluster.open_stream(CASE["prompt"], max_tokens=450)
            next(stream.events())
            kill(cluster)
            cluster = self.run_dir.start()
            self.assertEqual(pids(cluster), known)
            self.assert_serves(cluster)

    def test_a_worker_that_does_not_answer_is_replaced(self):
        cluster = self.run_dir.start()
        known = pids(cluster)
        os.kill(known[0], signal.SIGSTOP)
        kill(cluster)
        cluster = self.run_dir.start()
        self.assertEqual(pids(cluster)[1], known[1])
        self.assertFalse(alive(known[0]))
        self.assert_serves(cluster)

    def test_an_adopted_worker_that_is_lost_is_replaced(self):
        cluster = self.run_dir.start()
        known = pids(cluster)
        kill(cluster)
        cluster = self.run_dir.start()
        os.kill(known[0], signal.SIGKILL)
        wait_until(lambda: f"rank 0 (pid {known[0]}) has ended" in cluster.log(), SOON_S, cluster.log)
        wait_until(lambda: cluster.health() == 200, SOON_S, cluster.log)
        now = pids(cluster)
        self.run_dir.workers.update(now.values())
        self.assertNotEqual(now[0], known[0])
        self.assertEqual(now[1], known[1])
        self.assert_serves(cluster)
        self.assertEqual(cluster.stop(), 0)
        self.assert_nothing_left()

    def test_other_options_or_another_model_need_other_workers(self):
        cluster = self.run_dir.start()
        for flags, model in ((("--max-num-seqs=7",), None), (("--kv-cache-memory-bytes=8MiB",), None), ((), tiny(OTHER_MODEL))):
            with self.subTest(flags=flags, model=model):
                known = pids(cluster)
                kill(cluster)
                cluster = self.run_dir.start(*flags, model=model)
                self.assertFalse(set(pids(cluster).values()) & set(known.values()))
                self.assertFalse([pid for pid in known.values() if alive(pid)])
                if model is None:
                    self.assert_serves(cluster)
        self.assertEqual(cluster.stop(), 0)
        self.assert_nothing_left()

    def test_a_start_that_a_damaged_tokenizer_ends_leaves_the_workers(self):
        run_dir = self.run_dir = RunDirectory(shutil.copytree(tiny(MODEL), os.path.join(self.run_dir.parent, "model")), *FLAGS)
        self.addCleanup(run_dir.close)
        tokenizer = os.path.join(run_dir.model, "tokenizer.json")
        cluster = run_dir.start()
        known, epoch = pids(cluster), int(cluster.status()["epoch"])
        kill(cluster)
        shutil.copyfile(tokenizer, tokenizer + ".whole")
        for _ in range(ROUNDS):
            cut_tokenizer(run_dir.model)
            cluster = run_dir.start(wait=False)
            self.assertEqual(cluster.process.wait(SOON_S), 1)
            self.assertIn(f"coordinator: {run_dir.model}: tokenizer.json", cluster.log())
            self.assertEqual([pid for pid in known.values() if not alive(pid)], [])
        os.replace(tokenizer + ".whole", tokenizer)
        cluster = run_dir.start()
        self.assert_adopted(cluster, known, epoch)
        self.assert_serves(cluster)
        self.assertEqual(cluster.stop(), 0)
        self.assert_nothing_left()

    def test_workers_whose_coordinator_does_not_come_back_leave(self):
        cluster = self.run_dir.start("--worker-grace-s=2")
        known = pids(cluster)
        kill(cluster)
        self.assertEqual([pid for pid in known.values() if not alive(pid)], [])
        wait_until(lambda: not [pid for pid in known.values() if alive(pid)], SOON_S, "the workers leave")
        self.assertIn("leaving: no reply from the coordinator at", cluster.log())
        cluster = self.run_dir.start()  # nobody is left to be adopted
        self.assert_serves(cluster)


class Restart(unittest.TestCase):
    """SIGUSR1, as systemd sends it at a restart: the requests end well, and the workers stay."""

    def setUp(self):
        self.run_dir = RunDirectory(tiny(MODEL), *FLAGS)
        self.addCleanup(self.run_dir.close)

    def assert_serves(self, cluster):
        self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def leave(self, cluster):
        cluster.process.send_signal(signal.SIGUSR1)
        self.assertEqual(cluster.process.wait(SOON_S), 0, cluster.log())

    def test_open_requests_end_well_and_nothing_is_loaded_again(self):
        cluster = self.run_dir.start("--shutdown-timeout=10m")
        known = pids(cluster)
        undisturbed = cluster.tokens(CASE["prompt"], max_tokens=400, ignore_eos=True)
        for asleep in (False, True):
            with self.subTest(asleep=asleep):
                if asleep:
                    cluster.cli("sleep")
                    self.leave(cluster)
                    cluster = self.run_dir.start_asleep("--shutdown-timeout=10m")
                    cluster.cli("wake-up")
                else:
                    stream = cluster.open_stream(CASE["prompt"], max_tokens=400, return_token_ids=True)
                    events = stream.events()
                    first = next(events)
                    cluster.process.send_signal(signal.SIGUSR1)
                    answer = [token for event in (first, *events) for token in event["choices"][0]["token_ids"]]
                    self.assertEqual(answer, undisturbed)
                    self.assertEqual(cluster.process.wait(SOON_S), 0, cluster.log())
                    self.assertEqual([pid for pid in known.values() if not alive(pid)], [])
                    cluster = self.run_dir.start("--shutdown-timeout=10m")
                self.assertEqual(pids(cluster), known)
                self.assertNotIn("weights loaded", cluster.log())
                self.assert_serves(cluster)
        self.assertEqual(cluster.stop(), 0)
        self.assertEqual([pid for pid in known.values() if alive(pid)], [])
        self.assertEqual(os.listdir(self.run_dir.path), ["lock"])

    def test_workers_that_have_reloaded_stay_too(self):
        cluster = self.run_dir.start()
        known = pids(cluster)
        for version, asleep in enumerate((False, True), start=2):
            with self.subTest(asleep=asleep):
                cluster.cli("reload-weights")
                if asleep:
                    cluster.cli("sleep")
                self.leave(cluster)
                self.assertNotIn("ends with this server", cluster.log())
                cluster = self.run_dir.start_asleep() if asleep else self.run_dir.start()
                self.assertEqual(pids(cluster), known)
                now = cluster.status()
                self.assertEqual((int(now["weights_version"]), now.get("weights_note", "")), (version, ""))
                if asleep:
                    cluster.cli("wake-up")
                self.assert_serves(cluster)
        self.assertEqual(cluster.stop(), 0)
        cluster = self.run_dir.start()  # new workers
        self.assertEqual(int(cluster.status()["weights_version"]), version)

    def test_other_options_and_a_restart_in_the_middle_of_a_start(self):
        cluster = self.run_dir.start()
        known = pids(cluster)
        self.leave(cluster)
        cluster = self.run_dir.start(wait=False)
        wait_until(lambda: "loading test-model" in cluster.log(), SOON_S, cluster.log)
        self.leave(cluster)  # wherever the request is by now
        cluster = self.run_dir.start("--max-num-seqs=7")
        self.assertEqual([pid for pid in known.values() if alive(pid)], [])
        self.assert_serves(cluster)

    def test_sigterm_afterwards_ends_the_workers_too(self):
        cluster = self.run_dir.start("--shutdown-timeout=10m")
        known = pids(cluster)
        # A request that does not end: the coordinator still waits for the end when the second signal comes.
        os.kill(known[0], signal.SIGSTOP)
        request = threading.Thread(target=ended_with_the_server, args=(cluster,))
        request.start()
        wait_until(lambda: cluster.metric("vllm:num_requests_running") == 1, SOON_S, "the request runs")
        cluster.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "leaving the workers" in cluster.log(), SOON_S, cluster.log)
        cluster.process.send_signal(signal.SIGTERM)
        os.kill(known[0], signal.SIGCONT)
        self.assertEqual(cluster.process.wait(SOON_S), 0, cluster.log())
        request.join()
        self.assertEqual([pid for pid in known.values() if alive(pid)], [])

    def test_without_a_directory_nobody_stays(self):
        with Cluster(tiny(MODEL), *FLAGS) as cluster:
            known = pids(cluster)
            self.leave(cluster)
            self.assertIn("without --run-dir", cluster.log())
            self.assertEqual([pid for pid in known.values() if alive(pid)], [])


class Directory(unittest.TestCase):
    def setUp(self):
        self.run_dir = RunDirectory(tiny(MODEL), *FLAGS)
        self.addCleanup(self.run_dir.close)

    def refusal(self, *flags):
        done = subprocess.run([SOMNUS, "serve", tiny(MODEL), "--port=0", "--admin-port=0", "--grpc-port=0",
                               "--control-port=0", *flags],
                              capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        self.assertIn(done.returncode, (1, 2))
        return done.stderr

    def test_a_second_coordinator_is_refused(self):
        cluster = self.run_dir.start()
        known = pids(cluster)
        words = f"--run-dir: another coordinator (pid {cluster.process.pid}) uses {self.run_dir.path}"
        self.assertIn(words, self.refusal(f"--run-dir={self.run_dir.path}"))
        self.assertEqual(pids(cluster), known)
        self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def test_a_directory_that_others_may_enter_is_refused(self):
        os.mkdir(self.run_dir.path, 0o755)
        self.assertIn("is open to other users", self.refusal(f"--run-dir={self.run_dir.path}"))
        self.assertIn("--run-dir", self.refusal(f"--run-dir={self.run_dir.parent}/{'a' * 100}"))
        self.assertIn("--run-dir", self.refusal(f"--run-dir={self.run_dir.path}", "--workers=remote:2", "--cluster-port=0"))

    def test_it_is_private(self):
        self.run_dir.start()
        self.assertEqual(os.stat(self.run_dir.path).st_mode & 0o777, 0o700)
        for name in ("secret", "group", "lock"):
            self.assertEqual(os.stat(os.path.join(self.run_dir.path, name)).st_mode & 0o077, 0, name)


class Stop(unittest.TestCase):
    def setUp(self):
        self.run_dir = RunDirectory(tiny(MODEL), *FLAGS)
        self.addCleanup(self.run_dir.close)

    def stop(self, *args):
        return subprocess.run([SOMNUS, "stop", *args], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)

    def assert_stopped(self, cluster, known, done):
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, f"stopped the coordinator (pid {cluster.process.pid}) and its workers\n")
        self.assertEqual(cluster.process.wait(SOON_S), 0)
        self.assertFalse([pid for pid in known if alive(pid)])

    def test_by_run_directory_and_by_address(self):
        for by_address in (False, True):
            with self.subTest(by_address=by_address):
                cluster = self.run_dir.start()
                known = pids(cluster).values()
                which = f"--port={cluster.port}" if by_address else f"--run-dir={self.run_dir.path}"
                self.assert_stopped(cluster, known, self.stop(which))
        self.assertEqual(os.listdir(self.run_dir.path), ["lock"])

    def test_workers_that_were_left(self):
        cluster = self.run_dir.start()
        known = sorted(pids(cluster).items())
        kill(cluster)
        os.kill(known[0][1], signal.SIGSTOP)
        done = self.stop(f"--run-dir={self.run_dir.path}")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, f"ended 2 workers that were left (pid {known[0][1]}, {known[1][1]})\n")
        self.assertFalse([pid for _, pid in known if alive(pid)])
        done = self.stop(f"--run-dir={self.run_dir.path}")
        self.assertEqual((done.returncode, done.stdout), (0, f"nothing runs in {self.run_dir.path}\n"))

    def test_wrong_uses(self):
        done = self.stop(f"--run-dir={self.run_dir.parent}/none")
        self.assertEqual(done.returncode, 3)
        self.assertIn(f"there is no directory {self.run_dir.parent}/none", done.stderr)
        self.assertEqual(self.stop("--run-dir=/tmp", "--url=http://127.0.0.1:1").returncode, 2)


def first_token_s(start):
    """Seconds from the start of a server's process to the first token that a client gets."""
    begin = time.monotonic()
    cluster = start()
    while True:
        try:
            stream = Stream(cluster.connection(cluster.port), "/v1/completions", {
                "model": cluster.name, "prompt": "The", "temperature": 0, "max_tokens": 2, "stream": True})
            if stream.status == 200:
                next(stream.events())
                seconds = time.monotonic() - begin
                stream.close()
                return cluster, seconds
            stream.close()
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.002)


def woken(cluster):
    """The sleeping server, once told to wake up."""
    while True:
        try:
            if cluster.request("POST", "/wake_up", port=cluster.admin_port).status == 200:
                return cluster
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.002)


def describe(what, seconds):
    print(f"{what:28} {min(seconds):.3f} {statistics.median(seconds):.3f} {max(seconds):.3f}", flush=True)


def measure(rounds, model, workers, flags):
    def new_directory():
        return RunDirectory(model, *flags, workers=workers)

    print(f"seconds from exec to the first token of {os.path.basename(model)}, {workers} workers: least, median, most")
    cold = []
    for _ in range(rounds):
        run_dir = new_directory()
        try:
            cluster, seconds = first_token_s(lambda: run_dir.start(wait=False))
            cold.append(seconds)
            cluster.stop()
        finally:
            run_dir.close()
    describe("cold start", cold)
    run_dir = new_directory()
    try:
        cluster, _ = first_token_s(lambda: run_dir.start(wait=False))
        known = pids(cluster)
        for level in (0, 1, 2):
            warm = []
            for _ in range(rounds):
                if level > 0:
                    cluster.cli("sleep", "--level", str(level))
                kill(cluster)
                cluster, seconds = first_token_s(lambda: woken(run_dir.start(wait=False)) if level > 0 else run_dir.start(wait=False))
                warm.append(seconds)
                if pids(cluster) != known:
                    raise AssertionError(f"workers {known} were not adopted:\n{cluster.log()}")
            describe("restart, awake" if level == 0 else f"restart, asleep at level {level}", warm)
        run_dir.workers.update(known.values())
        cluster.cli("stop", "--run-dir", run_dir.path)
    finally:
        run_dir.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    measure(options.rounds, options.model, options.workers, options.flags)


if __name__ == "__main__":
    main()

"""How a cluster starts, ends and fails: all processes and all signals are real."""
import contextlib
import os
import platform
import signal
import socket
import subprocess
import tempfile
import unittest

from cluster.harness import SOMNUS, WORKER, Cluster, alive, expected, free_ports, tiny, wait_until
from cluster.harness.streams import Round

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
LONG = {"max_tokens": 450, "ignore_eos": True}
# Within this time the end of a worker is noticed and every open stream has got an error.
FAILURE_S = 15
# Workers leave this long after the coordinator was killed.
ORPHAN_S = 45
# Under this flag the loss of a worker is final (recovery_test.py loses workers without the flag).
NO_RECOVERY = "--max-recoveries=0"
FIRST_ISA, OTHER_ISA = ("neon", "neon_dotprod") if platform.machine() == "aarch64" else ("portable", "avx2")


def slow_model():
    """Flags under which an answer takes long enough to be interrupted: many tokens, one step at a time."""
    return ("--dtype=float32", "--no-async-scheduling")


class Ending(unittest.TestCase):
    def test_sigterm_when_idle(self):
        with Cluster(tiny(MODEL), workers=2) as cluster:
            self.assertEqual(len(cluster.worker_pids()), 2)
            self.assertEqual(cluster.stop(), 0)
            with socket.socket() as probe:  # the port is free again
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", cluster.port))

    def test_sigint_ends_it_too(self):
        with Cluster(tiny(MODEL), workers=2) as cluster:
            workers = cluster.worker_pids()
            cluster.process.send_signal(signal.SIGINT)
            self.assertEqual(cluster.process.wait(60), 0)
            self.assertFalse([pid for pid in workers if alive(pid)])

    def test_sigterm_lets_open_streams_end(self):
        with Cluster(tiny(MODEL), *slow_model(), workers=2) as cluster:
            stream = cluster.open_stream(CASE["prompt"], max_tokens=200)
            events = stream.events()
            next(events)
            cluster.process.send_signal(signal.SIGTERM)
            reasons = [event["choices"][0]["finish_reason"] for event in events if event.get("choices")]
            self.assertEqual([reason for reason in reasons if reason], ["length"])
            self.assertEqual(cluster.process.wait(60), 0)

    def test_sigterm_while_loading(self):
        with Cluster(tiny(MODEL), workers=2, wait=False) as cluster:
            wait_until(cluster.worker_pids, 30, "workers started")
            workers = cluster.worker_pids()
            self.assertEqual(cluster.stop(), 0)
            self.assertFalse([pid for pid in workers if alive(pid)])


class Dying(unittest.TestCase):
    def test_killed_worker_is_named_and_ends_the_coordinator(self):
        for victim in (0, 1):
            with self.subTest(victim=victim), Cluster(tiny(MODEL), *slow_model(), NO_RECOVERY, workers=2) as cluster:
                pid = next(rank["pid"] for rank in cluster.status()["ranks"] if rank["rank"] == victim)
                workers = cluster.worker_pids()
                self.assertIn(pid, workers)
                streams = [cluster.open_stream(CASE["prompt"], timeout=FAILURE_S, **LONG) for _ in range(4)]
                for stream in streams:
                    next(stream.events())
                os.kill(pid, signal.SIGKILL)
                for stream in streams:
                    self.assertIn(f"rank {victim}", self.failure_of(stream))
                self.assertEqual(cluster.process.wait(60), 1)
                self.assertRegex(cluster.log(), rf"rank {victim} \(pid {pid}\).*killed by signal 9")
                wait_until(lambda: not [pid for pid in workers if alive(pid)], FAILURE_S, "all workers gone")

    def failure_of(self, stream):
        """The message of the error event that ends the stream."""
        for event in stream.events():
            if "error" in event:
                return event["error"]["message"]
        self.fail("the stream ended without an error event")

    def test_a_failure_ends_an_idle_coordinator_too(self):
        with Cluster(tiny(MODEL), NO_RECOVERY, workers=2) as cluster:
            os.kill(cluster.worker_pids()[0], signal.SIGKILL)
            self.assertEqual(cluster.process.wait(60), 1)
            self.assertIn("killed by signal 9", cluster.log())

    def test_stay_after_failure(self):
        with Cluster(tiny(MODEL), "--stay-after-failure", NO_RECOVERY, workers=2) as cluster:
            workers = cluster.worker_pids()
            self.assertEqual(cluster.request("GET", "/livez").status, 200)
            os.kill(workers[0], signal.SIGKILL)
            # Without recoveries the engine fails; a moment before, the loss is known and the server is live.
            wait_until(lambda: cluster.request("GET", "/livez").status == 503, FAILURE_S, "/livez 503")
            for path in ("/health", "/readyz", "/livez"):
                response = cluster.request("GET", path)
                self.assertEqual(response.status, 503)
                self.assertIn("killed by signal 9", response.json["error"]["message"])
            self.assertEqual(cluster.metric("somnus:engine_state"), 1)
            self.assertEqual(cluster.metric("vllm:engine_sleep_state"), 0)
            response = cluster.request("POST", "/v1/completions", {"model": cluster.name, "prompt": [37]}, timeout=FAILURE_S)
            self.assertEqual(response.status, 503)
            # SIGTERM still ends everything; a failed engine is no success.
            cluster.process.send_signal(signal.SIGTERM)
            self.assertEqual(cluster.process.wait(60), 1)
            wait_until(lambda: not [pid for pid in workers if alive(pid)], FAILURE_S, "all workers gone")

    def test_killed_coordinator_leaves_no_worker(self):
        with Cluster(tiny(MODEL), workers=2) as cluster:
            workers = cluster.worker_pids()
            self.assertEqual(len(workers), 2)
            cluster.process.kill()
            cluster.process.wait()
            wait_until(lambda: not [pid for pid in workers if alive(pid)], ORPHAN_S, "the workers leave")

    def test_worker_killed_while_loading(self):
        # A tiny model loads within milliseconds: where the kill came too late, the test tries again.
        for _ in range(20):
            with Cluster(tiny(MODEL), NO_RECOVERY, workers=2, wait=False) as cluster:
                while not (workers := cluster.worker_pids()):
                    self.assertIsNone(cluster.process.poll(), cluster.log())
                os.kill(workers[0], signal.SIGKILL)
                wait_until(lambda: cluster.process.poll() is not None or "ready after" in cluster.log(), 60, "an end")
                if "ready after" not in cluster.log():
                    self.assertNotEqual(cluster.process.wait(60), 0)
                    self.assertRegex(cluster.log(), r"rank \d.*killed by signal 9")
                    return
        self.fail("no worker could be killed while it was loading")


class Refusals(unittest.TestCase):
    """A single clear line that names the mistake, and a non-zero exit."""

    def refuse(self, *args, names):
        # A port that another suite has at the moment would be the named mistake.
        ports = [] if not args or any(arg.startswith("--p") for arg in args) else ["--port=0"]
        done = subprocess.run([SOMNUS, "serve", *args, *ports], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        self.assertNotEqual(done.returncode, 0)
        lines = [line for line in done.stderr.splitlines() if any(name in line for name in names)]
        self.assertTrue(lines, f"{names} not in {done.stderr!r}")
        self.assertNotIn("Traceback", done.stderr)
        return done.stderr

    def test_flags(self):
        model = tiny(MODEL)
        for args, name in (((), "MODEL"), ((model, "--no-such-flag"), "--no-such-flag"), ((model, "--port=99999"), "--port"),
                           ((model, "--workers=local:0"), "--workers"), ((model, "--dtype=int3"), "--dtype"),
                           ((model, "--block_size=0"), "--block-size"), ((model, "--max-model-len=100000"), "--max-model-len"),
                           ((model, "--kv-cache-memory-bytes=lots"), "--kv-cache-memory-bytes"),
                           ((model, "--port"), "--port"), ((model, "--prot=9"), "did you mean --port?")):
            with self.subTest(args=args):
                stderr = self.refuse(*args, names=[name])
                self.assertEqual(len(stderr.splitlines()), 1, stderr)

    def test_missing_model(self):
        stderr = self.refuse("/no/such/model", names=["/no/such/model"])
        self.assertEqual(len(stderr.splitlines()), 1, stderr)

    def test_damaged_models(self):
        with tempfile.TemporaryDirectory() as folder:
            self.refuse(folder, names=["config.json"])
            gguf = os.path.join(folder, "cut.gguf")
            with open(gguf, "wb") as file:
                file.write(b"GGUF\3\0\0\0")
            self.refuse(gguf, names=["cut.gguf"])
            for name in os.listdir(tiny(MODEL)):
                with open(os.path.join(tiny(MODEL), name), "rb") as source, open(os.path.join(folder, name), "wb") as copy:
                    data = source.read()
                    copy.write(data[:len(data) // 2] if name == "model.safetensors" else data)
            self.refuse(folder, names=["model.safetensors"])

    def test_ports_that_are_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            flags = ("--port", "--admin-port", "--grpc-port", "--control-port")
            for flag in flags:
                rest = [f"{other}={free}" for other, free in zip((other for other in flags if other != flag), free_ports(3))]
                with self.subTest(flag=flag):
                    self.refuse(tiny(MODEL), flag, port, *rest, names=[port])


class HandStartedWorkers:
    """Workers for a cluster with --workers=remote:N; without `cluster_port` the environment names the coordinator. Leaving the
    context kills workers that still run."""

    def __init__(self, cluster_port=None):
        self._flags = () if cluster_port is None else (f"--coordinator=127.0.0.1:{cluster_port}",)
        self._processes, self._logs = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.kill()
            process.wait()
        for log in self._logs:
            log.close()

    def start(self, *flags, env=None, prefix=()):
        log = tempfile.NamedTemporaryFile(prefix="somnus_worker_", suffix=".log")
        process = subprocess.Popen([*prefix, WORKER, *self._flags, *flags],
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **(env or {})})
        self._logs.append(log)
        self._processes.append(process)
        return process

    def logs(self):
        texts = []
        for log in self._logs:
            with open(log.name, encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
        return texts


@contextlib.contextmanager
def waiting_for_two_workers(*flags):
    """A cluster, and the workers that the test starts for the cluster."""
    cluster_port, = free_ports(1)
    with HandStartedWorkers(cluster_port) as workers, \
            Cluster(tiny(MODEL), *flags, "--workers=remote:2", f"--cluster-port={cluster_port}", workers=0,
                    wait=False) as cluster:
        yield cluster, workers


class HandStarted(unittest.TestCase):
    def test_workers_register_over_tcp(self):
        with waiting_for_two_workers("--dtype=float32") as (cluster, workers):
            started = [workers.start() for _ in range(2)]
            cluster.wait_ready()
            self.assertEqual(sorted(rank["pid"] for rank in cluster.status()["ranks"]),
                             sorted(worker.pid for worker in started))
            self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])
            self.assertEqual(cluster.stop(), 0)
            for worker in started:
                worker.wait(ORPHAN_S)

    def test_run_options_reach_them(self):
        with waiting_for_two_workers("--threads-per-worker=3") as (cluster, workers):
            for _ in range(2):
                workers.start()
            cluster.wait_ready()
            for log in workers.logs():
                self.assertIn("runs on cpu, 3 threads", log)
            self.assertEqual(cluster.stop(), 0)

    def test_a_worker_that_dies_before_the_group_is_complete_is_replaced(self):
        with waiting_for_two_workers("--dtype=float32", "--hang-timeout=2s", "--log-level=debug") as (cluster, workers):
            victim = workers.start("--rank=0")
            wait_until(lambda: "has registered" in cluster.log(), 60, "the first worker registers")
            victim.kill()
            victim.wait()
            # The dead worker keeps the place until the silence was long enough: the replacement tries again.
            replacements = [workers.start(f"--rank={rank}") for rank in (0, 1)]
            cluster.wait_ready()
            self.assertEqual([rank["pid"] for rank in cluster.status()["ranks"]], [worker.pid for worker in replacements])
            self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])
            self.assertEqual(cluster.stop(), 0)

    def serve_streams(self, cluster):
        """Many tokens of a tiny model, as (requests, the undisturbed answers)."""
        requests = [("/v1/completions", {"prompt": [5 + number] * 20, "max_tokens": 450, "temperature": number % 2, "seed": 3,
                                         "ignore_eos": True, "return_token_ids": True, "stream": True,
                                         "stream_options": {"include_usage": True}}) for number in range(8)]
        return requests, Round(cluster, requests).answers()

    def assert_taken_over(self, cluster, pids):
        """The ranks are the processes `pids`, every rank is awake, and tokens are exact."""
        wait_until(lambda: [rank["pid"] for rank in cluster.status()["ranks"]] == pids, 60, f"the ranks are {pids}")
        wait_until(lambda: cluster.health() == 200, 60, "/health 200")
        self.assertEqual([rank["state"] for rank in cluster.status()["ranks"]], ["awake"] * len(pids))
        self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def test_a_newcomer_takes_the_place_of_a_killed_worker(self):
        with waiting_for_two_workers(*slow_model()) as (cluster, workers):
            first = [workers.start(f"--rank={rank}") for rank in (0, 1)]
            cluster.wait_ready()
            requests, wanted = self.serve_streams(cluster)
            ranks = [worker.pid for worker in first]
            for victim in (1, 0):
                around = Round(cluster, requests)
                wait_until(lambda: len(around.token_times) > len(requests), 60, "tokens", poll=0.005)
                os.kill(ranks[victim], signal.SIGKILL)
                wait_until(lambda: cluster.status()["state"] == "ENGINE_STATE_RECOVERING", FAILURE_S, "recovering")
                self.assertEqual(cluster.request("GET", "/livez").status, 200)
                self.assertFalse(around.over())
                ranks[victim] = workers.start().pid  # which takes the place that is free
                around.check(wanted)
                self.assert_taken_over(cluster, ranks)
            self.assertEqual(cluster.stop(), 0)

    def test_a_worker_that_comes_back_too_late_leaves(self):
        with waiting_for_two_workers(*slow_model()) as (cluster, workers):
            first = [workers.start(f"--rank={rank}") for rank in (0, 1)]
            cluster.wait_ready()
            requests, wanted = self.serve_streams(cluster)
            around = Round(cluster, requests)
            wait_until(lambda: len(around.token_times) > len(requests), 60, "tokens", poll=0.005)
            first[1].send_signal(signal.SIGSTOP)
            wait_until(lambda: cluster.status()["state"] == "ENGINE_STATE_RECOVERING", FAILURE_S, "recovering")
            newcomer = workers.start()
            around.check(wanted)
            again = Round(cluster, requests)
            first[1].send_signal(signal.SIGCONT)
            again.check(wanted)
            self.assert_taken_over(cluster, [first[0].pid, newcomer.pid])
            first[1].wait(ORPHAN_S)
            self.assertEqual(cluster.stop(), 0)

    def test_a_device_that_a_worker_was_not_started_for_is_named(self):
        cluster_port, = free_ports(1)
        with HandStartedWorkers(cluster_port) as workers, \
                Cluster(tiny(MODEL), "--workers=remote:1", f"--cluster-port={cluster_port}", "--device=cuda", workers=0,
                        wait=False) as cluster:
            workers.start("--device=cpu")
            self.assertEqual(cluster.process.wait(60), 1)
            self.assertIn("the coordinator's --device is cuda, this worker was started with --device=cpu", cluster.log())

    def test_worker_without_a_coordinator_ends(self):
        port, = free_ports(1)
        done = subprocess.run([WORKER, f"--coordinator=127.0.0.1:{port}", "--register-timeout=2s"], capture_output=True,
                              text=True, timeout=120, stdin=subprocess.DEVNULL)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(str(port), done.stderr)

    def test_another_instruction_set_is_refused_at_first_and_after_a_loss(self):
        with waiting_for_two_workers("--dtype=float32", "--log-level=debug") as (cluster, workers):
            first = workers.start("--rank=0", env={"SOMNUS_CPU_ISA": FIRST_ISA})
            wait_until(lambda: "has registered" in cluster.log(), 60, cluster.log)
            self.refuse_isa(workers, 1)
            second = workers.start("--rank=1", env={"SOMNUS_CPU_ISA": FIRST_ISA})
            cluster.wait_ready()
            self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])
            for worker in (first, second):
                os.kill(worker.pid, signal.SIGKILL)
            wait_until(lambda: "rank 0 waits for a new worker" in cluster.log(), 60, cluster.log)
            self.refuse_isa(workers, 0)
            for rank in (0, 1):
                workers.start(f"--rank={rank}", env={"SOMNUS_CPU_ISA": FIRST_ISA})
            wait_until(lambda: cluster.health() == 200, 60, cluster.log)
            self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def refuse_isa(self, workers, rank):
        refused = workers.start(f"--rank={rank}", env={"SOMNUS_CPU_ISA": OTHER_ISA})
        self.assertEqual(refused.wait(60), 1)
        self.assertIn(f"cpu_isa: the group computes with {FIRST_ISA}, the worker on", workers.logs()[-1])


class Health(unittest.TestCase):
    def test_health_is_503_before_it_serves(self):
        seen = set()
        with Cluster(tiny(MODEL), workers=4, wait=False) as cluster:
            def ready():
                seen.add(cluster.health())
                return 200 in seen
            wait_until(ready, 60, "/health 200")
            self.assertLessEqual(seen, {0, 503, 200})
            cluster.complete([37])


class AutoGroup(HandStartedWorkers):
    """A coordinator with --workers=auto and two workers that learn everything from the environment."""

    def __init__(self, *worker_flags):
        super().__init__()
        self.environment = {"SOMNUS_COORDINATOR": f"127.0.0.1:{free_ports(1)[0]}", "SOMNUS_WORLD_SIZE": "2"}
        self.cluster = Cluster(tiny(MODEL), "--workers=auto", "--dtype=float32", "--no-async-scheduling", "--shutdown-timeout=60s",
                               workers=0, wait=False, env=self.environment)
        self.workers = [self.start(*worker_flags, env={**self.environment, "SOMNUS_RANK": str(rank)}) for rank in (0, 1)]

    def __exit__(self, *_):
        self.cluster.__exit__()
        super().__exit__()

    def terminate_all(self):
        for process in [*self.workers, self.cluster.process]:
            process.send_signal(signal.SIGTERM)


class Term(unittest.TestCase):
    """TERM for a coordinator and the workers at once, as Slurm and Kubernetes send the signal; messages to a service manager."""

    def test_workers_stay_until_the_coordinator_has_drained(self):
        with AutoGroup("--term-grace=10m") as group:
            group.cluster.wait_ready()
            self.assertIn("from SOMNUS_COORDINATOR, world size 2 from SOMNUS_WORLD_SIZE", group.cluster.log())
            stream = group.cluster.open_stream(CASE["prompt"], max_tokens=450)
            events = stream.events()
            next(events)
            group.terminate_all()
            reasons = [event["choices"][0]["finish_reason"] for event in events if event.get("choices")]
            self.assertEqual([reason for reason in reasons if reason], ["length"])
            self.assertEqual(group.cluster.process.wait(ORPHAN_S), 0)
            for rank, worker in enumerate(group.workers):
                self.assertEqual(worker.wait(ORPHAN_S), 0)
                self.assertIn(f"coordinator {group.environment['SOMNUS_COORDINATOR']} from SOMNUS_COORDINATOR, rank {rank} from "
                              "SOMNUS_RANK", group.logs()[rank])
                self.assertIn("leaving: the coordinator said so", group.logs()[rank])

    def test_workers_leave_after_their_grace_when_nobody_sends_them_away(self):
        with AutoGroup("--term-grace=500ms") as group:
            group.cluster.wait_ready()
            os.kill(group.cluster.process.pid, signal.SIGSTOP)
            for worker in group.workers:
                worker.send_signal(signal.SIGTERM)
            for rank, worker in enumerate(group.workers):
                self.assertEqual(worker.wait(ORPHAN_S), 0)
                self.assertIn("the coordinator did not say otherwise", group.logs()[rank])

    def test_the_service_manager_hears_of_all_of_it(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(os.path.join(folder, "notify"))
            manager.settimeout(ORPHAN_S)
            environment = {"NOTIFY_SOCKET": os.path.join(folder, "notify"), "WATCHDOG_USEC": "300000"}
            with Cluster(tiny(MODEL), workers=1, env=environment) as cluster:
                # A worker inherits the environment, and would speak for the coordinator.
                self.assertEqual(manager.recv(1024).decode(), f"READY=1\nSTATUS=serving {tiny(MODEL)}\n")
                for _ in range(3):
                    self.assertEqual(manager.recv(1024), b"WATCHDOG=1\n")
                self.assertEqual(cluster.stop(), 0)
                heard = set()
                wait_until(lambda: heard.add(manager.recv(1024)) or b"STOPPING=1\n" in heard, ORPHAN_S, lambda: f"STOPPING: {heard}")
                self.assertLessEqual(heard, {b"WATCHDOG=1\n", b"STOPPING=1\n"})

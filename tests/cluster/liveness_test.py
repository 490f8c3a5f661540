"""Threads that hang: /livez, /readyz, gRPC health, the log and the watchdog say so while a thread of the coordinator or of a
worker hangs; a process that was stopped, or a whole machine (SIGSTOP, a virtual machine's pause), has not hung and blames
nobody."""
import ctypes
import os
import re
import signal
import socket
import tempfile
import time
import unittest

from cluster.harness import Cluster, begin_and_stop, expected, free_ports, grpc, tiny, wait_until
from cluster.lifecycle_test import HandStartedWorkers

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
PATIENCE_S = 120
LIMIT_S = 4
SHORT_LIMIT_S = 2  # of a server that computes nothing meanwhile
# A step of this model takes milliseconds, and nothing but the test waits for a busy machine.
WORKER_FLAGS = ("--liveness-timeout=3s", "--step-timeout=1m")
# A step that takes longer than this is late; the coordinator stands still for longer.
HANG_TIMEOUT_S, STANDSTILL_S, NUM_TOKENS = 3, 5, 450
WATCHDOG_S = 0.3
# The loops of a server with one model that sleeps when idle, by the names of the threads.
LOOPS = {"engine loop": "engine loop", "sleep of an idl": "sleep of an idle engine", "watch of regist": "watch of registered workers",
         "gRPC health": "gRPC health", "watch of the pr": "watch of the processes of 1 workers"}
NOT_SERVING, SERVING = b"\x08\x02", b"\x08\x01"  # grpc.health.v1.HealthCheckResponse
SERVICES = (b"", b"\x0a\x17somnus.v1.WorkerService")
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WALL = 0x40000000  # waitpid for a thread that is no child


def flags(limit_s):
    """The limit is at least twice the time after which a worker has hung."""
    return "--dtype=float32", f"--liveness-timeout={limit_s}s", f"--hang-timeout={limit_s / 2}s"


FLAGS = flags(LIMIT_S)
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.restype = ctypes.c_long
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(request, thread):
    if LIBC.ptrace(request, thread, None, None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def threads(pid):
    """{name: [thread id]} of a process."""
    found = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/comm", encoding="utf-8") as file:
                found.setdefault(file.read().rstrip("\n"), []).append(int(task))
        except OSError:
            pass  # the thread has ended meanwhile
    return found


class StoppedThread:
    """with StoppedThread(pid, name): the thread stands still while all other threads run, as in a deadlock, since a tracer
    holds the thread. To be used on one thread of the test."""

    def __init__(self, pid, name):
        self.thread = min(threads(pid)[name])  # threads that a thread starts have the same name

    def __enter__(self):
        ptrace(PTRACE_SEIZE, self.thread)
        ptrace(PTRACE_INTERRUPT, self.thread)
        os.waitpid(self.thread, WALL)
        return self

    def __exit__(self, *_):
        ptrace(PTRACE_DETACH, self.thread)


def can_stop():
    """Whether this machine lets a process trace a child; some containers do not."""
    child = os.fork()
    if child == 0:
        while True:
            os.read(os.pipe()[0], 1)
    try:
        ptrace(PTRACE_SEIZE, child)
        return True
    except OSError:
        return False
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def text_of(events):
    return "".join(event["choices"][0]["text"] for event in events if event.get("choices"))


def message(response):
    return response.json["error"]["message"] if response.status == 503 else ""


def assert_silent_watchdog(test, manager):
    manager.settimeout(10 * WATCHDOG_S)
    # Messages from before the hang are in the socket or on the way.
    with test.assertRaises(TimeoutError):
        for _ in range(10_000):
            manager.recv(1024)


@unittest.skipUnless(can_stop(), "this machine does not let a process trace another one")
class Liveness(unittest.TestCase):
    def await_hang(self, cluster, loop, limit_s=LIMIT_S):
        """Waits until /livez fails, and checks the message."""
        wait_until(lambda: cluster.request("GET", "/livez").status == 503, PATIENCE_S, f"/livez 503 for {loop}")
        said = {message(cluster.request("GET", path, port=port)) for path in ("/livez", "/readyz") for port in (
            cluster.port, cluster.admin_port)}
        for line in said:
            self.assertRegex(line, rf"^{re.escape(loop)}: no sign of life since \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ, for \d+s \(the limit is "
                                   rf"{limit_s}s\); if that lasts, only a restart of the process ends it$")
        self.assertGreater(cluster.metric("somnus:longest_loop_silence_seconds"), limit_s)

    def await_life(self, cluster):
        wait_until(lambda: cluster.request("GET", "/livez").status == 200, PATIENCE_S, "/livez 200")
        wait_until(lambda: cluster.health() == 200, PATIENCE_S, "/readyz 200")

    def test_an_engine_that_hangs_under_a_stream(self):
        """The service manager hears nothing meanwhile."""
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(os.path.join(folder, "notify"))
            environment = {"NOTIFY_SOCKET": os.path.join(folder, "notify"), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
            with Cluster(tiny(MODEL), *FLAGS, workers=2, env=environment) as cluster:
                alone = text_of(cluster.open_stream(CASE["prompt"], max_tokens=450).events())
                events = cluster.open_stream(CASE["prompt"], max_tokens=450).events()
                first = next(events)
                with StoppedThread(cluster.process.pid, "engine loop"):
                    self.await_hang(cluster, "engine loop")
                    wait_until(lambda: "E [coordinator] engine loop: no sign of life since " in cluster.log(), PATIENCE_S, "a line of the log")
                    assert_silent_watchdog(self, manager)
                self.await_life(cluster)
                manager.settimeout(PATIENCE_S)
                self.assertEqual(manager.recv(1024), b"WATCHDOG=1\n")
                self.assertEqual(text_of([first, *events]), alone)
                wait_until(lambda: "all threads that serve give signs of life again" in cluster.log(), PATIENCE_S, "a line of the log")
                # The step's deadline may have passed meanwhile: then the group is recovered, and the stream goes on all the same.
                self.assertLessEqual(cluster.metric("somnus:recoveries_total"), 1, cluster.log())

    def test_every_loop_is_asked_also_when_it_waits(self):
        with Cluster(tiny(MODEL), *flags(SHORT_LIMIT_S), "--idle-sleep=24h", workers=1) as cluster:
            # A thread names itself, which may come after the first request is served.
            wait_until(lambda: set(LOOPS) <= set(threads(cluster.process.pid)), PATIENCE_S, "all loops by name")
            for thread, loop in LOOPS.items():
                with self.subTest(loop), StoppedThread(cluster.process.pid, thread):
                    self.await_hang(cluster, loop, SHORT_LIMIT_S)
                self.await_life(cluster)
            self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    @unittest.skipUnless(grpc, "no gRPC for Python")
    def test_the_thread_of_http_which_answers_no_probe(self):
        with Cluster(tiny(MODEL), *FLAGS, workers=1) as cluster, grpc.insecure_channel(f"127.0.0.1:{cluster.grpc_port}") as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            wait_until(lambda: check(b"", timeout=PATIENCE_S) == SERVING, PATIENCE_S, "SERVING")
            with StoppedThread(cluster.process.pid, "HTTP I/O thread"):
                wait_until(lambda: check(b"", timeout=PATIENCE_S) == NOT_SERVING, PATIENCE_S, "NOT_SERVING")
                wait_until(lambda: "E [coordinator] HTTP I/O thread: no sign of life since " in cluster.log(), PATIENCE_S, "a line of the log")
                with grpc.insecure_channel(f"127.0.0.1:{cluster.control_port}") as control:
                    status = control.unary_unary("/somnus.v1.ControlService/GetStatus")(b"", timeout=PATIENCE_S)
                self.assertIn(b"HTTP I/O thread: no sign of life since ", status)
            self.await_life(cluster)
            wait_until(lambda: check(b"", timeout=PATIENCE_S) == SERVING, PATIENCE_S, "SERVING")

    def test_a_recovery_that_hangs(self):
        cluster_port, = free_ports(1)
        with HandStartedWorkers(cluster_port) as workers, Cluster(
                tiny(MODEL), *FLAGS, "--replacement-timeout=20s", "--workers=remote:1", f"--cluster-port={cluster_port}", workers=0,
                wait=False) as cluster:
            worker = workers.start()
            cluster.wait_ready()
            worker.kill()  # nobody starts a worker: the recovery waits
            wait_until(lambda: cluster.status()["state"] == "ENGINE_STATE_RECOVERING", PATIENCE_S, "recovering")
            with StoppedThread(cluster.process.pid, "recovery of the"):
                self.await_hang(cluster, "recovery of the workers")

    def test_a_process_that_was_stopped_has_not_hung(self):
        with Cluster(tiny(MODEL), *FLAGS, workers=1) as cluster:
            os.kill(cluster.process.pid, signal.SIGSTOP)
            time.sleep(LIMIT_S + 2)
            os.kill(cluster.process.pid, signal.SIGCONT)
            self.assertEqual(cluster.request("GET", "/livez").status, 200)
            self.await_life(cluster)
            self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])
            self.assertNotIn("no sign of life", cluster.log())

    def test_off_nobody_is_asked(self):
        with Cluster(tiny(MODEL), "--liveness-timeout=0", workers=1) as cluster:
            self.assertNotIn("engine loop", threads(cluster.process.pid))
            self.assertEqual(cluster.request("GET", "/livez").status, 200)


def grpc_health(port, request=b""):
    """The reply to a health call without TLS and credentials, or the code of the error."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            return channel.unary_unary("/grpc.health.v1.Health/Check")(request, timeout=30)
        except grpc.RpcError as error:
            return error.code()


def await_health(port, wanted):
    wait_until(lambda: all(grpc_health(port, service) == wanted for service in SERVICES), PATIENCE_S, f"health {wanted}")


@unittest.skipUnless(grpc and can_stop(), "no gRPC for Python, or this machine does not let a process trace another one")
class WorkerHealth(unittest.TestCase):
    def test_a_runner_thread_that_hangs(self):
        cluster_port, probe_port, worker_port = free_ports(3)
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, \
                HandStartedWorkers(cluster_port) as workers:
            manager.bind(os.path.join(folder, "notify"))
            worker = workers.start(*WORKER_FLAGS, f"--health-listen=127.0.0.1:{probe_port}", f"--listen=127.0.0.1:{worker_port}", env={
                "NOTIFY_SOCKET": os.path.join(folder, "notify"), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))})
            await_health(probe_port, SERVING)  # before there is a coordinator
            # Nothing but health is served to strangers.
            with grpc.insecure_channel(f"127.0.0.1:{probe_port}") as channel, self.assertRaises(grpc.RpcError) as refused:
                channel.unary_unary("/somnus.v1.WorkerService/Shutdown")(b"", timeout=30)
            self.assertEqual(refused.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
            with Cluster(tiny(MODEL), "--dtype=float32", "--workers=remote:1", f"--cluster-port={cluster_port}", workers=0) as cluster:
                self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])
                await_health(probe_port, SERVING)
                with StoppedThread(worker.pid, "runner thread"):
                    await_health(probe_port, NOT_SERVING)
                    await_health(worker_port, NOT_SERVING)  # without a secret the cluster's port answers, too
                    wait_until(lambda: "E [worker] runner thread: no sign of life since " in workers.logs()[0], PATIENCE_S, "a line")
                    assert_silent_watchdog(self, manager)
                await_health(probe_port, SERVING)
                wait_until(lambda: "all threads of the worker give signs of life again" in workers.logs()[0], PATIENCE_S, "a line")
                manager.settimeout(PATIENCE_S)
                self.assertIn(b"WATCHDOG=1\n", iter(lambda: manager.recv(1024), b""))
                wait_until(lambda: cluster.health() == 200, PATIENCE_S, "/readyz 200")
                self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def test_a_port_for_probes_that_is_taken_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as taken, HandStartedWorkers(1) as workers:
            worker = workers.start(f"--health-listen=127.0.0.1:{taken.getsockname()[1]}")
            self.assertEqual(worker.wait(PATIENCE_S), 1)
            self.assertIn(f"--health-listen: cannot listen on 127.0.0.1:{taken.getsockname()[1]}: Address already in use", workers.logs()[0])


class Standstill(unittest.TestCase):
    def hold_step(self, cluster, worker):
        """The events of a stream whose step is under way on a stopped worker."""
        def begin():
            events = cluster.open_stream(CASE["prompt"], max_tokens=NUM_TOKENS).events()
            return [next(events)], events
        return begin_and_stop(worker, begin, lambda: cluster.metric("vllm:num_requests_running") == 1, lambda work: list(work[1]))

    def test_a_step_goes_on_after_it(self):
        with Cluster(tiny(MODEL), "--dtype=float32", "--no-async-scheduling", f"--hang-timeout={HANG_TIMEOUT_S}s", workers=2) as cluster:
            workers = cluster.worker_pids()
            alone = text_of(cluster.open_stream(CASE["prompt"], max_tokens=NUM_TOKENS).events())
            seen, events = self.hold_step(cluster, workers[0])
            os.kill(cluster.process.pid, signal.SIGSTOP)
            time.sleep(STANDSTILL_S)
            os.kill(cluster.process.pid, signal.SIGCONT)
            # The coordinator looks at the clock before the reply is there.
            wait_until(lambda: cluster.health() == 200, PATIENCE_S, "/health 200")
            os.kill(workers[0], signal.SIGCONT)
            self.assertEqual(text_of([*seen, *events]), alone)
            self.assertEqual(cluster.worker_pids(), workers, cluster.log())
            self.assertEqual(cluster.metric("somnus:recoveries_total"), 0, cluster.log())
            self.assertEqual(cluster.metric("somnus:group_epoch"), 1)
            self.assertNotIn("has sent no heartbeat", cluster.log())

    def test_of_a_whole_machine_blames_nobody(self):
        with Cluster(tiny(MODEL), "--dtype=float32", f"--hang-timeout={HANG_TIMEOUT_S}s", workers=2) as cluster:
            workers = cluster.worker_pids()
            alone = text_of(cluster.open_stream(CASE["prompt"], max_tokens=NUM_TOKENS).events())
            seen, events = self.hold_step(cluster, workers[0])
            everybody = [cluster.process.pid, *workers]
            for pid in everybody:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(STANDSTILL_S)
            for pid in everybody:
                os.kill(pid, signal.SIGCONT)
            self.assertEqual(text_of([*seen, *events]), alone)
            self.assertEqual(cluster.worker_pids(), workers, cluster.log())
            self.assertEqual(cluster.metric("somnus:recoveries_total"), 0, cluster.log())
            self.assertNotIn("does not reply", cluster.log())

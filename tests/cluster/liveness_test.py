"""A thread of the coordinator that hangs: /livez, /readyz and the watchdog say so while it does; a stopped process has not hung."""
import os
import re
import signal
import socket
import tempfile
import time
import unittest

from cluster.harness import Cluster, expected, free_ports, tiny, wait_until
from cluster.lifecycle_test import HandStartedWorkers
from cluster.stopped_thread import StoppedThread, can_stop, threads

try:
    import grpc
except ImportError:
    grpc = None

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
PATIENCE_S = 120
LIMIT_S = 10
FLAGS = ("--dtype=float32", f"--liveness-timeout={LIMIT_S}s")
WATCHDOG_S = 0.3
# The loops of a server with one model that sleeps when it is idle, by the names of their threads.
LOOPS = {"engine loop": "engine loop", "sleep of an idl": "sleep of an idle engine", "watch of regist": "watch of registered workers",
         "gRPC health": "gRPC health", "watch of the pr": "watch of the processes of 1 workers"}
NOT_SERVING, SERVING = b"\x08\x02", b"\x08\x01"  # grpc.health.v1.HealthCheckResponse


def text_of(events):
    return "".join(event["choices"][0]["text"] for event in events if event.get("choices"))


def message(response):
    return response.json["error"]["message"] if response.status == 503 else ""


@unittest.skipUnless(can_stop(), "this machine does not let a process trace another one")
class Liveness(unittest.TestCase):
    def await_hang(self, cluster, loop):
        """What /livez says once it fails."""
        wait_until(lambda: cluster.request("GET", "/livez").status == 503, PATIENCE_S, f"/livez 503 for {loop}")
        said = {message(cluster.request("GET", path, port=port)) for path in ("/livez", "/readyz") for port in (
            cluster.port, cluster.admin_port)}
        for line in said:
            self.assertRegex(line, rf"^{re.escape(loop)}: no sign of life since \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ, for \d+s \(the limit is "
                                   rf"{LIMIT_S}s\); if that lasts, only a restart of the process ends it$")
        self.assertGreater(cluster.metric("somnus:longest_loop_silence_seconds"), LIMIT_S)

    def await_life(self, cluster):
        wait_until(lambda: cluster.request("GET", "/livez").status == 200, PATIENCE_S, "/livez 200")
        wait_until(lambda: cluster.health() == 200, PATIENCE_S, "/readyz 200")

    def test_an_engine_that_hangs_under_a_stream(self):
        with Cluster(tiny(MODEL), *FLAGS, workers=2) as cluster:
            alone = text_of(cluster.open_stream(CASE["prompt"], max_tokens=450).events())
            events = cluster.open_stream(CASE["prompt"], max_tokens=450).events()
            first = next(events)
            with StoppedThread(cluster.process.pid, "engine loop"):
                self.await_hang(cluster, "engine loop")
                wait_until(lambda: "E [coordinator] engine loop: no sign of life since " in cluster.log(), PATIENCE_S, "a line of the log")
            self.await_life(cluster)
            self.assertEqual(text_of([first, *events]), alone)
            wait_until(lambda: "all threads that serve give signs of life again" in cluster.log(), PATIENCE_S, "a line of the log")
            # The step's deadline may have passed meanwhile: then the group is recovered, and the stream goes on all the same.
            self.assertLessEqual(cluster.metric("somnus:recoveries_total"), 1, cluster.log())

    def test_every_loop_is_asked_also_when_it_waits(self):
        with Cluster(tiny(MODEL), *FLAGS, "--idle-sleep=24h", workers=1) as cluster:
            # A thread names itself, which may come after the first request is served.
            wait_until(lambda: set(LOOPS) <= set(threads(cluster.process.pid)), PATIENCE_S, "all loops by name")
            for thread, loop in LOOPS.items():
                with self.subTest(loop), StoppedThread(cluster.process.pid, thread):
                    self.await_hang(cluster, loop)
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
            worker.kill()  # nobody starts another one: the recovery waits
            wait_until(lambda: cluster.status()["state"] == "ENGINE_STATE_RECOVERING", PATIENCE_S, "recovering")
            with StoppedThread(cluster.process.pid, "recovery of the"):
                self.await_hang(cluster, "recovery of the workers")

    def test_the_service_manager_hears_nothing_meanwhile(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(os.path.join(folder, "notify"))
            environment = {"NOTIFY_SOCKET": os.path.join(folder, "notify"), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
            with Cluster(tiny(MODEL), *FLAGS, workers=1, env=environment) as cluster:
                with StoppedThread(cluster.process.pid, "engine loop"):
                    self.await_hang(cluster, "engine loop")
                    manager.settimeout(10 * WATCHDOG_S)
                    # Messages from before the hang are in the socket, and one may be on its way.
                    with self.assertRaises(TimeoutError):
                        for _ in range(10_000):
                            manager.recv(1024)
                self.await_life(cluster)
                manager.settimeout(PATIENCE_S)
                self.assertEqual(manager.recv(1024), b"WATCHDOG=1\n")

    def test_a_process_that_was_stopped_has_not_hung(self):
        with Cluster(tiny(MODEL), *FLAGS, workers=1) as cluster:
            os.kill(cluster.process.pid, signal.SIGSTOP)
            time.sleep(LIMIT_S + 5)
            os.kill(cluster.process.pid, signal.SIGCONT)
            self.assertEqual(cluster.request("GET", "/livez").status, 200)
            self.await_life(cluster)
            self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])
            self.assertNotIn("no sign of life", cluster.log())

    def test_off_nobody_is_asked(self):
        with Cluster(tiny(MODEL), "--liveness-timeout=0", workers=1) as cluster:
            self.assertNotIn("engine loop", threads(cluster.process.pid))
            self.assertEqual(cluster.request("GET", "/livez").status, 200)


if __name__ == "__main__":
    unittest.main()

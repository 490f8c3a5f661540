"""The health of a worker's own process: gRPC health, the log and systemd's watchdog say so while one of its threads hangs."""
import os
import socket
import tempfile
import unittest

from cluster.harness import Cluster, expected, free_ports, tiny, wait_until
from cluster.lifecycle_test import HandStartedWorkers
from cluster.stopped_thread import StoppedThread, can_stop

try:
    import grpc
except ImportError:
    grpc = None

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
PATIENCE_S = 120
WATCHDOG_S = 0.3
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"  # grpc.health.v1.HealthCheckResponse
SERVICES = (b"", b"\x0a\x17somnus.v1.WorkerService")
# Short bounds: a step of this model takes milliseconds, and nothing here waits for a busy machine but the test.
FLAGS = ("--liveness-timeout=4s", "--step-timeout=1m")


def health(port, request=b""):
    """The reply to a health call without TLS and credentials, or the code of its error."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            return channel.unary_unary("/grpc.health.v1.Health/Check")(request, timeout=30)
        except grpc.RpcError as error:
            return error.code()


def await_health(port, wanted):
    wait_until(lambda: all(health(port, service) == wanted for service in SERVICES), PATIENCE_S, f"health {wanted}")


@unittest.skipUnless(grpc and can_stop(), "no gRPC for Python, or this machine does not let a process trace another one")
class WorkerHealth(unittest.TestCase):
    def test_a_runner_thread_that_hangs(self):
        cluster_port, probe_port, worker_port = free_ports(3)
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, \
                HandStartedWorkers(cluster_port) as workers:
            manager.bind(os.path.join(folder, "notify"))
            worker = workers.start(*FLAGS, f"--health-listen=127.0.0.1:{probe_port}", f"--listen=127.0.0.1:{worker_port}", env={
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
                    self.watchdog_is_silent(manager)
                await_health(probe_port, SERVING)
                wait_until(lambda: "all threads of the worker give signs of life again" in workers.logs()[0], PATIENCE_S, "a line")
                manager.settimeout(PATIENCE_S)
                self.assertIn(b"WATCHDOG=1\n", iter(lambda: manager.recv(1024), b""))
                wait_until(lambda: cluster.health() == 200, PATIENCE_S, "/readyz 200")
                self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def watchdog_is_silent(self, manager):
        manager.settimeout(10 * WATCHDOG_S)
        with self.assertRaises(TimeoutError):  # messages from before the hang are in the socket
            for _ in range(10_000):
                manager.recv(1024)

    def test_a_port_for_probes_that_is_taken_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as taken, HandStartedWorkers(1) as workers:
            worker = workers.start(f"--health-listen=127.0.0.1:{taken.getsockname()[1]}")
            self.assertEqual(worker.wait(PATIENCE_S), 1)
            self.assertIn(f"--health-listen: cannot listen on 127.0.0.1:{taken.getsockname()[1]}: Address already in use", workers.logs()[0])


if __name__ == "__main__":
    unittest.main()

"""Strangers hold every connection that there is for clients, or for workers: operators command, workers are replaced, and
afterwards every port serves again."""
import os
import signal
import socket
import unittest

from cluster.harness import Cluster, expected, free_ports, tiny, wait_until
from cluster.lifecycle_test import HandStartedWorkers

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
PATIENCE_S = 60
LIMIT = 256
# HTTP/2's preface and an empty SETTINGS frame; a server replies with a SETTINGS frame.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def connect(port):
    sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    sock.settimeout(PATIENCE_S)
    return sock


def descriptors(pid):
    return sorted(map(int, os.listdir(f"/proc/{pid}/fd")))


def speaks_grpc(port):
    with connect(port) as sock:
        try:
            sock.sendall(HELLO)
            return len(sock.recv(9)) > 0
        except OSError:
            return False


class Descriptors(unittest.TestCase):
    def test_a_short_lack_of_them(self):
        with Cluster(tiny(MODEL), "--dtype=float32", workers=2, prefix=("prlimit", f"--nofile={LIMIT}")) as cluster:
            answer = cluster.tokens(CASE["prompt"])
            self.assertIn(f"--max-connections: 2048 are more than this process may have (ulimit -n: {LIMIT})", cluster.log())
            strangers = [connect(port) for _ in range(LIMIT) for port in (cluster.grpc_port, cluster.port)]
            try:
                # On a gRPC port a stranger looks like a client that is slow to speak.
                wait_until(lambda: f"{cluster.grpc_port} for now" in cluster.log(), PATIENCE_S, "a shortage in the log")
                # Connections of clients never keep a descriptor that is kept back for operators and workers.
                bound = LIMIT - 2 * (LIMIT // 8)
                wait_until(lambda: max(descriptors(cluster.process.pid)) < bound, PATIENCE_S, lambda: descriptors(cluster.process.pid))
                self.assertEqual(cluster.request("GET", "/livez", port=cluster.admin_port).status, 200)
                self.assertTrue(speaks_grpc(cluster.control_port))
                os.kill(cluster.worker_pids()[0], signal.SIGKILL)
                wait_until(lambda: "the group is whole again" in cluster.log(), PATIENCE_S, cluster.log)
                self.assertTrue(speaks_grpc(cluster.control_port))
            finally:
                for sock in strangers:
                    sock.close()
            wait_until(lambda: speaks_grpc(cluster.grpc_port), PATIENCE_S, "gRPC serves clients again")
            self.assertEqual(cluster.tokens(CASE["prompt"]), answer)
            self.assertEqual(cluster.metric("somnus:recoveries_total"), 1)

    def test_at_the_ports_of_workers(self):
        """Over TCP strangers reach the port where workers register, and those where workers listen."""
        cluster_port, = free_ports(1)
        few = ("prlimit", f"--nofile={LIMIT}")
        with HandStartedWorkers(cluster_port) as workers, \
                Cluster(tiny(MODEL), "--dtype=float32", "--workers=remote:2", f"--cluster-port={cluster_port}", "--hang-timeout=5s",
                        workers=0, wait=False, prefix=few) as cluster:
            ports = free_ports(3)

            def start(port):
                return workers.start(f"--listen=127.0.0.1:{port}", prefix=few)
            first = start(ports[0])
            start(ports[1])
            cluster.wait_ready()
            answer = cluster.tokens(CASE["prompt"])
            strangers = [connect(port) for _ in range(LIMIT) for port in (cluster_port, ports[1])]
            try:
                # The bound on unproven connections comes before a lack of descriptors.
                for port, log in ((cluster_port, cluster.log), (ports[1], lambda: workers.logs()[1])):
                    wait_until(lambda: f"{port}: more connections than --max-handshakes" in log(), PATIENCE_S, log)
                first.kill()
                start(ports[2])  # may have to try again until strangers who say nothing are cut off
            finally:
                for sock in strangers:
                    sock.close()
            wait_until(lambda: "the group is whole again" in cluster.log(), PATIENCE_S, cluster.log)
            cluster.wait_ready()
            self.assertEqual(cluster.tokens(CASE["prompt"]), answer)
            for port in (cluster_port, *ports[1:]):
                self.assertTrue(speaks_grpc(port), port)


if __name__ == "__main__":
    unittest.main()

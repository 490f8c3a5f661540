"""Strangers hold every connection that there is for clients: operators command, workers are replaced, and afterwards every
port serves again."""
import os
import signal
import socket
import unittest

from cluster.harness import Cluster, expected, tiny, wait_until

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


if __name__ == "__main__":
    unittest.main()

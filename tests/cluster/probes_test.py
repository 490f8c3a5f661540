"""What Kubernetes' probes see through an engine's life: /livez says whether to restart it, /readyz whether to send it work."""
import os
import signal
import unittest

from cluster.harness import Cluster, alive, expected, free_ports, tiny, wait_until

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
PATIENCE_S = 30


def look(cluster, port=None):
    """(liveness, readiness) at one port."""
    return tuple(cluster.request("GET", path, port=port, timeout=PATIENCE_S).status for path in ("/livez", "/readyz"))


class Probes(unittest.TestCase):
    def probe(self, cluster):
        """(liveness, readiness) in a state that lasts, the same on both ports."""
        seen = look(cluster)
        self.assertEqual(look(cluster, cluster.admin_port), seen)
        return seen

    def test_while_it_waits_for_workers(self):
        port, = free_ports(1)
        with Cluster(tiny(MODEL), "--workers=remote:1", f"--cluster-port={port}", workers=0, wait=False) as cluster:
            wait_until(lambda: cluster.health() == 503, PATIENCE_S, "it listens")
            self.assertEqual(self.probe(cluster), (200, 503))
            shown = cluster.cli("status").stdout
            self.assertRegex(shown, r"^state     loading\nwhy       The model is loading: 0 of 1 workers have come\.[^\n]*\naddress   "
                             r".*\nversion   .*, up \d+.*s\n$")
            self.assertEqual(cluster.cli("status", "--ready", check=False).returncode, 1)
            self.assertEqual(cluster.stop(), 0)

    def test_asleep_and_awake(self):
        with Cluster(tiny(MODEL), workers=2) as cluster:
            self.assertEqual(self.probe(cluster), (200, 200))
            cluster.cli("sleep")
            self.assertEqual(self.probe(cluster), (200, 503))
            cluster.cli("wake-up")
            self.assertEqual(self.probe(cluster), (200, 200))

    def test_while_it_drains(self):
        with Cluster(tiny(MODEL), "--dtype=float32", "--no-async-scheduling", "--shutdown-timeout=10m", "--hang-timeout=10m",
                     workers=2) as cluster:
            stream = cluster.open_stream(CASE["prompt"], max_tokens=450)
            events = stream.events()
            next(events)
            # A worker that stands still holds the stream open.
            victim = cluster.worker_pids()[0]
            os.kill(victim, signal.SIGSTOP)
            try:
                cluster.process.send_signal(signal.SIGTERM)
                wait_until(lambda: cluster.health() == 503, PATIENCE_S, "/health 503")
                self.assertEqual(self.probe(cluster), (200, 503))
                refused = cluster.request("POST", "/v1/completions", {"model": cluster.name, "prompt": [37]})
                self.assertEqual(refused.status, 503)
            finally:
                os.kill(victim, signal.SIGCONT)
            reasons = [event["choices"][0]["finish_reason"] for event in events if event.get("choices")]
            self.assertEqual([reason for reason in reasons if reason], ["length"])
            self.assertEqual(cluster.process.wait(PATIENCE_S), 0)

    def test_while_it_recovers(self):
        with Cluster(tiny(MODEL), workers=2) as cluster:
            self.assertEqual(self.probe(cluster), (200, 200))
            os.kill(cluster.worker_pids()[0], signal.SIGKILL)
            # However short it is, nobody sees it dead.
            seen = set()
            wait_until(lambda: seen.add(look(cluster)) or cluster.metric("somnus:recoveries_total"), PATIENCE_S, "a recovery")
            wait_until(lambda: look(cluster) == (200, 200), PATIENCE_S, "it is ready again")
            self.assertLessEqual(seen, {(200, 200), (200, 503)})

    def test_after_a_failure_for_good(self):
        with Cluster(tiny(MODEL), "--stay-after-failure", "--max-recoveries=0", workers=2) as cluster:
            os.kill(cluster.worker_pids()[0], signal.SIGKILL)
            wait_until(lambda: look(cluster) == (503, 503), PATIENCE_S, "both 503")
            self.assertTrue(alive(cluster.process.pid))


if __name__ == "__main__":
    unittest.main()

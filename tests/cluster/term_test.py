"""TERM for a coordinator and its workers at once, as Slurm and Kubernetes send it, and what a service manager hears."""
import os
import signal
import socket
import subprocess
import tempfile
import unittest

from cluster.harness import WORKER, Cluster, expected, free_ports, tiny, wait_until

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
LEAVE_S = 30


class Group:
    """A coordinator with --workers=auto and two workers that learn everything from the environment."""

    def __init__(self, *worker_flags, environment=None):
        port, = free_ports(1)
        self.environment = {"SOMNUS_COORDINATOR": f"127.0.0.1:{port}", "SOMNUS_WORLD_SIZE": "2"}
        self.worker_flags = worker_flags
        self.cluster = Cluster(tiny(MODEL), "--workers=auto", "--dtype=float32", "--no-async-scheduling", "--shutdown-timeout=60s",
                               workers=0, wait=False, env={**self.environment, **(environment or {})})
        self.logs, self.workers = [], []

    def __enter__(self):
        for rank in (0, 1):
            self.logs.append(tempfile.NamedTemporaryFile(prefix="somnus_worker_", suffix=".log"))
            self.workers.append(subprocess.Popen(
                [WORKER, *self.worker_flags], stdin=subprocess.DEVNULL, stderr=self.logs[-1], start_new_session=True,
                env={**os.environ, **self.environment, "SOMNUS_RANK": str(rank)}))
        return self

    def __exit__(self, *_):
        self.cluster.__exit__()
        for worker in self.workers:
            worker.kill()
            worker.wait()
        for log in self.logs:
            log.close()

    def log(self, rank):
        with open(self.logs[rank].name, encoding="utf-8", errors="replace") as file:
            return file.read()

    def terminate_all(self):
        for process in [*self.workers, self.cluster.process]:
            process.send_signal(signal.SIGTERM)


class Term(unittest.TestCase):
    def test_workers_stay_until_the_coordinator_has_drained(self):
        with Group("--term-grace=10m") as group:
            group.cluster.wait_ready()
            self.assertIn("from SOMNUS_COORDINATOR, world size 2 from SOMNUS_WORLD_SIZE", group.cluster.log())
            stream = group.cluster.open_stream(CASE["prompt"], max_tokens=450)
            events = stream.events()
            next(events)
            group.terminate_all()
            reasons = [event["choices"][0]["finish_reason"] for event in events if event.get("choices")]
            self.assertEqual([reason for reason in reasons if reason], ["length"])
            self.assertEqual(group.cluster.process.wait(LEAVE_S), 0)
            for rank, worker in enumerate(group.workers):
                self.assertEqual(worker.wait(LEAVE_S), 0)
                self.assertIn(f"coordinator {group.environment['SOMNUS_COORDINATOR']} from SOMNUS_COORDINATOR, rank {rank} from "
                              "SOMNUS_RANK", group.log(rank))
                self.assertIn("leaving: the coordinator said so", group.log(rank))

    def test_workers_leave_after_their_grace_when_nobody_sends_them_away(self):
        with Group("--term-grace=500ms") as group:
            group.cluster.wait_ready()
            os.kill(group.cluster.process.pid, signal.SIGSTOP)
            for worker in group.workers:
                worker.send_signal(signal.SIGTERM)
            for rank, worker in enumerate(group.workers):
                self.assertEqual(worker.wait(LEAVE_S), 0)
                self.assertIn("the coordinator did not say otherwise", group.log(rank))

    def test_the_service_manager_hears_of_all_of_it(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(os.path.join(folder, "notify"))
            manager.settimeout(LEAVE_S)
            environment = {"NOTIFY_SOCKET": os.path.join(folder, "notify"), "WATCHDOG_USEC": "300000"}
            with Cluster(tiny(MODEL), workers=1, env=environment) as cluster:
                # A worker inherits the environment, and would speak for the coordinator.
                self.assertEqual(manager.recv(1024).decode(), f"READY=1\nSTATUS=serving {tiny(MODEL)}\n")
                for _ in range(3):
                    self.assertEqual(manager.recv(1024), b"WATCHDOG=1\n")
                self.assertEqual(cluster.stop(), 0)
                heard = set()
                wait_until(lambda: heard.add(manager.recv(1024)) or b"STOPPING=1\n" in heard, LEAVE_S, lambda: f"STOPPING: {heard}")
                self.assertLessEqual(heard, {b"WATCHDOG=1\n", b"STOPPING=1\n"})


if __name__ == "__main__":
    unittest.main()

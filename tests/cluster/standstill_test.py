"""A coordinator that stood still (SIGSTOP, a virtual machine's pause) blames no worker: all workers go on where they were."""
import os
import signal
import time
import unittest

from cluster.harness import Cluster, begin_and_stop, expected, tiny, wait_until

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")
PATIENCE_S = 60
# A step that takes longer than this is late; the coordinator stands still for longer.
HANG_TIMEOUT_S = 5
STANDSTILL_S = 8
NUM_TOKENS = 450


def text_of(events):
    return "".join(event["choices"][0]["text"] for event in events if event.get("choices"))


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
            for _ in range(2):
                seen, events = self.hold_step(cluster, workers[0])
                os.kill(cluster.process.pid, signal.SIGSTOP)
                time.sleep(STANDSTILL_S)
                os.kill(cluster.process.pid, signal.SIGCONT)
                # The coordinator looks at its clock before the reply is there.
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


if __name__ == "__main__":
    unittest.main()

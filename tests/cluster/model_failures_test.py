"""A model that cannot be woken, a model without workers for good, and a worker that is lost while the group sleeps."""
import json
import os
import re
import shutil
import signal
import tempfile
import unittest

from cluster.harness import Cluster, expected, free_ports, tiny, wait_until
from cluster.harness.fault_file import WORKER, FaultFile
from cluster.harness.tokenized import MANY_TOKENS, cut_tokenizer
from cluster.lifecycle_test import HandStartedWorkers

MODELS = {"test-model": "llama-uneven", "qwen": "qwen3"}
CASES = {name: next(case for case in expected(model) if not case["ambiguous"]) for name, model in MODELS.items()}
KV_BYTES = 32 << 20  # of each worker; less than the sequences could use, so that this bound sizes the caches
FLAGS = ("--dtype=float32", f"--kv-cache-memory-bytes={KV_BYTES}", "--max-model-len=512")
SEVERAL = (*FLAGS, "--workers=local:1", "--no-elastic-kv-cache")
ONE_OF_TWO = f"--device-memory-budget={KV_BYTES * 3 // 2}"
END_S = 60


class ModelFailuresTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.paths = {name: shutil.copytree(tiny(model), os.path.join(folder.name, name)) for name, model in MODELS.items()}

    def serve(self, *flags, workers=2, model=None):
        self.cluster = Cluster(model or self.paths["test-model"], *flags, workers=workers)
        self.addCleanup(self.cluster.__exit__)

    def serve_two(self, *flags):
        self.serve(f"--model=qwen={self.paths['qwen']}", *SEVERAL, ONE_OF_TWO, *flags, workers=0)

    def admin(self, target, method="POST"):
        return self.cluster.request(method, target, port=self.cluster.admin_port)

    def ask(self, name="test-model", headers=None):
        case = CASES[name]
        body = {"model": name, "prompt": case["prompt"], "temperature": 0, "max_tokens": len(case["tokens"]),
                "ignore_eos": case["ignore_eos"], "return_token_ids": True}
        return self.cluster.request("POST", "/v1/completions", body, headers)

    def assert_exact(self, name="test-model"):
        response = self.ask(name)
        self.assertEqual(response.status, 200, response.text)
        self.assertEqual(response.json["choices"][0]["token_ids"], CASES[name]["tokens"])

    def states(self):
        return {card["id"]: card["state"] for card in self.cluster.request("GET", "/v1/models").json["data"]}

    def touch(self, name="test-model"):
        file = os.path.join(self.paths[name], "model.safetensors")
        info = os.stat(file)
        os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns + 10 ** 9))

    def assert_refused_and_told(self, name="test-model", told="request cmpl-sleepless waits, but the engine could not be woken"):
        """A request gets an error instead of a wait for a wake-up that does not come, and answers and log name the cause."""
        response = self.ask(name, {"X-Request-Id": "sleepless"})
        self.assertEqual(response.status, 503, response.text)
        self.assertIn("could not be woken", response.text)
        self.assertIn("model.safetensors", response.text)
        ready = self.cluster.request("GET", f"/readyz?model={name}")
        self.assertEqual(ready.status, 503)
        self.assertIn("could not be woken", ready.text)
        self.assertIn(f"{told}, and requests are refused", self.cluster.log())
        self.assertEqual(self.ask(name).status, 503, "until the next try")
        self.assertEqual(self.cluster.request("GET", "/livez").status, 200)

    def test_a_model_without_a_tokenizer_is_refused_before_its_load(self):
        os.remove(os.path.join(self.paths["qwen"], "tokenizer.json"))
        with Cluster(self.paths["qwen"], workers=1, wait=False) as cluster:
            self.assertEqual(cluster.process.wait(END_S), 1)
            self.assertIn("no tokenizer", cluster.log())
            self.assertNotIn("loading ", cluster.log())

    def test_nobody_waits_for_workers_of_a_model_whose_tokenizer_is_damaged(self):
        cut_tokenizer(self.paths["qwen"])
        # The workers would be started elsewhere, and never come.
        with Cluster(self.paths["qwen"], "--workers=remote:1", "--cluster-port=0", workers=0, wait=False) as cluster:
            self.assertEqual(cluster.process.wait(END_S), 1)
            self.assertIn("tokenizer.json", cluster.log())

    def test_workers_of_other_hosts_are_not_touched_by_a_damaged_tokenizer(self):
        """Workers may hold weights of an earlier coordinator, however long the read of the tokenizer takes."""
        cut_tokenizer(self.paths["qwen"], MANY_TOKENS)
        cluster_port, = free_ports(1)
        with HandStartedWorkers(cluster_port) as workers:
            worker = workers.start()
            with Cluster(self.paths["qwen"], "--workers=remote:1", f"--cluster-port={cluster_port}", "--log-level=debug", workers=0,
                         wait=False) as cluster:
                self.assertEqual(cluster.process.wait(END_S), 1)
                self.assertIn("tokenizer.json", cluster.log())
                self.assertNotIn("has registered", cluster.log())
            self.assertIsNone(worker.poll(), workers.logs())

    def test_a_damaged_tokenizer_ends_a_load_that_is_running(self):
        """The loads of both replicas would not end, and the error is the model's."""
        faults = FaultFile()
        self.addCleanup(faults.close)
        begun = 0
        # A slow machine may see the end of the file before the workers have come.
        for num_tokens in (MANY_TOKENS, 2 * MANY_TOKENS, 4 * MANY_TOKENS):
            cut_tokenizer(self.paths["qwen"], num_tokens)
            line = faults.set_moment("map", "wait@0", times=2)
            with Cluster(self.paths["qwen"], *FLAGS, f"--worker-binary={WORKER}", "--data-parallel-size=2", workers=1,
                         wait=False, env=faults.environment) as cluster:
                self.assertEqual(cluster.process.wait(END_S), 1)
                self.assertRegex(cluster.log(), rf"(?m)^coordinator: {re.escape(self.paths['qwen'])}: tokenizer\.json")
            begun = faults.strikes(line)
            if begun == 2:
                break
        self.assertEqual(begun, 2, "the loads have begun before the tokenizer's end is seen")

    def test_a_wake_up_that_is_refused_ends_those_that_wait(self):
        self.serve(*FLAGS, "--backup=file", "--idle-sleep-s=0.2", "--max-wake-up-tries=2")
        wait_until(lambda: self.cluster.status()["state"] == "ENGINE_STATE_ASLEEP", END_S, "it sleeps by itself")
        self.touch()
        self.assert_refused_and_told()
        self.assertIn("could not be woken", self.cluster.status()["error"])
        self.assertEqual(self.admin("/sleep?level=2").status, 200, "gives the backup up, whose contents are the same")
        self.assertEqual(self.admin("/wake_up").status, 200)
        self.assert_exact()
        self.assertEqual(self.cluster.status().get("error", ""), "")
        self.assertEqual(self.cluster.stop(), 0)

    def test_a_model_that_cannot_be_woken_does_not_put_the_others_to_sleep_again_and_again(self):
        self.serve_two("--backup=file", "--max-wake-up-tries=2")
        self.assert_exact("test-model")
        self.assert_exact("qwen")
        self.touch("test-model")
        wake_ups = self.cluster.metric("somnus:residency_decisions_total", model_name="test-model", action="wake")
        self.assert_refused_and_told("test-model", "test-model: could not be woken")
        for _ in range(3):
            self.assert_exact("qwen")
            self.assertEqual(self.ask("test-model").status, 503)
        self.assertEqual(self.cluster.request("GET", "/readyz?model=qwen").status, 200)
        tried = self.cluster.metric("somnus:residency_decisions_total", model_name="test-model", action="wake")
        self.assertEqual(tried - wake_ups, 2)
        self.assertEqual(self.admin("/sleep?level=2&model=test-model").status, 200)
        self.assertEqual(self.admin("/wake_up?model=test-model").status, 200)
        for name in ("test-model", "qwen", "test-model"):
            self.assert_exact(name)
        self.assertEqual(self.cluster.stop(), 0)

    def test_a_model_that_has_failed_makes_room_and_comes_back(self):
        for revives in (True, False):  # an operator revives the model, or the model comes back by itself
            self.serve_two("--max-recoveries=0", f"--replica-retry-pause={'10m' if revives else '1s'}")
            self.assert_exact("test-model")
            self.assert_exact("qwen")
            status = json.loads(self.cluster.cli("status", "--json", "--model=qwen").stdout)
            os.kill(status["ranks"][0]["pid"], signal.SIGKILL)
            wait_until(lambda: self.states()["qwen"] != "awake", END_S, "the loss is final")
            self.assert_exact("test-model")
            self.assertEqual(self.cluster.request("GET", "/livez").status, 200, "the others serve")
            if revives:
                self.assertEqual(self.states()["qwen"], "failed")
                self.assertEqual(self.ask("qwen").status, 503)
                self.assertFalse(self.cluster.metric("somnus:resident_bytes", model_name="qwen"), "its workers have ended")
                self.assertEqual(self.cluster.request("GET", "/readyz?model=qwen").status, 503)
                self.assertEqual(self.cluster.request("GET", "/readyz?model=test-model").status, 200)
                self.assertEqual(self.admin("/revive?model=test-model").status, 409, "it has not failed")
                self.assertIn("asleep", self.cluster.cli("revive", "--model=qwen").stdout)
            wait_until(lambda: self.states()["qwen"] == "asleep", END_S, lambda: str(self.states()))
            self.assertFalse(self.cluster.metric("somnus:resident_bytes", model_name="qwen"), "nothing of the budget")
            for name in ("qwen", "test-model", "qwen"):
                self.assert_exact(name)
            self.assertEqual(self.cluster.stop(), 0)

    @staticmethod
    def resident_kib(pid, field="VmRSS"):
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            return int(next(line for line in file if line.startswith(field + ":")).split()[1])

    def test_a_newcomer_of_a_group_that_sleeps_takes_nothing_of_the_memory(self):
        for level in (1, 2):
            self.serve(*FLAGS)
            self.assert_exact()
            before = self.cluster.worker_pids()
            awake = min(self.resident_kib(pid) for pid in before)
            self.assertEqual(self.admin(f"/sleep?level={level}").status, 200)
            os.kill(before[0], signal.SIGKILL)

            def recovered():
                status = self.cluster.status()
                return status["state"] == "ENGINE_STATE_ASLEEP" and int(status["num_recoveries"]) == 1
            wait_until(recovered, END_S, "the group is whole, and sleeps")
            newcomer = next(pid for pid in self.cluster.worker_pids() if pid not in before)
            self.assertLess(self.resident_kib(newcomer, "VmHWM"), awake - KV_BYTES // 2 // 1024, "also not for a moment")
            status = self.cluster.status()
            self.assertEqual(status["sleep_level"], level)
            self.assertEqual({int(size) for rank in status["ranks"] for size in rank["bytes_by_tag"].values()}, {0})
            self.assertEqual(self.cluster.request("GET", "/is_sleeping", port=self.cluster.admin_port).json, {"is_sleeping": True})
            self.assertEqual(self.admin("/wake_up").status, 200)
            self.assert_exact()
            self.assertEqual(self.cluster.stop(), 0)

"""Several models with --run-dir: the workers of each outlive a coordinator that is killed, and the next coordinator adopts the
workers in their present state."""
import os
import shutil
import signal
import unittest

from cluster.harness import alive, expected, tiny, wait_until
from cluster.harness.run_directory import SOON_S, RunDirectory, kill
from cluster.harness.tokenized import cut_tokenizer

MODELS = {"test-model": "llama-uneven", "qwen.3": "qwen3"}
FIRST, OTHER = MODELS
CASES = {name: next(case for case in expected(model) if not case["ambiguous"]) for name, model in MODELS.items()}
KV_BYTES = 32 << 20
FLAGS = (f"--model={OTHER}={tiny(MODELS[OTHER])}", "--dtype=float32", f"--kv-cache-memory-bytes={KV_BYTES}",
         "--max-model-len=512")


class SeveralModelsAdoptionTest(unittest.TestCase):
    def setUp(self):
        self.run_dir = RunDirectory(tiny(MODELS[FIRST]), *FLAGS, workers=1)
        self.addCleanup(self.run_dir.close)

    def start(self, *flags):
        cluster = self.run_dir.start(*flags, wait=False)

        def serves():
            self.assertIsNone(cluster.process.poll(), cluster.log())
            return "serving " in cluster.log()
        wait_until(serves, 120, cluster.log)
        self.run_dir.workers.update(self.pids(cluster).values())
        return cluster

    def pids(self, cluster):
        return {name: cluster.status(name)["ranks"][0]["pid"] for name in MODELS}

    def states(self, cluster):
        cards = {card["id"]: card["state"] for card in cluster.request("GET", "/v1/models").json["data"]}
        return {name: (cards[name], cluster.status(name).get("sleep_level", 0), self.resident(cluster, name)) for name in MODELS}

    def resident(self, cluster, name):
        tags = cluster.status(name)["ranks"][0]["bytes_by_tag"]
        return {tag for tag, count in tags.items() if int(count)}

    def assert_serve(self, cluster):
        for name, case in CASES.items():
            self.assertEqual(cluster.tokens(case["prompt"], model=name, ignore_eos=case["ignore_eos"]), case["tokens"], name)

    def assert_adopted(self, cluster, known):
        self.assertEqual(self.pids(cluster), known)
        self.assertNotIn("weights loaded", cluster.log())

    def assert_nothing_left(self):
        wait_until(lambda: not [pid for pid in self.run_dir.workers if alive(pid)], SOON_S, "the workers end")
        self.assertEqual(os.listdir(self.run_dir.path), ["lock"])

    def test_each_model_is_adopted_in_its_state(self):
        cluster = self.start()
        self.assert_serve(cluster)
        known = self.pids(cluster)
        self.assertEqual(sorted(name for name in os.listdir(self.run_dir.path) if name != "lock"),
                         ["model-qwen_2e3", "model-test-model"])
        for flags in (["--level=2"], ["--level=1", "--tags=weights"]):
            with self.subTest(flags=flags):
                cluster.cli("sleep", f"--model={OTHER}", *flags)
                before = self.states(cluster)
                self.assertEqual([state for state, _, _ in before.values()], ["awake", "asleep"])
                kill(cluster)
                cluster = self.start()
                self.assert_adopted(cluster, known)
                self.assertEqual(self.states(cluster), before)
                self.assert_serve(cluster)  # a request wakes the sleeping model: no operator has asked for the sleep
        self.assertEqual(cluster.stop(), 0)
        self.assert_nothing_left()

    def test_models_that_take_turns_stay_where_they_were(self):
        cluster = self.start()
        self.assert_serve(cluster)
        budget = int(1.5 * max(cluster.metric("somnus:resident_bytes", model_name=name) for name in MODELS))
        self.assertEqual(cluster.stop(), 0)
        flags = (f"--device-memory-budget={budget}", "--no-elastic-kv-cache")
        cluster = self.start(*flags)
        known = self.pids(cluster)
        for awake in (OTHER, FIRST):
            case = CASES[awake]
            self.assertEqual(cluster.tokens(case["prompt"], model=awake, ignore_eos=case["ignore_eos"]), case["tokens"])
            before = self.states(cluster)
            self.assertEqual(before[awake][0], "awake")
            kill(cluster)
            cluster = self.start(*flags)
            self.assert_adopted(cluster, known)
            self.assertEqual(self.states(cluster), before)
        self.assert_serve(cluster)
        self.assertEqual(cluster.stop(), 0)
        self.assert_nothing_left()

    def test_a_start_that_the_tokenizer_of_another_model_ends_leaves_the_workers(self):
        cluster = self.start()
        known = self.pids(cluster)
        kill(cluster)
        broken = shutil.copytree(tiny(MODELS[OTHER]), os.path.join(self.run_dir.parent, "broken"))
        cut_tokenizer(broken)
        cluster = self.run_dir.start(f"--model=broken={broken}", wait=False)
        self.assertEqual(cluster.process.wait(SOON_S), 1)
        self.assertIn("coordinator: broken: ", cluster.log())
        self.assertEqual([pid for pid in known.values() if not alive(pid)], [])
        cluster = self.start()
        self.assert_adopted(cluster, known)
        self.assertEqual(cluster.stop(), 0)
        self.assert_nothing_left()

    def test_a_worker_that_was_lost_meanwhile_is_replaced(self):
        cluster = self.start()
        for lost in MODELS:
            known = self.pids(cluster)
            kill(cluster)
            os.kill(known[lost], signal.SIGKILL)
            cluster = self.start()
            now = self.pids(cluster)
            self.assertEqual([name for name in MODELS if now[name] != known[name]], [lost])
            self.assert_serve(cluster)

    def test_workers_of_one_model_end_and_somnus_stop_ends_those_of_two(self):
        alone = RunDirectory(tiny(MODELS[FIRST]), "--dtype=float32", workers=1)
        self.addCleanup(alone.close)
        alone.path = self.run_dir.path
        kill(alone.start())
        cluster = self.start()
        self.assertEqual([pid for pid in alone.workers if alive(pid)], [])
        known = self.pids(cluster)
        kill(cluster)
        done = cluster.cli("stop", f"--run-dir={self.run_dir.path}")
        self.assertRegex(done.stdout, r"^ended 2 workers that were left \(pid .*\)\n$")
        self.assertEqual([pid for pid in known.values() if alive(pid)], [])
        self.assert_nothing_left()

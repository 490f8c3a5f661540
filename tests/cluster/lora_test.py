"""Adapters of a served model: chosen by name, loaded and unloaded at run time, and there again after kills and sleeps."""
import json
import os
import shutil
import signal
import tempfile
import threading
import unittest

from cluster.harness import Cluster, grpc, served_weights, tiny, wait_until
from cluster.harness.lora_files import write_adapter, write_merged

MODEL = "llama-uneven"
PROMPT = [5, 17, 42, 9, 3, 60]
FLAGS = ("--kv-cache-memory-bytes=16MiB", "--enable-lora", "--max-loras=2", "--max-cpu-loras=3")


def setUpModule():
    global root, poet, other, want
    root = tempfile.mkdtemp(prefix="somnus_lora_")
    unittest.addModuleCleanup(shutil.rmtree, root)
    poet, other, merged = (os.path.join(root, name) for name in ("poet", "other", "merged"))
    write_merged(tiny(MODEL), merged, write_adapter(tiny(MODEL), poet))
    write_adapter(tiny(MODEL), other, rank=3, seed=2, modules=("q_proj", "down_proj"))
    with Cluster(merged, "--kv-cache-memory-bytes=16MiB", workers=1) as cluster:
        want = answer_of(cluster, cluster.name)


def answer_of(cluster, model):
    choice = cluster.complete(PROMPT, model=model, max_tokens=10, logprobs=0, ignore_eos=True)["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


class Lora(unittest.TestCase):
    def start(self, *flags, workers=2):
        self.cluster = Cluster(tiny(MODEL), *FLAGS, *flags, workers=workers)
        self.addCleanup(self.cluster.__exit__)

    def post(self, path, body):
        return self.cluster.request("POST", path, body, port=self.cluster.admin_port)

    def load(self, name, path, **fields):
        return self.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **fields})

    def unload(self, name):
        return self.post("/v1/unload_lora_adapter", {"lora_name": name})

    def answer(self, model=None):
        return answer_of(self.cluster, model or self.cluster.name)

    def assert_merged(self, answer):
        """Tokens and log-probabilities are those of the merged weights."""
        self.assertEqual(answer[0], want[0])
        for got, expected in zip(answer[1], want[1]):
            self.assertAlmostEqual(got, expected, delta=1e-4)

    def test_names_and_calls(self):
        self.start(f"--lora-modules=poet={poet}")
        cards = self.cluster.request("GET", "/v1/models").json["data"]
        self.assertEqual([(card["id"], card["root"], card["parent"]) for card in cards],
                         [(self.cluster.name, self.cluster.name, None), ("poet", poet, self.cluster.name)])
        self.assertEqual(self.cluster.request("GET", "/v1/models/poet").json["parent"], self.cluster.name)
        base = self.answer()
        self.assert_merged(self.answer("poet"))
        self.assertNotEqual(base, self.answer("poet"))
        self.assertEqual(self.answer(), base, "neither finds the other one's blocks")
        chat = self.cluster.request("POST", "/v1/completions", {"model": "nobody", "prompt": "a"})
        self.assertEqual(chat.status, 404, chat.text)

        by_client = self.cluster.request("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": other})
        self.assertEqual(by_client.status, 404, "clients load nothing")
        for body, status, text in (({"lora_name": "poet", "lora_path": poet}, 400, "is loaded"),
                                   ({"lora_name": self.cluster.name, "lora_path": poet}, 400, "is a served model"),
                                   ({"lora_name": "x"}, 400, "lora_path"), ({"lora_path": poet}, 400, "lora_name"),
                                   ({"lora_name": "x", "lora_path": "/nowhere"}, 404, "adapter_config.json")):
            reply = self.post("/v1/load_lora_adapter", body)
            self.assertEqual(reply.status, status, reply.text)
            self.assertIn(text, reply.text)
        self.assertEqual(self.load("other", other).status, 200)
        self.assertEqual(self.load("third", poet).status, 200)
        self.assertEqual(self.load("fourth", poet).status, 200, "the workers forget another one")
        self.assertEqual([self.cluster.metric("somnus:adapters", state=state) for state in ("held", "forgotten")], [3, 1])
        alone = {name: self.answer(name) for name in ("poet", "other", self.cluster.name)}
        self.assertEqual(alone["poet"], self.answer("third"))
        together = {}
        threads = [threading.Thread(target=lambda name=name: together.update({name: self.answer(name)})) for name in alone]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(together, alone, "a batch gives the bits of each alone")
        self.assertEqual(self.load("third", other, load_inplace=True).status, 200)
        self.assertEqual(self.answer("third"), alone["other"])
        self.assertEqual(self.unload("third").status, 200)
        self.assertEqual(self.unload("third").status, 404)
        self.assertEqual(self.cluster.request("POST", "/v1/completions", {"model": "third", "prompt": "a"}).status, 404)

    def test_calls_of_grpc(self):
        pb = served_weights.generate_stubs()
        self.start()
        with grpc.insecure_channel(f"127.0.0.1:{self.cluster.control_port}") as channel:
            control = served_weights.rpc.ControlServiceStub(channel)

            def load(name, path, **fields):
                control.LoadLoraAdapter(pb.LoadLoraAdapterRequest(lora_name=name, lora_path=path, **fields), timeout=60)

            def unload(name):
                control.UnloadLoraAdapter(pb.UnloadLoraAdapterRequest(lora_name=name), timeout=60)

            def refused(code, text, call, *args, **fields):
                with self.assertRaises(grpc.RpcError) as caught:
                    call(*args, **fields)
                self.assertEqual(caught.exception.code(), code, caught.exception.details())
                self.assertIn(text, caught.exception.details())
            load("poet", poet)
            answer = self.answer("poet")
            self.assert_merged(answer)
            refused(grpc.StatusCode.ALREADY_EXISTS, "is loaded", load, "poet", other)
            refused(grpc.StatusCode.NOT_FOUND, "adapter_config.json", load, "x", "/nowhere")
            refused(grpc.StatusCode.NOT_FOUND, "nowhere", load, "x", poet, model="nowhere")
            load("poet", other, load_inplace=True, model=self.cluster.name)
            self.assertNotEqual(self.answer("poet"), answer)
            load("poet", poet, load_inplace=True)
            self.assertEqual(self.answer("poet"), answer)
            unload("poet")
            refused(grpc.StatusCode.NOT_FOUND, "poet", unload, "poet")
        self.assertEqual(self.ask("poet").status, 404)

    def test_adapters_that_were_loaded_at_run_time(self):
        """Adapters are there after a kill, a sleep and a reload, and may be loaded while the model sleeps. crossings_test.py has adapters of
        flags."""
        self.start(f"--lora-modules=poet={poet}")
        self.assertEqual(self.host_bytes()[1], sum(self.host_bytes()[0]))
        before = self.host_bytes()[1]
        self.assertGreater(before, 0)
        self.assertEqual(self.load("other", other).status, 200)
        self.assertGreater(self.host_bytes()[1], before)
        names = ("poet", "other", self.cluster.name)
        answers = [self.answer(name) for name in names]
        os.kill(self.cluster.worker_pids()[1], signal.SIGKILL)
        self.assertEqual([self.answer(name) for name in names], answers, "the new worker has the adapters")
        for calls in (["/sleep?level=1", "/wake_up"], ["/reload_weights"]):
            self.assertEqual([self.post(path, {}).status for path in calls], [200] * len(calls))
            self.assertEqual([self.answer(name) for name in names], answers, calls)
        self.assertEqual(self.post("/sleep?level=2", {}).status, 200)
        self.assertEqual(self.load("late", other).status, 200, "a load while the model sleeps")
        self.assertEqual(self.post("/wake_up", {}).status, 200)
        self.assertEqual([self.answer(name) for name in names], answers)
        self.assertEqual(self.answer("late"), answers[1])
        self.assertEqual(self.unload("late").status, 200)
        self.assertEqual(self.unload("other").status, 200)
        self.assertEqual(self.host_bytes()[1], before)

    def host_bytes(self):
        """The host bytes of adapters, as each rank says and as the engine does."""
        ranks = [int(rank["host_bytes_by_tag"]["workspace"]) for rank in self.cluster.status()["ranks"]]
        return ranks, self.cluster.metric("somnus:host_bytes", tag="workspace")

    def test_more_adapters_than_places(self):
        """Requests with three adapters take turns in one place of the device, and each has the same answer as alone."""
        modules = [f"--lora-modules={name}={path}" for name, path in (("poet", poet), ("other", other), ("third", poet))]
        self.start(*modules, "--max-loras=1")
        names = ("poet", "other", "third", self.cluster.name)
        alone = {name: self.answer(name) for name in names}
        self.assert_merged(alone["poet"])
        self.assertEqual(alone["third"], alone["poet"])
        self.assertEqual(len({str(alone[name]) for name in names}), 3)
        answers = []
        threads = [threading.Thread(target=lambda name=name: answers.append((name, self.answer(name)))) for name in 2 * names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(answers), len(threads))
        for name, answer in answers:
            self.assertEqual(answer, alone[name], name)
        os.kill(self.cluster.worker_pids()[0], signal.SIGKILL)
        self.assertEqual({name: self.answer(name) for name in names}, alone)

    def ask(self, model):
        return self.cluster.request("POST", "/v1/completions", {"model": model, "prompt": PROMPT, "max_tokens": 2})

    def test_adapters_that_the_workers_have_forgotten(self):
        """One copy in host memory: requests by turns, after a kill and a sleep, too. Files that have changed by then are an
        error of their requests alone."""
        moving, resting = os.path.join(root, "moving"), os.path.join(root, "resting")
        shutil.copytree(poet, moving)
        shutil.copytree(other, resting)
        self.start(f"--lora-modules=poet={moving}", f"--lora-modules=other={resting}", "--max-loras=1", "--max-cpu-loras=1")
        names = ("poet", "other", self.cluster.name)
        alone = {name: self.answer(name) for name in names}
        self.assert_merged(alone["poet"])
        self.assertEqual(len({str(answer) for answer in alone.values()}), 3)
        answers = []
        threads = [threading.Thread(target=lambda name=name: answers.append((name, self.answer(name)))) for name in 3 * names]
        for thread in threads:
            thread.start()
        os.kill(self.cluster.worker_pids()[1], signal.SIGKILL)
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(answers), sorted(3 * list(alone.items())))
        self.assertEqual([self.post(path, {}).status for path in ("/sleep?level=2", "/wake_up")], [200, 200])
        self.assertEqual({name: self.answer(name) for name in names}, alone)
        self.assertGreater(self.cluster.metric("somnus:adapter_reads_total"), 2)

        self.answer("other")
        recoveries = self.cluster.status()["num_recoveries"]
        for path in (moving, resting):
            with open(os.path.join(path, "adapter_config.json"), "a", encoding="utf-8") as file:
                file.write("\n")
        reply = self.ask("poet")
        self.assertEqual(reply.status, 500, reply.text)
        self.assertIn("files have changed", reply.text)
        self.assertNotIn(moving, reply.text)
        self.assertIn("files have changed", self.ask("other").text)
        self.assertEqual(self.cluster.status()["num_recoveries"], recoveries, "nobody needs the adapter that made room")
        self.assertEqual(self.load("other", other, load_inplace=True).status, 200)
        self.assertEqual(self.answer("other"), alone["other"])
        os.remove(os.path.join(moving, "adapter_model.safetensors"))
        os.symlink("nowhere", os.path.join(moving, "adapter_model.safetensors"))
        wait_until(lambda: "unreadable" in self.ask("poet").text, 30, "another try")
        shutil.rmtree(moving)
        wait_until(lambda: "files have gone" in self.ask("poet").text, 30, "another try")
        shutil.copytree(poet, moving)
        self.assertEqual(self.load("poet", moving, load_inplace=True).status, 200)
        self.assertEqual({name: self.answer(name) for name in ("other", self.cluster.name, "poet")}, alone)
        self.assertEqual(self.post("/pause", {}).status, 200)
        replies = []
        asking = threading.Thread(target=lambda: replies.append(self.ask("poet")))
        asking.start()
        wait_until(lambda: self.cluster.metric("vllm:num_requests_waiting") == 1, 30, "the request is open")
        with open(os.path.join(moving, "adapter_config.json"), "a", encoding="utf-8") as file:
            file.write("\n")
        os.kill(self.cluster.worker_pids()[0], signal.SIGKILL)
        asking.join(60)  # while the pause lasts
        self.assertEqual(self.post("/resume", {}).status, 200)
        self.assertEqual(self.answer(self.cluster.name), alone[self.cluster.name])
        for reply in (*replies, self.ask("poet")):
            self.assertEqual(reply.status, 500, "the new worker could not have it: " + reply.text)
            self.assertIn("'poet' cannot be read again: its files have changed since", reply.text)
        self.assertEqual(len(replies), 1)
        self.assertEqual(self.answer("other"), alone["other"])

    def test_replicas(self):
        self.start(f"--lora-modules=poet={poet}", "--data-parallel-size=2", "--max-loras=1", "--max-cpu-loras=1", workers=1)
        for _ in range(3):  # by turns
            self.assert_merged(self.answer("poet"))
        self.assertEqual(self.load("other", other).status, 200)
        other_answer = self.answer("other")
        for pid in self.cluster.worker_pids():
            os.kill(pid, signal.SIGKILL)
            self.assertEqual(self.answer("other"), other_answer)
            self.cluster.wait_ready()
        self.assert_merged(self.answer("poet"))

    def test_several_models(self):
        modules = json.dumps({"name": "poet", "path": poet, "base_model_name": "test-model"})
        self.start(f"--model=second={tiny(MODEL)}", f"--lora-modules={modules}", "--device-memory-budget=40MiB",
                   "--no-elastic-kv-cache", "--host-memory-budget=64MiB", "--max-model-len=256", "--workers=local:1", workers=0)
        for _ in range(2):
            self.assert_merged(self.answer("poet"))
            self.assertEqual(self.state("test-model"), "awake")
            self.answer("second")
            self.assertEqual((self.state("test-model"), self.state("second")), ("asleep", "awake"))

    def state(self, name):
        return next(card["state"] for card in self.cluster.request("GET", "/v1/models").json["data"] if card["id"] == name)

"""The calls of RL trainers to a served cluster: checksums of all weights, memory of the KV cache alone, conversations by tokens,
and true log-probabilities of given tokens."""
import concurrent.futures
import itertools
import unittest

from cluster.harness import Cluster, Stream, tiny
from cluster.harness.other_weights import second_checkpoint

MODEL = "llama-uneven"
GENERATE = "/inference/v1/generate"


class WeightChecker(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.other = second_checkpoint(cls, tiny(MODEL))
        cls.cluster = Cluster(tiny(MODEL), "--dtype=float32", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def post(self, path, body=None):
        return self.cluster.request("POST", path, body, port=self.cluster.admin_port)

    def check(self, action, status=200, **fields):
        response = self.post("/weight_checker", {"action": action, **fields})
        self.assertEqual(response.status, status, response.text)
        return response.json

    def ok(self, path, body=None):
        response = self.post(path, body)
        self.assertEqual(response.status, 200, response.text)
        return response.json

    def setUp(self):
        self.ok("/wake_up")
        self.ok("/reload_weights", {"path": tiny(MODEL)})
        self.first = self.check("snapshot")

    def test_each_rank_has_its_own_checksums(self):
        ranks = self.check("checksum", tensors=True)["ranks"]
        self.assertEqual([(rank["replica"], rank["rank"]) for rank in ranks], [(0, 0), (0, 1)])
        self.assertNotEqual(ranks[0]["checksum"], ranks[1]["checksum"])
        norms = [[sum for name, sum in rank["tensors"].items() if name == "model.norm.weight"] for rank in ranks]
        self.assertEqual(len(norms[0]), 1)
        self.assertEqual(norms[0], norms[1], "every rank has all of it")
        self.assertTrue(all(rank["num_tensors"] == len(rank["tensors"]) for rank in ranks))
        self.assertTrue(any("q_proj" in name and "k_proj" in name for name in ranks[0]["tensors"]), "fused")

    def test_sleep_brings_back_the_same_bytes(self):
        for level in (1, 2):
            self.ok(f"/sleep?level={level}")
            self.assertIn("sleeps", self.check("compare", 409)["error"]["message"])
            self.ok("/wake_up")
            self.assertEqual(self.check("compare")["checksum"], self.first["checksum"])

    def test_other_weights_differ_and_are_named(self):
        self.ok("/reload_weights", {"path": self.other})
        message = self.check("compare", 409)["error"]["message"]
        self.assertIn("tensors differ", message)
        self.assertIn("layers.", message)
        self.check("snapshot")
        self.assertGreater(self.check("compare")["weight_version"], self.first["weight_version"])
        self.ok("/reload_weights", {"path": tiny(MODEL)})
        self.check("compare", 409)

    def test_a_baseline_that_the_client_keeps_names_what_differs(self):
        kept = self.check("checksum")["checksums"]
        self.assertEqual({name.rsplit(":", 1)[0] for name in kept}, {"dp0:pp0:pcp0:tp0", "dp0:pp0:pcp0:tp1"})
        self.assertEqual(self.check("compare", baseline=kept), {"match": True, "mismatches": []})
        self.ok("/reload_weights", {"path": self.other})
        comparison = self.check("compare", baseline=kept)
        self.assertFalse(comparison["match"])
        self.assertTrue(comparison["mismatches"])
        self.assertLess(set(comparison["mismatches"]), set(kept))
        self.ok("/reload_weights", {"path": tiny(MODEL)})
        self.assertTrue(self.check("compare", baseline=kept)["match"])

    def test_stale_weights_have_no_checksum(self):
        self.ok("/sleep?level=2")
        self.ok("/wake_up?load_weights=false")
        self.assertIn("stale", self.check("checksum", 409)["error"]["message"])
        self.ok("/reload_weights", {"path": tiny(MODEL)})
        self.check("compare")

    def test_requests_go_on_meanwhile(self):
        alone = self.cluster.tokens("The quick brown", max_tokens=64, ignore_eos=True)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            checks = [pool.submit(self.check, "compare") for _ in range(8)]
            fields = {"max_tokens": 64, "ignore_eos": True}
            answers = [pool.submit(self.cluster.tokens, "The quick brown", **fields) for _ in range(4)]
            self.assertTrue(all(answer.result() == alone for answer in answers))
            self.assertEqual({check.result()["checksum"] for check in checks}, {self.first["checksum"]})

    def test_the_kv_cache_alone_gives_its_memory(self):
        alone = self.cluster.tokens("The quick brown", max_tokens=8)
        released = self.ok("/release_kv_cache_memory")
        self.assertEqual(released["status"], "kv_cache_released")
        self.assertEqual(released["tag_states"]["kv_cache"]["state"], "discarded")
        self.assertGreater(released["freed_bytes"]["kv_cache"], 0)
        self.check("compare")
        self.ok("/reload_weights", {"path": self.other})
        self.ok("/reload_weights", {"path": tiny(MODEL)})
        self.assertEqual(self.ok("/resume_kv_cache_memory")["status"], "awake")
        self.assertEqual(self.cluster.tokens("The quick brown", max_tokens=8), alone)


class Conversations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny("qwen3"), "--dtype=float32", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def post(self, path, body):
        response = self.cluster.request("POST", path, body)
        self.assertEqual(response.status, 200, response.text)
        return response.json

    def test_each_prompt_begins_with_the_tokens_of_the_turn_before(self):
        messages, before = [], []
        for turn in range(4):
            messages.append({"role": "user", "content": f"Question {turn}?"})
            answer = self.post("/v1/chat/completions", {
                "messages": messages, "max_tokens": 24, "temperature": 1, "seed": turn, "return_token_ids": True,
                "logprobs": True, "return_weight_versions": True})
            prompt, choice = answer["prompt_token_ids"], answer["choices"][0]
            self.assertEqual(prompt[:len(before)], before)
            self.assertEqual(choice["weight_versions"], [{"version": self.weight_info(), "start": 0, "end": len(choice["token_ids"])}])
            before = prompt + choice["token_ids"]
            messages.append({"role": "assistant", "content": choice["message"]["content"], "token_ids": choice["token_ids"],
                             "prompt_token_ids": prompt})

    def test_replayed_tokens_have_the_log_probabilities_with_which_they_were_made(self):
        made = self.post(GENERATE, {"token_ids": [3, 1, 4, 1, 5], "sampling_params": {
            "max_tokens": 24, "temperature": 1, "seed": 7, "logprobs": 0, "ignore_eos": True}})["choices"][0]
        replayed = self.post(GENERATE, {"token_ids": [3, 1, 4, 1, 5] + made["token_ids"], "sampling_params": {
            "max_tokens": 1, "prompt_logprobs": 0}})["prompt_logprobs"]
        told = [entry["logprob"] for entry in made["logprobs"]["content"]]
        given = [position[str(id)]["logprob"] for id, position in zip(made["token_ids"], replayed[5:])]
        self.assertEqual(len(told), 24)
        for position, (one, other) in enumerate(zip(told, given)):
            self.assertAlmostEqual(one, other, delta=1e-4, msg=f"position {position}")

    def paused_stream(self, attempts=20):
        """The events of a stream that a pause has stopped behind its first tokens. One that ended before is begun again."""
        for _ in range(attempts):
            stream = Stream(self.cluster.connection(self.cluster.port), GENERATE, {
                "token_ids": [3, 1, 4], "stream": True, "return_weight_versions": True,
                "sampling_params": {"max_tokens": 400, "ignore_eos": True}})
            self.addCleanup(stream.close)
            events = stream.events()
            first = next(events)
            self.cluster.admin("/pause?mode=keep")
            if self.cluster.status()["num_requests_running"] + self.cluster.status()["num_requests_waiting"] == 1:
                return itertools.chain([first], events)
            self.cluster.admin("/resume")
            list(events)
        self.fail(f"a stream ended before the pause, in each of {attempts} attempts")

    def test_a_kept_stream_has_tokens_of_both_weights(self):
        self.cluster.admin("/reload_weights?weight_version=5")
        events = self.paused_stream()
        self.cluster.admin("/reload_weights?mode=keep&weight_label=step-6")
        self.assertEqual(self.weight_info(), "step-6")
        self.cluster.admin("/resume")
        choices = [choice for event in events for choice in event["choices"]]
        self.assertEqual(["weight_versions" in choice for choice in choices], [False] * (len(choices) - 1) + [True])
        old, new = choices[-1]["weight_versions"]
        self.assertGreaterEqual(old["end"], len(choices[0]["token_ids"]))
        self.assertEqual(old, {"version": "5", "start": 0, "end": old["end"]})
        self.assertEqual(new, {"version": "step-6", "start": old["end"], "end": 400})
        self.assertEqual(sum(len(choice["token_ids"]) for choice in choices), 400)

    def test_a_label_that_comes_in_a_pause_names_later_tokens_of_the_same_weights(self):
        self.cluster.admin("/reload_weights?weight_label=before")
        events = self.paused_stream()
        self.cluster.admin("/update_weight_version?new_version=behind")
        self.cluster.admin("/resume")
        spans = [choice for event in events for choice in event["choices"]][-1]["weight_versions"]
        self.assertEqual([span["version"] for span in spans], ["before", "behind"])
        self.assertEqual([spans[0]["start"], spans[1]["start"], spans[1]["end"]], [0, spans[0]["end"], 400])
        self.cluster.admin("/reload_weights")
        self.assertTrue(self.weight_info().isdigit(), "other weights have no label")

    def weight_info(self):
        return self.cluster.request("GET", "/weight_info", port=self.cluster.admin_port).json["weight_version"]

"""Several choices of one prompt through whole clusters. Beam search gives transformers' answers on the tiny checkpoints, and
the same answers beside greedy and sampled neighbours while sequences are preempted and the engine sleeps.
A sampled choice has the tokens of the same choice alone, and the prompt is computed once for all choices."""
import json
import os
import unittest

from cluster.harness import ROOT, Cluster, tiny, wait_until
from cluster.harness.together import Together, complete, prompt

with open(os.path.join(ROOT, "tests", "data", "beam_goldens.json"), encoding="utf-8") as golden_file:
    GOLDENS = json.load(golden_file)
MODEL = "qwen3"
# 43 blocks of 16 tokens: two searches and the requests beside the searches do not fit at once.
SMALL_CACHE = ("--dtype=float32", f"--kv-cache-memory-bytes={44 * 8192}", "--max-num-seqs=16")
COMPUTED = "vllm:iteration_tokens_total_sum"
PROMPT = [(37 * i + 11) % 200 for i in range(90)]
NUM_CHOICES, SEED, NUM_TOKENS = 16, 1000, 12
FIELDS = ("prompt", "n", "max_tokens", "length_penalty", "ignore_eos", "early_stopping")
BEAMS = {"use_beam_search": True, "temperature": 1}
# Searches, greedy and sampled requests.
REQUESTS = [
    {"prompt": prompt(11, 50), "max_tokens": 90, "n": 5, "ignore_eos": True, **BEAMS},
    {"prompt": prompt(3, 20), "max_tokens": 120, "temperature": 0, "ignore_eos": True},
    {"prompt": prompt(7, 37), "max_tokens": 80, "n": 4, "length_penalty": 0.5, **BEAMS},
    {"prompt": prompt(5, 64), "max_tokens": 100, "temperature": 0.9, "seed": 17, "ignore_eos": True},
    {"prompt": prompt(9, 16), "max_tokens": 100, "n": 3, "ignore_eos": True, **BEAMS},
]


def answers(cluster, body):
    return [(choice["token_ids"], choice["finish_reason"]) for choice in complete(cluster, body)]


def together(cluster):
    asked = Together(cluster, REQUESTS, answers)
    wait_until(lambda: cluster.status()["num_requests_running"] > 0 or asked.ended(), 60, "a request that runs")
    return asked


class Beams(unittest.TestCase):
    def test_the_answers_are_those_of_transformers(self):
        for model in sorted({case["model"] for case in GOLDENS}):
            with self.subTest(model), Cluster(tiny(model), "--dtype=float32", workers=2) as cluster:
                for case in (case for case in GOLDENS if case["model"] == model):
                    body = {name: case[name] for name in FIELDS if name in case}
                    wanted = [(answer["tokens"], answer["finish_reason"]) for answer in case["answers"]]
                    self.assertEqual(answers(cluster, {**BEAMS, **body}), wanted, body)
                cluster.wait_idle()

    def test_neighbours_under_preemption_and_sleep(self):
        for keep in ((), ("--keep-kv-on-sleep",)):
            with self.subTest(keep=keep), Cluster(tiny(MODEL), *SMALL_CACHE, *keep, workers=2) as cluster:
                wanted = [answers(cluster, body) for body in REQUESTS]
                self.assertEqual(cluster.metric("vllm:num_preemptions_total"), 0)
                for attempt in range(10):  # requests that come far apart preempt nobody
                    self.assertEqual(together(cluster).join(), wanted)
                    if cluster.metric("vllm:num_preemptions_total") > 0:
                        break
                self.assertGreater(cluster.metric("vllm:num_preemptions_total"), 0)
                slept_open = 0
                for attempt in range(10):
                    asked = together(cluster)
                    while not asked.ended():
                        cluster.admin("/sleep?level=1&mode=keep")
                        status = cluster.status()
                        slept_open += status["num_requests_running"] + status["num_requests_waiting"] > 0
                        cluster.admin("/wake_up")
                    self.assertEqual(asked.join(), wanted)
                    if slept_open >= 2:
                        break
                self.assertGreaterEqual(slept_open, 2)
                cluster.wait_idle()

    def test_requests_that_are_refused(self):
        with Cluster(tiny(MODEL), *SMALL_CACHE, workers=2) as cluster:
            greedy = REQUESTS[1]
            wanted = answers(cluster, greedy)
            chat = {"messages": [{"role": "user", "content": "hi"}]}
            for fields, param in (({"stream": True}, "stream"), ({"n": 10 ** 9}, "n"),
                                  ({"early_stopping": "soon"}, "early_stopping"),
                                  ({"use_beam_search": 2}, "use_beam_search")):
                for path, input_fields in (("/v1/completions", {"prompt": prompt(1, 30)}), ("/v1/chat/completions", chat)):
                    body = {"max_tokens": 10, **BEAMS, **input_fields, **fields}
                    response = cluster.request("POST", path, body)
                    self.assertEqual((response.status, response.json["error"]["param"]), (400, param), (body, response.text))
            for fields, message in (({"n": 17}, "n: a beam search must have 1 to 16 beams"),
                                    ({"n": 8, "max_tokens": 300}, "n: 8 beams of 330 tokens can never fit in the KV cache of 688 tokens")):
                response = cluster.request("POST", "/v1/completions", {"prompt": prompt(1, 30), **BEAMS, **fields})
                self.assertEqual((response.status, response.json["error"]["message"]), (400, message))
            self.assertEqual(answers(cluster, greedy), wanted)
            response = cluster.request("POST", "/v1/chat/completions", {**chat, **BEAMS, "n": 3, "max_tokens": 8, "logprobs": True})
            self.assertEqual(response.status, 200, response.text)
            self.assertEqual(len(response.json["choices"]), 3)
            usage = response.json["usage"]
            self.assertEqual(usage["completion_tokens"], sum(len(choice["logprobs"]["content"]) for choice in response.json["choices"]))
            cluster.wait_idle()


class Choices(unittest.TestCase):
    def computed(self, cluster, **fields):
        """(the choices' tokens, how many tokens were computed for the choices)"""
        before = cluster.metric(COMPUTED) or 0
        body = {"model": cluster.name, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 1.1,
                "return_token_ids": True, **fields}
        answer = cluster.request("POST", "/v1/completions", body)
        self.assertEqual(answer.status, 200, answer.text)
        return [choice["token_ids"] for choice in self.choices(answer)], cluster.metric(COMPUTED) - before

    @staticmethod
    def choices(answer):
        return sorted(answer.json["choices"], key=lambda choice: choice["index"])

    def check(self, *flags):
        with Cluster(tiny(MODEL), "--dtype=float32", *flags, workers=2) as cluster:
            together, computed = self.computed(cluster, n=NUM_CHOICES, seed=SEED)
            self.assertEqual(cluster.metric("somnus:forked_sequences_total"), NUM_CHOICES - 1)
            # Steps that are under way when a choice ends compute one token of that choice in vain.
            decoded = NUM_CHOICES * (NUM_TOKENS - 1)
            self.assertTrue(len(PROMPT) + decoded <= computed <= len(PROMPT) + decoded + NUM_CHOICES, computed)
            alone = [self.computed(cluster, seed=SEED + index)[0][0] for index in range(NUM_CHOICES)]
            self.assertEqual(together, alone)
            self.assertGreater(len({tuple(tokens) for tokens in alone}), NUM_CHOICES // 2)

    def test_choices_fork_their_prompt(self):
        self.check()

    def test_a_prompt_in_chunks_without_a_prefix_cache(self):
        self.check("--max-num-batched-tokens=32", "--max-num-seqs=32", "--no-enable-prefix-caching")

    def test_the_best_of_several(self):
        with Cluster(tiny(MODEL), "--dtype=float32", workers=2) as cluster:
            body = {"model": cluster.name, "prompt": [PROMPT, PROMPT[:40]], "max_tokens": NUM_TOKENS, "temperature": 1.1, "seed": SEED,
                    "return_token_ids": True}

            def ask(**fields):
                answer = cluster.request("POST", "/v1/completions", {**body, **fields})
                self.assertEqual(answer.status, 200, answer.text)
                return answer
            everything = ask(n=6, logprobs=0)
            best = ask(n=2, best_of=6)
            candidates, chosen = self.choices(everything), self.choices(best)
            for which in (0, 1):
                likeliest = sorted(candidates[6 * which:6 * which + 6], key=lambda choice: -sum(choice["logprobs"]["token_logprobs"]))
                wanted = [(choice["token_ids"], choice["text"], choice["finish_reason"]) for choice in likeliest[:2]]
                found = chosen[2 * which:2 * which + 2]
                self.assertEqual([(choice["token_ids"], choice["text"], choice["finish_reason"]) for choice in found], wanted)
            self.assertEqual([choice["logprobs"] for choice in chosen], [None] * 4)
            self.assertEqual(best.json["usage"]["completion_tokens"], everything.json["usage"]["completion_tokens"])
            cluster.wait_idle()

"""Deadlines and times for the first token, through the whole cluster: a request ends in time while it runs, waits or sleeps, the
blocks of the request are free, and the answers to other requests are exact."""
import json
import threading
import unittest

from cluster.harness import SMOLLM2, Cluster, expected, tiny

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if not case["ambiguous"])
# More tokens than any machine makes in the second that a request has.
ENDLESS = {"max_tokens": 4000, "ignore_eos": True}
NEIGHBOUR = ("The old harbor was quiet that morning, and", 24)
SECOND = {"X-Request-Timeout": "1.0"}


class Asking:
    """A greedy completion in a new thread."""

    def __init__(self, cluster, prompt, headers=None, **fields):
        self.response = None
        body = {"model": cluster.name, "prompt": prompt, "temperature": 0, "return_token_ids": True, **fields}

        def ask():
            self.response = cluster.request("POST", "/v1/completions", body, headers)
        self._thread = threading.Thread(target=ask)
        self._thread.start()

    def result(self):
        self._thread.join(120)
        return self.response

    def tokens(self):
        response = self.result()
        if response.status != 200:
            raise AssertionError(f"HTTP {response.status}: {response.text}")
        return response.json["choices"][0]["token_ids"]


class Base(unittest.TestCase):
    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(SMOLLM2, "--max-model-len=4096", *cls.FLAGS, workers=1)
        cls.addClassCleanup(cls.cluster.__exit__)
        prompt, max_tokens = NEIGHBOUR
        cls.neighbour = cls.cluster.tokens(prompt, max_tokens=max_tokens, ignore_eos=True)

    def tearDown(self):
        self.cluster.wait_idle()

    def expired(self, cause):
        return self.cluster.metric("somnus:requests_expired_total", cause=cause) or 0

    def ask(self, prompt, headers=None, **fields):
        return Asking(self.cluster, prompt, headers, **fields)

    def ask_neighbour(self):
        prompt, max_tokens = NEIGHBOUR
        return self.ask(prompt, max_tokens=max_tokens, ignore_eos=True)

    def assert_timeout(self, response):
        self.assertEqual(response.status, 504, response.text)
        self.assertEqual(response.json["error"]["code"], 504)


class Running(Base):
    def test_a_running_request_ends_and_its_neighbour_is_exact(self):
        before = self.expired("deadline_running")
        late = self.ask("Count to a million:", SECOND, **ENDLESS)
        neighbour = self.ask_neighbour()
        self.assert_timeout(late.result())
        self.assertEqual(neighbour.tokens(), self.neighbour)
        self.assertEqual(self.expired("deadline_running"), before + 1)

    def test_a_stream_ends_with_an_event(self):
        body = {"model": self.cluster.name, "prompt": "Count to a million:", "stream": True, **ENDLESS}
        connection = self.cluster.connection(self.cluster.port)
        connection.request("POST", "/v1/completions", body=json.dumps(body),
                           headers={"Content-Type": "application/json", **SECOND})
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        data = [line[len("data: "):] for line in lines if line.startswith("data: ")]
        self.assertEqual(data[-1], "[DONE]")
        self.assertIn('"code":504', data[-2])
        self.assertGreater(len(data), 2, "it had begun")

    def test_a_first_token_that_cannot_come_in_time_is_refused(self):
        causes = ("ttft_estimate", "ttft_passed")
        # A measurement is used for half a minute. No machine computes 291 tokens in 10 us.
        lengthy = [" ".join(f"{word}{i}" for i in range(100)) for word in ("apple", "pear", "plum")]
        self.assertEqual(self.ask(lengthy[0], max_tokens=1).result().status, 200)
        before = sum(map(self.expired, causes))
        refused = self.ask(lengthy[1], {"X-SLO-TTFT-Ms": "0.01"}, max_tokens=1).result()
        self.assertEqual((refused.status, refused.headers["Retry-After"]), (503, "1"), refused.text)
        self.assertEqual(sum(map(self.expired, causes)), before + 1)
        self.assertEqual(self.ask(lengthy[2], {"X-SLO-TTFT-Ms": "600000"}, max_tokens=1).result().status, 200)


class Waiting(Base):
    FLAGS = ("--max-num-seqs=1",)

    def test_a_waiting_request_ends_while_another_one_runs(self):
        before = self.expired("deadline_waiting")
        stream = self.cluster.open_stream("Count to a million:", max_tokens=3000)
        next(stream.events())
        late = self.ask("Name a color.", SECOND, max_tokens=5).result()
        self.assert_timeout(late)
        refused = self.ask("Name a color.", {"X-SLO-TTFT-Ms": "1000"}, max_tokens=5).result()
        self.assertEqual((refused.status, refused.headers["Retry-After"]), (503, "1"))
        stream.drop()
        self.assertEqual(self.expired("deadline_waiting"), before + 1)
        self.assertEqual(self.ask_neighbour().tokens(), self.neighbour)


class Asleep(unittest.TestCase):
    def test_the_time_until_a_model_wakes_counts(self):
        # Both models fit, and an operator holds a model asleep.
        with Cluster(tiny(MODEL), f"--model=other={tiny('qwen3')}", "--dtype=float32", "--max-model-len=512",
                     "--workers=local:1", workers=0) as cluster:
            cluster.admin("/sleep?model=other")
            late = Asking(cluster, "a", SECOND, model="other", max_tokens=5).result()
            self.assertEqual(late.status, 504, late.text)
            self.assertEqual(cluster.metric("somnus:requests_expired_total", model_name="other", cause="deadline_waiting"), 1)
            self.assertEqual(cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

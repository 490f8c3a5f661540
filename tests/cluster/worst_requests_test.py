"""The largest request of every kind: a request within the bounds is served, a request beyond is refused by name, and neither
ends the engine, changes a neighbour's tokens, or makes the coordinator grow without bound.

The bounds are in docs/security.md; attacks_test and rude_clients_test hold malformed rather than large requests.
"""
import socket
import threading
import unittest

from cluster.harness import SMOLLM2, Cluster, tiny, wait_until
from cluster.harness.soak import rss_mib

NEIGHBOUR = "The quick brown fox"
GREEDY = {"max_tokens": 24, "ignore_eos": True}
INT32, INT64 = 2**31, 2**63


class PeakRss:
    """The coordinator's largest resident set while this is open, in MiB."""

    def __init__(self, pid):
        self.pid, self.peak, self.ended = pid, rss_mib(pid), threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def _watch(self):
        while not self.ended.wait(0.02):
            self.peak = max(self.peak, rss_mib(self.pid))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


class Worst(unittest.TestCase):
    MODEL, FLAGS, GROWTH_MIB = tiny("qwen3"), (), 512  # the largest response has 128 MiB, in a string that doubles its capacity

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(cls.MODEL, "--dtype=float32", *cls.FLAGS, workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.workers = cls.cluster.worker_pids()
        cls.tokens = cls.cluster.tokens(NEIGHBOUR, **GREEDY)

    def fire(self, *bodies, path="/v1/completions"):
        """Sends all bodies at once beside a neighbour's stream; returns the responses."""
        responses = [None] * len(bodies)

        def send(index):
            responses[index] = self.cluster.request("POST", path, {"model": self.cluster.name, "max_tokens": 2, **bodies[index]},
                                                    timeout=300)

        threads = [threading.Thread(target=send, args=(index,)) for index in range(len(bodies))]
        before = rss_mib(self.cluster.process.pid)
        with PeakRss(self.cluster.process.pid) as rss:
            stream = self.cluster.open_stream(NEIGHBOUR, timeout=300, return_token_ids=True, **GREEDY)
            for thread in threads:
                thread.start()
            beside = [token for event in stream.events() for choice in event["choices"] for token in choice["token_ids"] or []]
            for thread in threads:
                thread.join()
        self.assertEqual(beside, self.tokens)
        self.check_alive()
        self.assertLess(rss.peak - before, self.GROWTH_MIB)
        return responses

    def open_requests(self):
        status = self.cluster.status()
        return status["num_requests_running"] + status["num_requests_waiting"]

    def check_alive(self):
        self.assertEqual(self.cluster.tokens(NEIGHBOUR, **GREEDY), self.tokens)
        self.assertEqual(self.cluster.worker_pids(), self.workers, "a worker was replaced")
        self.cluster.wait_idle(60)

    def served(self, *bodies, **more):
        responses = self.fire(*bodies, **more)
        for response in responses:
            self.assertEqual(response.status, 200, response.text[:300])
        return [response.json for response in responses]

    def refused(self, body, param, status=400, **more):  # param None: the error names no field
        response = self.fire(body, **more)[0]
        self.assertEqual(response.status, status, response.text[:300])
        if param:
            self.assertEqual(response.json["error"]["param"], param)


def lists(ids, bad_words=()):
    """Every list among the sampling parameters, with the given ids. With min_tokens the stop ids are sent to the workers, too;
    half of the ids are no stop ids, so that there is a first token."""
    fields = {"logit_bias": {str(i): 1 for i in ids}, "allowed_token_ids": list(ids), "stop_token_ids": list(ids)[1::2], "min_tokens": 1}
    return {**fields, "bad_words": list(bad_words)} if bad_words else fields


class EveryToken(Worst):
    """A vocabulary of 49,152, and bounds as high: the lists of a request are sent once, not once for each choice."""
    MODEL, VOCABULARY = SMOLLM2, 49152
    FLAGS = ("--max-logit-bias=49152", "--max-allowed-token-ids=49152", "--max-stop-token-ids=49152")

    def test_all_lists_of_every_token_for_128_choices(self):
        answer, = self.served({"prompt": "x", "n": 128, "temperature": 1, "seed": 1, **lists(range(self.VOCABULARY))})
        self.assertEqual(len(answer["choices"]), 128)
        self.assertGreater(len({choice["text"] for choice in answer["choices"]}), 64, "each choice has its own seed")

    def test_one_token_more(self):
        for field in ("allowed_token_ids", "stop_token_ids"):
            self.refused({"prompt": "x", field: [1] * (self.VOCABULARY + 1)}, field)


class Defaults(Worst):
    def test_lists_at_their_bounds_for_every_choice(self):
        words = ["".join(chr(97 + (i // 26 ** k) % 26) for k in range(3)) for i in range(64)]
        body = {"prompt": "x", "n": 128, "temperature": 1, **lists(list(range(3, 131)), words)}
        body["stop_token_ids"] = list(range(3, 131))
        body["allowed_token_ids"] = list(range(512)) * 2
        body["logit_bias"] = {str(i): 1 for i in range(512)}
        self.served(*[body] * 4)

    def test_one_entry_more(self):
        for field, value in (("logit_bias", {f"{i % 512:0{3 + i // 512}}": 1 for i in range(1025)}),
                             ("allowed_token_ids", [5] * 1025), ("stop_token_ids", [5] * 129), ("bad_words", ["w%d" % i for i in range(129)]),
                             ("bad_words", ["z" * 5000]), ("stop", "a" * 1025), ("stop", list("abcde")), ("n", 129)):
            with self.subTest(field=field):
                self.refused({"prompt": "x", field: value}, field)

    def test_prompts_times_choices_times_stop_strings(self):
        stop = [chr(97 + i) * 1024 for i in range(4)]
        answer, = self.served({"prompt": [[5, 6, i] for i in range(8)], "n": 128, "temperature": 1, "stop": stop})
        self.assertEqual(len(answer["choices"]), 1024)
        self.refused({"prompt": [[5, 6]] * 9, "n": 128, "temperature": 1}, "n")
        self.refused({"prompt": [[5]] * 1025}, "prompt")

    def test_as_many_prompt_logprobs_as_there_may_be(self):
        prompt = [[5 + i % 400] * 480 for i in range(100)]
        answer, = self.served({"prompt": prompt, "prompt_logprobs": 20, "max_tokens": 1})
        self.assertEqual([len(choice["prompt_logprobs"]) for choice in answer["choices"]], [480] * 100)
        self.refused({"prompt": prompt * 2, "prompt_logprobs": 20, "n": 2, "temperature": 1}, "prompt_logprobs")
        self.refused({"prompt": prompt * 2, "echo": True, "logprobs": 20, "n": 2, "temperature": 1}, "logprobs")

    def test_names_and_numbers_at_their_ends(self):
        self.served({"prompt": "x", "request_id": "i" * 1024, "cache_salt": "s" * 128, "user": "u" * (8 << 20), "priority": INT64 - 1},
                    {"prompt": "x", "priority": -INT64, "seed": INT64 - 1, "n": 128, "temperature": 1, "stream_interval": INT64 - 1})
        for fields, param, status in (({"request_id": "i" * 1025}, "request_id", 400), ({"cache_salt": "s" * 129}, "cache_salt", 400),
                                      ({"model": "m" * (8 << 20)}, "model", 404), ({"n": INT32}, "n", 400)):
            self.refused({"prompt": "x", **fields}, param, status)

    def test_answers_with_everything_for_every_choice(self):
        body = {"prompt": "x", "n": 128, "temperature": 1, "logprobs": 20, "echo": True, "max_tokens": 32, "ignore_eos": True,
                "return_token_ids": True, "request_id": "i" * 1024}
        answers = self.served(*[body] * 3)
        for answer in answers:
            self.assertEqual({len(choice["token_ids"]) for choice in answer["choices"]}, {32})

    def test_streams_of_everything_that_nobody_reads(self):
        body = (b'{"prompt":"x","n":128,"temperature":1,"logprobs":20,"max_tokens":400,"ignore_eos":true,"stream":true,'
                b'"return_token_ids":true,"request_id":"%s"}' % (b"i" * 1024))
        request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        unread = []
        for _ in range(6):
            sock = socket.socket()
            self.addCleanup(sock.close)
            sock.settimeout(120)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", self.cluster.port))
            sock.sendall(request)
            unread.append(sock)
        before = rss_mib(self.cluster.process.pid)
        with PeakRss(self.cluster.process.pid) as rss:
            for sock in unread:
                self.assertEqual(sock.recv(1, socket.MSG_PEEK), b"H", "the stream has begun")
            wait_until(lambda: self.open_requests() == 0, 120, "streams that nobody reads are given up")
        self.assertLess(rss.peak - before, self.GROWTH_MIB)
        for sock in unread:
            sock.close()
        self.check_alive()


class Responses(Worst):
    FLAGS = ("--max-response-bytes=256KiB",)
    BODY = {"prompt": "x", "n": 128, "temperature": 1, "logprobs": 20, "max_tokens": 64, "ignore_eos": True}

    def test_a_response_that_would_take_more_than_its_bound(self):
        self.refused(self.BODY, None)
        self.refused({"prompt": "a " * 10_000}, None, path="/tokenize")
        self.refused({"tokens": [5] * 100_000}, "tokens", path="/detokenize")

    def test_a_stream_is_sent_as_it_is_made(self):
        response, = self.fire({**self.BODY, "stream": True})
        self.assertEqual(response.status, 200)
        self.assertTrue(response.text.endswith("data: [DONE]\n\n"))
        self.assertNotIn('"error"', response.text)

    def test_a_stream_that_holds_all_of_it_back(self):
        response, = self.fire({**self.BODY, "stream": True, "stream_interval": 1000})
        self.assertIn('"error"', response.text)


class Queue(Worst):
    FLAGS = ("--max-waiting-bytes=1MiB",)

    def test_a_queue_of_few_tokens_and_many_bytes(self):
        body = {"prompt": "x", "temperature": 1, **lists(list(range(3, 131)))}
        body["logit_bias"] = {str(i): 1 for i in range(512)}
        statuses = []

        def send():
            statuses.append(self.cluster.request("POST", "/v1/completions", {"model": self.cluster.name, "max_tokens": 1, **body}).status)

        self.cluster.admin("/sleep?level=1")
        threads = [threading.Thread(target=send) for _ in range(80)]
        for thread in threads:
            thread.start()
        wait_until(lambda: 429 in statuses, 60, "a full queue")
        self.cluster.admin("/wake_up")
        for thread in threads:
            thread.join()
        self.assertEqual(set(statuses), {200, 429})
        self.assertGreater(statuses.count(200), 20)
        self.check_alive()

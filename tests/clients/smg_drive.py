"""The gateway smg in front of one and of two servers: chat, Responses and Messages, whole and streamed, with tools and schemas; a
worker that is killed; a server that sleeps. smg has the tokenizer, the template and the parsers, and Somnus generates."""
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

from cluster.harness import Cluster, Response, free_ports, tiny, wait_until

MODEL = "qwen3"  # a tiny model with random weights, and a chat template with tools
SMG = shutil.which("smg") or os.path.join(os.path.dirname(sys.executable), "smg")
ASK = [{"role": "user", "content": "Hello"}]
WEATHER = {"type": "object", "properties": {"days": {"enum": [1, 2, 3]}}, "required": ["days"], "additionalProperties": False}
FLAGS = ("--dtype=float32", "--trust-gateways", "--max-kv-events=4096")


class Smg:
    """smg in a process of its own. Use as a context manager."""

    def __init__(self, clusters, *flags):
        self.port, metrics = free_ports(2)
        self._log = tempfile.NamedTemporaryFile(prefix="smg_", suffix=".log")
        urls = [f"grpc://127.0.0.1:{cluster.grpc_port}" for cluster in clusters]
        command = [SMG, "launch", "--worker-urls", *urls, "--host", "127.0.0.1", "--port", str(self.port), "--prometheus-host",
                   "127.0.0.1", "--prometheus-port", str(metrics), "--health-check-interval-secs", "1", *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                                        start_new_session=True)
        try:
            wait_until(lambda: self.healthy() == len(clusters) and self.chat(max_tokens=2).status == 200, 60,
                       lambda: f"smg serves; log:\n{self.log()}", poll=0.3)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self._log.close()

    def log(self):
        with open(self._log.name, encoding="utf-8", errors="replace") as file:
            return file.read()

    def request(self, method, path, body=None, timeout=120):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return Response(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def healthy(self):
        """The number of servers that smg sends requests to."""
        try:
            workers = self.request("GET", "/workers", timeout=5).json["workers"]
        except (OSError, ValueError, KeyError):
            return -1
        return sum(worker["is_healthy"] for worker in workers)

    def post(self, path, **body):
        return self.request("POST", path, {"model": "test-model", **body})

    def chat(self, **body):
        return self.post("/v1/chat/completions", **{"messages": ASK, "temperature": 0, "max_tokens": 16, **body})


def streamed_text(reply):
    """The content of a streamed chat of one choice."""
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in events(reply) if chunk["choices"])


def events(reply):
    """The data of server-sent events."""
    lines = [line[len("data: "):] for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


class OneServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny(MODEL), *FLAGS, workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.smg = Smg([cls.cluster])
        cls.addClassCleanup(cls.smg.__exit__)

    def good(self, reply):
        self.assertEqual(reply.status, 200, reply.text)
        return reply

    def test_the_chat_is_what_somnus_answers_itself(self):
        ours = self.cluster.request("POST", "/v1/chat/completions", {"messages": ASK, "temperature": 0, "max_tokens": 16}).json
        theirs = self.good(self.smg.chat()).json
        self.assertEqual(theirs["choices"][0]["message"]["content"], ours["choices"][0]["message"]["content"])
        self.assertEqual(theirs["choices"][0]["finish_reason"], ours["choices"][0]["finish_reason"])
        for count in ("prompt_tokens", "completion_tokens"):
            self.assertEqual(theirs["usage"][count], ours["usage"][count])

    def test_a_streamed_chat_is_the_whole_one(self):
        whole = self.good(self.smg.chat()).json["choices"][0]["message"]["content"]
        self.assertEqual(streamed_text(self.good(self.smg.chat(stream=True))), whole)

    def test_several_choices_and_log_probabilities(self):
        choices = self.good(self.smg.chat(n=3, temperature=1, logprobs=True, top_logprobs=2)).json["choices"]
        self.assertEqual(sorted(choice["index"] for choice in choices), [0, 1, 2])
        for choice in choices:
            self.assertGreater(len(choice["logprobs"]["content"]), 0)
            self.assertEqual(len(choice["logprobs"]["content"][0]["top_logprobs"]), 2)

    def test_a_schema_holds(self):
        form = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": WEATHER}}
        for stream in (False, True):
            reply = self.good(self.smg.chat(response_format=form, max_tokens=60, stream=stream))
            text = streamed_text(reply) if stream else reply.json["choices"][0]["message"]["content"]
            self.assertIn(json.loads(text)["days"], (1, 2, 3))

    def test_a_tool_is_called(self):
        tools = [{"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": WEATHER}}]
        self.good(self.smg.chat(tools=tools))  # the model may call, and has random weights
        choice = self.good(self.smg.chat(tools=tools, tool_choice="required", max_tokens=120)).json["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls", choice)
        call = choice["message"]["tool_calls"][0]["function"]
        self.assertEqual(call["name"], "get_weather")
        self.assertIn(json.loads(call["arguments"])["days"], (1, 2, 3))

    def test_responses(self):
        answer = self.good(self.smg.post("/v1/responses", input="Hello", max_output_tokens=16, temperature=0)).json
        self.assertIn(answer["status"], ("completed", "incomplete"))
        self.assertGreater(answer["usage"]["output_tokens"], 0)
        streamed = self.good(self.smg.post("/v1/responses", input="Hello", max_output_tokens=16, stream=True))
        names = [event["type"] for event in events(streamed)]
        self.assertEqual(names[0], "response.created")
        self.assertIn("response.output_text.delta", names)
        self.assertIn(names[-1], ("response.completed", "response.incomplete"))

    def test_messages(self):
        answer = self.good(self.smg.post("/v1/messages", messages=ASK, max_tokens=16)).json
        self.assertEqual(answer["role"], "assistant")
        self.assertIn(answer["stop_reason"], ("end_turn", "max_tokens"))
        streamed = self.good(self.smg.post("/v1/messages", messages=ASK, max_tokens=16, stream=True))
        names = [event["type"] for event in events(streamed)]
        self.assertEqual((names[0], names[-1]), ("message_start", "message_stop"))

    def test_a_bad_request_stays_one(self):
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "array", "uniqueItems": True}}}
        reply = self.smg.chat(response_format=form)
        self.assertNotEqual(reply.status, 200)
        self.assertIn("uniqueItems", reply.text)
        self.good(self.smg.chat())

    def test_the_cache_is_flushed(self):
        reply = self.smg.request("POST", "/flush_cache")
        self.assertEqual(reply.status, 200, reply.text)

    def test_a_worker_that_is_killed_costs_no_client_an_error(self):
        whole = self.good(self.smg.chat(max_tokens=400, ignore_eos=True)).json["choices"][0]["message"]["content"]
        replies = [None] * 6

        def ask(index):
            replies[index] = self.smg.chat(max_tokens=400, ignore_eos=True, stream=index % 2 == 0)

        clients = [threading.Thread(target=ask, args=(index,)) for index in range(len(replies))]
        for client in clients:
            client.start()
        wait_until(lambda: self.cluster.status()["num_requests_running"] > 0, 30, "requests run", poll=0.01)
        os.kill(self.cluster.worker_pids()[1], signal.SIGKILL)
        for client in clients:
            client.join()
        for index, reply in enumerate(replies):
            self.good(reply)
            text = reply.json["choices"][0]["message"]["content"] if index % 2 else streamed_text(reply)
            self.assertEqual(text, whole)
        self.assertGreater(self.cluster.status()["num_recoveries"], 0)

    def test_sleep_shows_as_not_ready(self):
        self.cluster.admin("/sleep?level=1")
        wait_until(lambda: self.smg.healthy() == 0, 30, "smg sees that the server sleeps", poll=0.3)
        self.assertEqual(self.smg.chat().status, 503)
        self.cluster.admin("/wake_up")
        wait_until(lambda: self.smg.healthy() == 1, 30, "smg sees that the server is awake", poll=0.3)
        self.good(self.smg.chat())


class TwoServers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.clusters = [Cluster(tiny(MODEL), *FLAGS, workers=1) for _ in range(2)]
        for cluster in cls.clusters:
            cls.addClassCleanup(cluster.__exit__)
        cls.smg = Smg(cls.clusters, "--policy", "round_robin")
        cls.addClassCleanup(cls.smg.__exit__)

    def served(self):
        return [cluster.metric("vllm:request_success_total") or 0 for cluster in self.clusters]

    def test_both_serve_and_one_that_sleeps_gets_nothing(self):
        before = self.served()
        for _ in range(6):
            self.assertEqual(self.smg.chat().status, 200)
        self.assertTrue(all(now > then for now, then in zip(self.served(), before)), self.served())
        self.clusters[0].admin("/sleep?level=1")
        wait_until(lambda: self.smg.healthy() == 1, 30, "smg sees that one server sleeps", poll=0.3)
        before = self.served()
        for _ in range(4):
            self.assertEqual(self.smg.chat().status, 200)
        self.assertEqual(self.served()[0], before[0])
        self.clusters[0].admin("/wake_up")
        wait_until(lambda: self.smg.healthy() == 2, 30, "smg sees that both are awake", poll=0.3)

    def test_a_worker_that_is_killed_costs_no_client_an_error(self):
        os.kill(self.clusters[1].worker_pids()[0], signal.SIGKILL)
        for _ in range(8):
            reply = self.smg.chat(max_tokens=40)
            self.assertEqual(reply.status, 200, reply.text)


if __name__ == "__main__":
    unittest.main()

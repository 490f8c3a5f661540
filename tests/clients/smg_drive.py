"""The gateway smg in front of one and of two servers: chat, Responses and Messages, whole and streamed, with tools, and a schema; a
worker that is killed while streams run; a server that sleeps. smg has the tokenizer, the template and the parsers, and Somnus
generates."""
import contextlib
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

from clients.gguf_tokenizer import write_tokenizer
from cluster.harness import SMOLLM2, Cluster, Response, free_ports, tiny, wait_until

MODEL = "qwen3"  # a tiny model with random weights, and a chat template with tools
SMG = shutil.which("smg") or os.path.join(os.path.dirname(sys.executable), "smg")
ASK = [{"role": "user", "content": "Hello"}]
WEATHER = {"type": "object", "properties": {"days": {"enum": [1, 2, 3]}}, "required": ["days"], "additionalProperties": False}
TOOL = {"name": "get_weather", "description": "The weather.", "parameters": WEATHER}
# A model with random weights would put blanks into JSON for ever, and smg passes no bias on.
NO_LOOPS = {"frequency_penalty": 2, "max_tokens": 400}
# A worker that is stopped for a while is not replaced before it is killed.
FLAGS = ("--dtype=float32", "--trust-gateways", "--max-kv-events=4096", "--hang-timeout=60s")


class Smg:
    """smg in a process of its own. Use as a context manager. `tokenizer` is a folder with the files of the model's tokenizer,
    where the servers have no such files; else smg gets the files from the servers."""

    def __init__(self, clusters, *flags, tokenizer=None):
        self.port, metrics = free_ports(2)
        self._log = tempfile.NamedTemporaryFile(prefix="smg_", suffix=".log")
        urls = [f"grpc://127.0.0.1:{cluster.grpc_port}" for cluster in clusters]
        command = [SMG, "launch", "--worker-urls", *urls, "--host", "127.0.0.1", "--port", str(self.port), "--prometheus-host",
                   "127.0.0.1", "--prometheus-port", str(metrics), "--health-check-interval-secs", "1", *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                                        start_new_session=True)
        try:
            if tokenizer:
                self.register(tokenizer)
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

    def register(self, folder):
        def accepted():
            try:
                return self.post("/v1/tokenizers", name="test-model", source=folder).status in (200, 202)
            except OSError:
                return False
        wait_until(accepted, 60, lambda: f"smg takes the tokenizer; log:\n{self.log()}", poll=0.3)

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


class Routes:
    """Cases that hold in front of one server and of several: each route with text and with a tool, whole and streamed. `smg` and
    `clusters` are of the class."""

    def good(self, reply):
        self.assertEqual(reply.status, 200, reply.text)
        return reply

    def both(self, ask):
        """The answers of ask(stream), whole and streamed: for each server one of each, since the servers take turns."""
        for stream in (False, True):
            for _ in self.clusters:
                with self.subTest(stream=stream):
                    yield stream, self.good(ask(stream))

    def check_call(self, name, arguments, reply):
        self.assertEqual(name, TOOL["name"], reply.text)
        self.assertEqual(set(arguments), {"days"}, reply.text)
        self.assertIn(arguments["days"], (1, 2, 3))

    def test_a_streamed_chat_is_the_whole_one(self):
        whole = self.good(self.smg.chat()).json["choices"][0]["message"]["content"]
        for stream, reply in self.both(lambda stream: self.smg.chat(stream=stream)):
            self.assertEqual(streamed_text(reply) if stream else reply.json["choices"][0]["message"]["content"], whole)

    def test_a_tool_is_called_in_a_chat(self):
        tools = [{"type": "function", "function": TOOL}]
        self.good(self.smg.chat(tools=tools))  # the model may call, and has random weights
        named = {"type": "function", "function": {"name": "get_weather"}}
        for stream, reply in self.both(lambda stream: self.smg.chat(tools=tools, tool_choice=named, stream=stream, **NO_LOOPS)):
            parts = ([chunk["choices"][0]["delta"] for chunk in events(reply) if chunk["choices"]] if stream
                     else [reply.json["choices"][0]["message"]])
            calls = [call["function"] for part in parts for call in part.get("tool_calls") or ()]
            self.assertEqual([call["name"] for call in calls if call.get("name")], ["get_weather"], reply.text)
            self.check_call("get_weather", json.loads("".join(call.get("arguments") or "" for call in calls)), reply)

    def test_responses(self):
        def ask(stream):
            return self.smg.post("/v1/responses", input="Hello", max_output_tokens=16, temperature=0, stream=stream)

        for stream, reply in self.both(ask):
            if stream:
                names = [event["type"] for event in events(reply)]
                self.assertEqual(names[0], "response.created")
                self.assertIn("response.output_text.delta", names)
                self.assertIn(names[-1], ("response.completed", "response.incomplete"))
            else:
                self.assertIn(reply.json["status"], ("completed", "incomplete"))
                self.assertGreater(reply.json["usage"]["output_tokens"], 0)

    def test_a_tool_is_called_in_a_response(self):
        def ask(stream):
            return self.smg.post("/v1/responses", input="Hello", max_output_tokens=400, temperature=0, stream=stream,
                                 tools=[{"type": "function", **TOOL}], tool_choice={"type": "function", "name": "get_weather"})

        for stream, reply in self.both(ask):
            if stream:
                told = events(reply)
                response = told[-1]["response"]
                pieces = [event["delta"] for event in told if event["type"] == "response.function_call_arguments.delta"]
                call, = (item for item in response["output"] if item["type"] == "function_call")
                self.assertEqual("".join(pieces), call["arguments"])
            else:
                response = reply.json
                call, = (item for item in response["output"] if item["type"] == "function_call")
            self.assertEqual(response["status"], "completed")
            self.check_call(call["name"], json.loads(call["arguments"]), reply)

    def test_messages(self):
        for stream, reply in self.both(lambda stream: self.smg.post("/v1/messages", messages=ASK, max_tokens=16, stream=stream)):
            if stream:
                names = [event["type"] for event in events(reply)]
                self.assertEqual((names[0], names[-1]), ("message_start", "message_stop"))
            else:
                self.assertEqual(reply.json["role"], "assistant")
                self.assertIn(reply.json["stop_reason"], ("end_turn", "max_tokens"))

    def test_a_tool_is_called_in_a_message(self):
        tool = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": WEATHER}

        def ask(stream):
            return self.smg.post("/v1/messages", messages=ASK, max_tokens=400, temperature=0, stream=stream, tools=[tool],
                                 tool_choice={"type": "tool", "name": "get_weather"})

        for stream, reply in self.both(ask):
            if stream:
                told = events(reply)
                block, = (event["content_block"] for event in told
                          if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use")
                given = json.loads("".join(event["delta"].get("partial_json", "") for event in told
                                           if event["type"] == "content_block_delta"))
                reason, = (event["delta"]["stop_reason"] for event in told if event["type"] == "message_delta")
            else:
                block, = (block for block in reply.json["content"] if block["type"] == "tool_use")
                given, reason = block["input"], reply.json["stop_reason"]
            self.assertEqual(reason, "tool_use")
            self.check_call(block["name"], given, reply)

    def test_a_worker_that_is_killed_costs_no_client_an_error(self):
        whole = self.good(self.smg.chat(max_tokens=400)).json["choices"][0]["message"]["content"]
        cluster = self.clusters[-1]
        recoveries = int(cluster.status()["num_recoveries"])
        done, answers = threading.Event(), []

        def ask(stream):
            while not done.is_set():
                try:
                    reply = self.smg.chat(max_tokens=400, stream=stream)
                    text = streamed_text(reply) if stream else reply.json["choices"][0]["message"]["content"]
                except Exception as error:  # an error of any kind is one that a client sees
                    return answers.append((type(error).__name__, str(error)))
                answers.append((reply.status, text))

        clients = [threading.Thread(target=ask, args=(index % 3 < 2,)) for index in range(6)]
        for client in clients:
            client.start()
        pid = cluster.worker_pids()[-1]
        try:
            wait_until(lambda: answers, 240, "requests are answered")
            os.kill(pid, signal.SIGSTOP)  # what runs in the server now cannot end before the kill
            wait_until(lambda: cluster.metric("vllm:num_requests_running") > 0, 30, "requests run in the server")
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: int(cluster.status()["num_recoveries"]) > recoveries, 60, "the server has recovered")
        finally:
            done.set()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # a worker that stayed stopped would hold the clients up
            for client in clients:
                client.join()
        self.assertEqual(set(answers), {(200, whole)})
        self.assertEqual(int(cluster.status()["num_recoveries"]), recoveries + 1)
        wait_until(lambda: self.smg.healthy() == len(self.clusters), 30, "smg sees all servers", poll=0.3)


class OneServer(Routes, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny(MODEL), *FLAGS, workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.clusters = [cls.cluster]
        cls.smg = Smg(cls.clusters)
        cls.addClassCleanup(cls.smg.__exit__)

    def test_the_chat_is_what_somnus_answers_itself(self):
        ours = self.cluster.request("POST", "/v1/chat/completions", {"messages": ASK, "temperature": 0, "max_tokens": 16}).json
        theirs = self.good(self.smg.chat()).json
        self.assertEqual(theirs["choices"][0]["message"]["content"], ours["choices"][0]["message"]["content"])
        self.assertEqual(theirs["choices"][0]["finish_reason"], ours["choices"][0]["finish_reason"])
        for count in ("prompt_tokens", "completion_tokens"):
            self.assertEqual(theirs["usage"][count], ours["usage"][count])

    def test_several_choices_and_log_probabilities(self):
        choices = self.good(self.smg.chat(n=3, temperature=1, logprobs=True, top_logprobs=2)).json["choices"]
        self.assertEqual(sorted(choice["index"] for choice in choices), [0, 1, 2])
        for choice in choices:
            self.assertGreater(len(choice["logprobs"]["content"]), 0)
            self.assertEqual(len(choice["logprobs"]["content"][0]["top_logprobs"]), 2)

    def test_a_schema_holds(self):
        form = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": WEATHER}}
        for stream in (False, True):
            reply = self.good(self.smg.chat(response_format=form, stream=stream, **NO_LOOPS))
            text = streamed_text(reply) if stream else reply.json["choices"][0]["message"]["content"]
            self.assertIn(json.loads(text)["days"], (1, 2, 3))

    def test_a_call_that_is_required_comes_first(self):
        """smg's schema of a required call lets a call have any further keys, so a model with random weights may find no end."""
        tools = [{"type": "function", "function": TOOL}]
        choice = self.good(self.smg.chat(tools=tools, tool_choice="required", **NO_LOOPS)).json["choices"][0]
        if choice["finish_reason"] == "length":
            self.assertTrue("".join(choice["message"]["content"].split()).startswith('[{"name":"get_weather"'), choice)
        else:
            self.assertEqual(choice["message"]["tool_calls"][0]["function"]["name"], "get_weather")

    def test_a_bad_request_stays_one(self):
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "array", "uniqueItems": True}}}
        reply = self.smg.chat(response_format=form)
        self.assertNotEqual(reply.status, 200)
        self.assertIn("uniqueItems", reply.text)
        self.good(self.smg.chat())

    def test_the_cache_is_flushed(self):
        reply = self.smg.request("POST", "/flush_cache")
        self.assertEqual(reply.status, 200, reply.text)

    def test_sleep_shows_as_not_ready(self):
        self.cluster.admin("/sleep?level=1")
        wait_until(lambda: self.smg.healthy() == 0, 30, "smg sees that the server sleeps", poll=0.3)
        self.assertEqual(self.smg.chat().status, 503)
        self.cluster.admin("/wake_up")
        wait_until(lambda: self.smg.healthy() == 1, 30, "smg sees that the server is awake", poll=0.3)
        self.good(self.smg.chat())


class TwoServers(Routes, unittest.TestCase):
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
        wait_until(lambda: self.smg.healthy() == 2, 30, "smg sees two servers", poll=0.3)
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


@unittest.skipUnless(os.path.exists(SMOLLM2), "SmolLM2 is not there (tools/setup.sh model)")
class SmolLm2(Routes, unittest.TestCase):
    """A GGUF file has no files of a tokenizer for smg, so smg is given them."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="smg_tokenizer_")
        cls.addClassCleanup(folder.cleanup)
        write_tokenizer(SMOLLM2, folder.name)
        cls.cluster = Cluster(SMOLLM2, "--trust-gateways", "--max-kv-events=4096", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.clusters = [cls.cluster]
        cls.smg = Smg(cls.clusters, "--disable-tokenizer-autoload", tokenizer=folder.name)
        cls.addClassCleanup(cls.smg.__exit__)

    def test_the_chat_is_what_somnus_answers_itself(self):
        body = {"messages": [{"role": "user", "content": "What is 17 + 25? Say it in words, naïve."}], "max_tokens": 24}
        ours = self.cluster.request("POST", "/v1/chat/completions", {**body, "temperature": 0}).json
        theirs = self.good(self.smg.chat(**body)).json
        self.assertEqual(theirs["choices"][0]["message"]["content"], ours["choices"][0]["message"]["content"])
        self.assertEqual(theirs["usage"]["prompt_tokens"], ours["usage"]["prompt_tokens"])


if __name__ == "__main__":
    unittest.main()

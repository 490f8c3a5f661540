"""Attacks over HTTP that brought other servers down (T1-T25, T31 of the list in docs/security.md).

After each attack the server answers a greedy request with the same text within ten seconds, file descriptors and memory are
back, and no error body has shown an address, a path or a stack.
"""
import json
import os
import re
import socket
import threading
import time
import unittest

from cluster.harness import ROOT, Cluster, tiny, together, wait_until
from cluster.harness.soak import open_files, rss_mib

LEAKS = re.compile(rb"0x[0-9a-fA-F]{6,}|/(?:home|root|tmp|usr|proc|dev|var)/|\.(?:cc|h|py):\d+|std::|terminate called|"
                   + re.escape(ROOT.encode()))
RECOVERY_S = 10
ALLOWED_GROWTH_MIB = 96  # buffers that the allocator keeps
VOCABULARY = 512


class Attack(unittest.TestCase):
    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny("qwen3"), "--dtype=float32", *cls.FLAGS, workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.pids = [cls.cluster.process.pid, *cls.cluster.worker_pids()]
        cls.greedy = cls.ask()
        cls.cluster.wait_idle()

    @classmethod
    def ask(cls, **fields):
        return cls.cluster.complete("The quick brown fox", max_tokens=16, ignore_eos=True, **fields)["choices"][0]["text"]

    def setUp(self):
        self.files = {pid: open_files(pid) for pid in self.pids}
        self.memory = {pid: rss_mib(pid) for pid in self.pids}

    def tearDown(self):
        start = time.monotonic()
        self.assertEqual(self.ask(), self.greedy)
        self.assertLess(time.monotonic() - start, RECOVERY_S)
        self.assertIsNone(self.cluster.process.poll())
        self.assertEqual(self.cluster.worker_pids(), self.pids[1:], "a worker was replaced")
        for pid in self.pids:
            wait_until(lambda: open_files(pid) <= self.files[pid] + 2, RECOVERY_S, f"file descriptors of {pid} are back")
            self.assertLess(rss_mib(pid), self.memory[pid] + ALLOWED_GROWTH_MIB)
        self.cluster.wait_idle(RECOVERY_S)

    def post(self, body, path="/v1/completions", headers=None):
        response = self.cluster.request("POST", path, body, headers)
        if response.status != 200:
            self.assertNotRegex(response.body, LEAKS)
        return response

    def refused(self, fields, path="/v1/completions", statuses=(400,), param=None):
        base = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
        response = self.post({"model": self.cluster.name, "max_tokens": 4, **base, **fields}, path)
        self.assertIn(response.status, statuses, f"{str(fields)[:120]}: {response.text[:200]}")
        if response.status == 400:
            error = response.json["error"]
            self.assertTrue(error["message"])
            if param:
                self.assertEqual(error["param"], param, error)
        return response

    def raw(self, data, timeout=15, half_close=False):
        """Sends raw bytes; returns the bytes that came back until the server closed or `timeout` passed."""
        with socket.create_connection(("127.0.0.1", self.cluster.port), timeout=timeout) as sock:
            try:
                sock.sendall(data)
                if half_close:
                    sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # refused before the server had read everything
            received = b""
            try:
                while piece := sock.recv(65536):
                    received += piece
            except OSError:
                pass
        self.assertNotRegex(received, LEAKS)
        return received

    def status_of(self, received):
        found = re.match(rb"HTTP/1\.[01] (\d+)", received)
        return int(found.group(1)) if found else 0

    def head(self, *lines, method="POST", path="/v1/completions"):
        fields = "".join(f"{line}\r\n" for line in ("Host: x", "Connection: close", "Content-Type: application/json", *lines))
        return f"{method} {path} HTTP/1.1\r\n{fields}\r\n".encode()


class Fields(Attack):
    def test_t1_empty_prompts(self):
        for prompt in ("", [], [[]], [""], None):
            self.refused({"prompt": prompt})
        self.refused({"messages": []}, "/v1/chat/completions", param="messages")

    def test_t2_huge_counts(self):
        before = rss_mib(self.pids[0])
        for field in ("n", "best_of"):
            for value in (2**31, 10**18, -1, 10**9):
                start = time.monotonic()
                if field == "n":
                    self.refused({field: value}, param=field)
                else:
                    self.assertIn(self.post({"model": self.cluster.name, "prompt": "x", "max_tokens": 1, field: value}).status,
                                  (200, 400))
                self.assertLess(time.monotonic() - start, 5)
        self.assertLess(rss_mib(self.pids[0]), before + 16)

    def test_t3_a_million_prompts(self):
        self.refused({"prompt": ["x"] * 1_000_000}, statuses=(400, 413))

    def test_t3_hundreds_of_thousands_of_messages(self):
        """Their values take up to sixty times the bytes of the body; tearDown looks at what is left of them."""
        turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}] * 100_000
        for path, fields in (("/v1/chat/completions", {"messages": turns}), ("/v1/chat/completions/render", {"messages": turns}),
                             ("/v1/responses", {"input": turns}), ("/v1/messages", {"max_tokens": 4, "messages": turns}),
                             ("/v1/messages/count_tokens", {"messages": turns}), ("/v1/embeddings", {"input": ["x"] * 200_000})):
            with self.subTest(path=path):
                self.assertEqual(self.post({"model": self.cluster.name, **fields}, path).status, 400)

    def test_t4_fifty_megabytes_of_text(self):
        self.refused({"prompt": "a" * 50_000_000}, statuses=(400, 413))

    def test_t4_a_prompt_just_below_the_body_limit(self):
        start = time.monotonic()
        self.refused({"prompt": "a b" * 2_000_000})
        self.assertLess(time.monotonic() - start, 30)

    def hostile_grammars(self):
        """Forms that are refused, and forms that are refused or served."""
        loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
        wide = {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(100_000)}}
        refused = ({"json": {"type": "nope"}}, {"json": "{"}, {"json": loop}, {"json": wide}, {"json": {"not": {"format": "x"}}},
                   {"json": '{"items":' * 5_000 + "{}" + "}" * 5_000}, {"regex": "(" * 60_000},
                   {"regex": "(" * 60_000 + ")" * 60_000},
                   {"grammar": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000}, {"structural_tag": {"type": "nope"}})
        others = ({"json": {"enum": [f"value {i}" for i in range(3_000)]}}, {"regex": "(a{1,1000}){1,1000}"},
                  {"regex": "((a+)+)+" * 50})
        return refused, others

    def test_t9_to_t11_grammars_that_take_too_much(self):
        refused, others = self.hostile_grammars()
        for form in refused:
            start = time.monotonic()
            self.refused({"structured_outputs": form})
            self.assertLess(time.monotonic() - start, 30)
        self.refused({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nope"}}}},
                     "/v1/chat/completions")
        for form in others:
            start = time.monotonic()
            reply = self.post({"model": self.cluster.name, "prompt": "x", "max_tokens": 2, "structured_outputs": form})
            self.assertIn(reply.status, (200, 400))
            self.assertLess(time.monotonic() - start, 30)

    def test_t9_to_t11_a_stream_goes_on_beside_such_grammars(self):
        """One stream follows the other while the grammars are sent: each has the same tokens as alone."""
        body = {"prompt": "The quick brown fox", "max_tokens": 200, "ignore_eos": True}
        alone = self.cluster.tokens(**body)
        sent, beside = threading.Event(), []

        def send():
            try:
                for form in sum(self.hostile_grammars(), ()):
                    self.post({"model": self.cluster.name, "prompt": "x", "max_tokens": 2, "structured_outputs": form})
            finally:
                sent.set()

        sender = threading.Thread(target=send)
        sender.start()
        try:
            while not sent.is_set():
                stream = self.cluster.open_stream(return_token_ids=True, **body)
                beside.append([token for event in stream.events() for choice in event["choices"]
                               for token in choice["token_ids"] or []])
        finally:
            sender.join()
        self.assertGreater(len(beside), 0)
        for tokens in beside:
            self.assertEqual(tokens, alone)

    def hostile_tools(self):
        """Path, fields and the field that the refusal names; all are refused."""
        many, chat = 100_000, "/v1/chat/completions"
        def functions(count, **more):
            return [{"type": "function", "function": {"name": f"f{i}", "parameters": {}, **more}} for i in range(count)]
        tag = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f"], "tags": [
            {"begin": f"<f{i}>", "content": {"type": "json_schema", "json_schema": {"type": "null"}}, "end": "</f>"}
            for i in range(20_000)]}}
        old = {"type": "structural_tag", "triggers": ["<f"],
               "structures": [{"begin": f"<f{i}>", "schema": {"type": "null"}, "end": "</f>"} for i in range(20_000)]}
        flat = [{"type": "function", **tool["function"]} for tool in functions(many)]
        named = [{"name": f"f{i}", "input_schema": {"type": "object"}} for i in range(many)]
        return ((chat, {"tools": functions(many, strict=True)}, "tools"),
                (chat, {"tools": functions(many)}, "tools"),
                (chat, {"tools": functions(many), "tool_choice": "required"}, "tools"),
                (chat, {"tools": functions(1, parameters={"enum": ["x"] * 100_000}, strict=True)}, "tools"),
                (chat, {"response_format": tag}, "response_format"),
                (chat, {"response_format": old}, "response_format"),
                ("/v1/completions", {"structured_outputs": {"structural_tag": json.dumps(tag)}}, "structured_outputs"),
                ("/v1/completions", {"structured_outputs": {"structural_tag": "[" * 5_000_000}}, "structured_outputs"),
                ("/v1/completions", {"structured_outputs": {"choice": ["x" * 500] * 9_000}}, "structured_outputs"),
                ("/v1/responses", {"input": "x", "tools": flat}, "tools"),
                ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "tools": named}, "tools"))

    def test_t9_to_t11_tools_that_take_too_much(self):
        """Each is refused by name, twice, beside streams that have the tokens that they have alone; no refused source stays."""
        body = {"prompt": "The quick brown fox", "max_tokens": 200, "ignore_eos": True}
        alone = self.cluster.tokens(**body)
        sent, beside = threading.Event(), []

        def watch():
            while not sent.is_set():
                stream = self.cluster.open_stream(return_token_ids=True, **body)
                beside.append([token for event in stream.events() for choice in event["choices"]
                               for token in choice["token_ids"] or []])

        watcher = threading.Thread(target=watch)
        watcher.start()
        cached = self.cluster.metric("somnus:grammar_cache_bytes")
        try:
            for path, fields, param in self.hostile_tools() * 2:
                with self.subTest(path=path, fields=str(fields)[:80]):
                    reply = self.post({"model": self.cluster.name, **({} if "responses" in path else {"max_tokens": 4}), **(
                        {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else
                        {"prompt": "x"} if "completions" in path else {}), **fields}, path)
                    self.assertEqual(reply.status, 400, reply.text[:200])
                    error = reply.json["error"]
                    if path == "/v1/messages":  # whose errors have no param
                        self.assertIn(param, error["message"])
                    else:
                        self.assertEqual(error["param"], param, error)
        finally:
            sent.set()
            watcher.join()
        self.assertLess(self.cluster.metric("somnus:grammar_cache_bytes"), cached + 65536)
        self.assertGreater(len(beside), 0)
        for tokens in beside:
            self.assertEqual(tokens, alone)

    def test_t12_deep_json(self):
        for text in ("[" * 1_000_000, '{"a":' * 1_000_000, '{"model":"m","prompt":"x","user":' + "[" * 100_000 + "]" * 100_000 + "}",
                     '{"prompt":"x","ignored":' + '{"a":' * 10_000 + "1" + "}" * 10_001):
            self.assertEqual(self.post(text.encode()).status, 400)

    def test_t13_every_number_with_every_bad_value(self):
        integers = ("max_tokens", "min_tokens", "n", "top_k", "logprobs", "prompt_logprobs", "truncate_prompt_tokens")
        numbers = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
        unbounded = ("repetition_penalty", "top_k")  # any finite number above the lower bound
        for field in integers + numbers:
            for value in ("-9223372036854775809", "99999999999999999999", "1e400", '"x"', "[]", "{}", "-1e400"):
                if field in unbounded and value == "99999999999999999999":
                    continue
                body = f'{{"model":"{self.cluster.name}","prompt":"x","{field}":{value}}}'
                with self.subTest(field=field, value=value):
                    self.assertEqual(self.post(body.encode()).status, 400)
        for field in integers:
            for value in (-2**31, 2**31 - 1, 2**53 + 1, True, 1.5):
                body = {"model": self.cluster.name, "prompt": "x", "max_tokens": 2, field: value}
                with self.subTest(field=field, value=value):
                    self.assertIn(self.post(body).status, (200, 400))

    def test_t15_token_ids_out_of_range(self):
        for bad in (-1, VOCABULARY, VOCABULARY + 1, 2**31, 2**63):
            self.refused({"prompt": [5, bad]})
            self.refused({"logit_bias": {str(bad): 1}})
            self.refused({"allowed_token_ids": [bad]})
            self.assertIn(self.post({"model": self.cluster.name, "prompt": "x", "max_tokens": 2, "stop_token_ids": [bad]}).status,
                          (200, 400))

    def test_t15_neighbours_are_not_touched(self):
        stream = self.cluster.open_stream("The quick brown fox", max_tokens=16)
        for _ in range(20):
            self.post({"model": self.cluster.name, "prompt": [5, 6], "max_tokens": 4, "logit_bias": {"7": 100, "8": -100}})
            self.refused({"logit_bias": {str(VOCABULARY): 100}})
        text = "".join(choice["text"] for event in stream.events() for choice in event["choices"])
        self.assertEqual(text, self.greedy)

    def test_t16_not_a_number(self):
        for field in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
            for value in ("NaN", "Infinity", "-Infinity", "1e999"):
                body = f'{{"model":"{self.cluster.name}","prompt":"x","{field}":{value}}}'
                self.assertEqual(self.post(body.encode()).status, 400, f"{field} {value}")
        for fields in ({"top_p": 0}, {"presence_penalty": 2.0001}, {"frequency_penalty": -2.0001}, {"repetition_penalty": 0}):
            self.refused(fields, param=next(iter(fields)))

    def test_t17_echo_without_new_tokens(self):
        body = {"model": self.cluster.name, "prompt": "Hello", "echo": True, "max_tokens": 0, "logprobs": 2}
        response = self.post(body)
        self.assertIn(response.status, (200, 400))

    def test_t19_special_tokens_typed_as_text(self):
        with open(os.path.join(tiny("qwen3"), "tokenizer.json"), encoding="utf-8") as file:
            added = [token["content"] for token in json.load(file)["added_tokens"]]
        for text in added + ["".join(added) * 5, "<|im_start|>", "<|endoftext|>", "[INST]", "<s>", "</s>"]:
            self.assertEqual(self.post({"model": self.cluster.name, "prompt": text, "max_tokens": 2}).status, 200)
            chat = {"model": self.cluster.name, "max_tokens": 2, "messages": [{"role": "user", "content": text}]}
            self.assertEqual(self.post(chat, "/v1/chat/completions").status, 200)

    def test_t20_templates_from_a_request_are_refused(self):
        for template in ("{% for i in range(10**9) %}x{% endfor %}", "{{ ''.__class__.__mro__ }}"):
            self.refused({"chat_template": template}, "/v1/chat/completions")

    def test_t21_urls_are_never_fetched(self):
        for part in ({"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}},
                     {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
                     {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}):
            refused = self.refused({"messages": [{"role": "user", "content": [part]}]}, "/v1/chat/completions")
            self.assertIn(f"parts of type {part['type']} are not supported", refused.json["error"]["message"])

    def test_t22_cache_salt_isolates(self):
        prompt = list(range(10, 110))
        def cached(**fields):
            usage = self.cluster.complete(prompt, max_tokens=1, **fields)["usage"]
            return (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        cached(cache_salt="one")
        self.assertEqual(cached(cache_salt="two"), 0)
        hits = self.cluster.metric("vllm:prefix_cache_hits_total")
        cached(cache_salt="three")
        self.assertEqual(self.cluster.metric("vllm:prefix_cache_hits_total"), hits)
        self.refused({"cache_salt": ""})

    def test_t31_bad_text(self):
        for body in (b'{"model":"m","prompt":"\xff\xfe"}', b'{"prompt":"\xed\xa0\x80"}', b"\x00" * 100, b"", b"{", b'"', b"null",
                     b"[1]", b'{"prompt":"x"}{"prompt":"y"}'):
            self.assertEqual(self.post(body).status, 400, body)
        for prompt in (r"\ud800", r"\udc00\ud800", r"\u0000"):
            body = f'{{"model":"{self.cluster.name}","prompt":"a{prompt}b","max_tokens":2}}'
            self.assertIn(self.post(body.encode()).status, (200, 400))


class Neighbours(Attack):
    CACHE = 304  # tokens, in 19 blocks of 16; the context is as long
    FLAGS = (f"--kv-cache-memory-bytes={20 * 8192}",)
    # Requests, and the words of their answers.
    IMPOSSIBLE = (
        ({"prompt": ""}, "prompt must not be empty"),
        ({"prompt": []}, "prompt must be a non-empty string or list"),
        ({"n": 10**9}, "n must be at most 128"),
        ({"prompt": [5, VOCABULARY]}, "prompt ids must be in [0, 512)"),
        ({"prompt": [5, -1]}, "prompt ids must be in [0, 512)"),
        ({"logit_bias": {str(VOCABULARY): 100}}, "logit_bias must have token ids in [0, 512) as keys"),
        ({"prompt": together.prompt(3, 30), "use_beam_search": True, "n": 8, "max_tokens": 50},
         "n: 8 beams of 80 tokens can never fit in the KV cache of 304 tokens"),
        ({"prompt": together.prompt(3, CACHE)}, "The prompt has 304 tokens; with at least one of output it must fit the context of 304"),
    )

    def test_t1_t2_t15_a_stream_goes_on_beside_what_is_impossible(self):
        body = {"prompt": together.prompt(7, 40), "max_tokens": 250, "ignore_eos": True}
        alone = self.cluster.tokens(**body)
        beside = set()  # requests that were refused while the stream ran
        for _ in range(20):
            stream = self.cluster.open_stream(return_token_ids=True, **body)
            events = stream.events()
            tokens = list(next(events)["choices"][0]["token_ids"])
            for index in sorted(range(len(self.IMPOSSIBLE)), key=lambda index: index in beside):
                fields, message = self.IMPOSSIBLE[index]
                self.assertEqual(self.refused(fields).json["error"]["message"], message)
                if self.cluster.metric("vllm:num_requests_running") == 1:
                    beside.add(index)
            tokens += [token for event in events for choice in event["choices"] for token in choice["token_ids"] or []]
            stream.close()
            self.assertEqual(tokens, alone)
            if len(beside) == len(self.IMPOSSIBLE):
                return
        self.fail(f"the stream had ended before the others were refused: {beside}")


class Wire(Attack):
    BODY = b'{"prompt":"x","max_tokens":1}'

    def test_t5_huge_headers(self):
        for size in (100_000, 10_000_000):
            self.assertIn(self.status_of(self.raw(self.head(f"X-Long: {'a' * size}"))), (0, 400, 431))
        self.assertIn(self.status_of(self.raw(self.head(*(f"X-{i}: y" for i in range(10_000))))), (0, 400, 431))
        self.assertIn(self.status_of(self.raw(b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")), (0, 400, 404, 414, 431))

    def test_t6_tiny_chunks(self):
        head = self.head("Transfer-Encoding: chunked")
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in b" " * 500_000 + self.BODY)
        self.assertIn(self.status_of(self.raw(head + chunks + b"0\r\n\r\n", timeout=60)), (200, 400, 413))

    def test_t6_broken_chunks(self):
        head = self.head("Transfer-Encoding: chunked")
        for chunks in (b"zz\r\nabc\r\n0\r\n\r\n", b"-1\r\nabc\r\n", b"ffffffffffffffff\r\nabc", b"5\r\nab"):
            self.assertIn(self.status_of(self.raw(head + chunks, half_close=True)), (0, 400, 413))
        both = self.head("Transfer-Encoding: chunked", "Content-Length: 5")
        self.assertIn(self.status_of(self.raw(both + b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n")), (0, 400))

    def test_t7_content_length(self):
        for length in (2**63, 2**64, 10**30, 64 * 2**20 + 1, -1, "x"):
            received = self.raw(self.head(f"Content-Length: {length}") + self.BODY, half_close=True)
            self.assertIn(self.status_of(received), (0, 400, 413))

    def test_t31_slow_clients_do_not_block_others(self):
        slow = [socket.create_connection(("127.0.0.1", self.cluster.port)) for _ in range(200)]
        try:
            for sock in slow:
                sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHo")
            self.assertEqual(self.ask(), self.greedy)
        finally:
            for sock in slow:
                sock.close()

    def test_t31_half_sent_body(self):
        for _ in range(50):
            self.raw(self.head("Content-Length: 1000") + b'{"prompt":', half_close=True, timeout=5)

    def test_t31_reset_storm(self):
        for number in range(300):
            sock = socket.create_connection(("127.0.0.1", self.cluster.port))
            body = b'{"prompt":"x","max_tokens":400,"stream":true,"ignore_eos":true}'
            sock.sendall((self.head(f"Content-Length: {len(body)}") + body)[:number * 2 + 1])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.close()

    def test_t31_pipelining(self):
        one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        received = self.raw(one * 2000 + last, timeout=30)
        self.assertGreaterEqual(received.count(b"HTTP/1.1 200"), 1)

    def test_t31_strange_requests(self):
        expect = self.head("Expect: 100-continue", f"Content-Length: {len(self.BODY)}") + self.BODY
        self.assertIn(b" 200 ", self.raw(expect))
        for data in (b"GET /\r\n\r\n", b"\x00\x01\x02\x03\r\n\r\n", b"GET /\x00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                     b"G" * 100_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET http://evil/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                     b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"\r\n" * 10_000,
                     b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\nConnection: close\r\n\r\n"):
            received = self.raw(data, half_close=True)
            self.assertNotIn(self.status_of(received), (200, 500), data[:40])

    def test_t31_a_stream_that_is_not_read(self):
        body = b'{"prompt":"x","max_tokens":400,"stream":true,"ignore_eos":true,"n":8,"logprobs":5}'
        unread = [socket.create_connection(("127.0.0.1", self.cluster.port)) for _ in range(8)]
        try:
            for sock in unread:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.sendall(self.head(f"Content-Length: {len(body)}") + body)
            self.assertEqual(self.ask(), self.greedy)
        finally:
            for sock in unread:
                sock.close()

    def test_wrong_content_type(self):
        self.assertEqual(self.post(self.BODY, headers={"Content-Type": "text/plain"}).status, 415)


class Keys(Attack):
    FLAGS = ("--api-key=secret",)

    @classmethod
    def ask(cls, **_):
        body = {"model": cls.cluster.name, "prompt": "The quick brown fox", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        response = cls.cluster.request("POST", "/v1/completions", body, {"Authorization": "Bearer secret"})
        return response.json["choices"][0]["text"]

    def test_t25_every_route_wants_the_key(self):
        body = {"model": self.cluster.name, "prompt": "x", "messages": [{"role": "user", "content": "x"}], "tokens": [5]}
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer secret "[:-2]}, {"Authorization": "secret"},
                        {"Authorization": "Bearer "}, {"Authorization": "Basic c2VjcmV0"}):
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
                with self.subTest(path=path, headers=headers):
                    self.assertEqual(self.post(body, path, headers).status, 401)
            self.assertEqual(self.cluster.request("GET", "/v1/models", headers=headers).status, 401)
        self.assertEqual(self.cluster.request("GET", "/health").status, 200)

    def test_t25_operators_routes_are_on_loopback(self):
        with open("/proc/net/tcp", encoding="ascii") as table:
            bound = {line.split()[1] for line in table.readlines()[1:] if line.split()[3] == "0A"}
        self.assertIn(f"0100007F:{self.cluster.admin_port:04X}", bound)

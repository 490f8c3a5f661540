"""Attacks beyond the threat list: floods of idle connections, half-closed and unread sockets, other protocols at every
port, aborted and dripped uploads, smuggled requests, lists and numbers of absurd size.

As in attacks_test: after each attack the same greedy text within ten seconds, files and memory back, no leak in an error.
"""
import json
import os
import socket
import time

from cluster.attacks_test import Attack

TLS_HELLO = bytes.fromhex("16030100c5010000c10303") + bytes(range(190))
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


class Sockets(Attack):
    FLAGS = ("--max-connections=256", "--linger-silence=200ms")

    def connect(self, port=None):
        return socket.create_connection(("127.0.0.1", port or self.cluster.port), timeout=30)

    def open_many(self, count, data=b""):
        opened = []
        self.addCleanup(lambda: [sock.close() for sock in opened])
        for _ in range(count):
            sock = self.connect()
            try:
                sock.sendall(data)
            except OSError:
                pass  # closed already, to make room
            opened.append(sock)
        return opened

    def close(self, opened):
        for sock in opened:
            sock.close()

    def test_idle_connections_do_not_keep_others_out(self):
        opened = self.open_many(1000)
        self.assertEqual(self.ask(), self.greedy)
        self.close(opened)

    def test_slow_heads_and_bodies_do_not_keep_others_out(self):
        for data in (b"POST /v1/completions HTTP/1.1\r\nHo", self.head("Content-Length: 1000") + b"{"):
            opened = self.open_many(600, data)
            self.assertEqual(self.ask(), self.greedy)
            self.close(opened)

    def test_half_closed_after_a_whole_request(self):
        body = b'{"prompt":"x","max_tokens":400,"ignore_eos":true}'
        for _ in range(100):
            with self.connect() as sock:
                sock.sendall(self.head(f"Content-Length: {len(body)}") + body)
                sock.shutdown(socket.SHUT_WR)
        self.cluster.wait_idle(10)

    def test_uploads_that_are_aborted(self):
        for number in range(40):
            with self.connect() as sock:
                sock.sendall(self.head("Content-Length: 30000000") + b'{"prompt":"' + b"a" * 400_000)
                if number % 2:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def test_a_hundred_megabytes_in_drips(self):
        with self.connect() as sock:
            sock.sendall(self.head("Transfer-Encoding: chunked"))
            chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
            sent = 0
            try:
                while sent < 100 << 20:
                    sock.sendall(chunk)
                    sent += 65536
            except OSError:
                pass  # refused, and no longer read
            self.assertLess(sent, 100 << 20)
        self.assertEqual(self.status_of(self.raw(self.head("Content-Length: 104857600") + b"{")), 413)

    def test_answers_that_nobody_reads(self):
        one = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
        opened = self.open_many(50)
        for sock in opened:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            try:
                for _ in range(100):
                    sock.send(one * 100)
            except BlockingIOError:
                pass
        self.assertEqual(self.ask(), self.greedy)
        self.close(opened)

    def test_other_protocols_at_every_port(self):
        for port in (self.cluster.port, self.cluster.admin_port, self.cluster.grpc_port, self.cluster.control_port):
            for data in (TLS_HELLO, HTTP2_PREFACE, b"SSH-2.0-x\r\n", b"\x00" * 4096, os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n", b"\n"):
                with self.connect(port) as sock:
                    sock.settimeout(0.3)
                    try:
                        sock.sendall(data)
                        self.assertNotRegex(sock.recv(65536), rb"0x[0-9a-f]{8}|/root/|std::")
                    except OSError:
                        pass
        self.assertTrue(self.cluster.status()["state"])

    def test_one_message_that_is_two(self):
        smuggled = b"GET /nope HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        for fields in (("Transfer-Encoding : chunked", f"Content-Length: {len(smuggled)}"),
                       ("Transfer-Encoding: chunked", "Content-Length: 4"), ("Content-Length: 4", "Content-Length: 40"),
                       ("Transfer-Encoding: identity, chunked", "Content-Length: 3"), ("Content-Length: +4",), ("Content-Length: 4 4",),
                       ("Transfer-Encoding: xchunked",), ("Content-Length: 0x10",)):
            received = self.raw(self.head(*fields) + b"0\r\n\r\n" + smuggled, half_close=True, timeout=5)
            self.assertNotIn(self.status_of(received), (200, 500), fields)
            self.assertNotIn(b" 404 ", received, fields)

    def test_chunks_with_endless_extensions_and_trailers(self):
        head = self.head("Transfer-Encoding: chunked")
        for tail in (b"1;" + b"a" * 5_000_000, b"0\r\n" + b"X: y\r\n" * 500_000, b"1\r\n \r\n" * 10 + b"1;a=" + b'"' * 5_000_000):
            self.assertIn(self.status_of(self.raw(head + tail, half_close=True)), (0, 400, 413, 431))


class Bodies(Attack):
    def test_lists_of_absurd_length(self):
        ids = list(range(10)) * 10_000
        for fields in ({"stop": ["s%d" % i for i in range(100_000)]}, {"stop": "a" * 1_000_000}, {"stop_token_ids": ids},
                       {"bad_words": ["w%d" % i for i in range(100_000)]}, {"logit_bias": {str(i): 1 for i in range(100_000)}}):
            self.refused(fields, param=next(iter(fields)))
        self.assertIn(self.post({"model": self.cluster.name, "prompt": "x", "max_tokens": 1, "allowed_token_ids": ids}).status, (200, 400))

    def test_stop_strings_that_look_like_patterns(self):
        for stop in ("(a+)+$", ".*" * 50, "[" * 1000, "\\", "((((a{1,1000}){1,1000}){1,1000})"):
            body = {"model": self.cluster.name, "prompt": "The quick brown fox", "max_tokens": 16, "temperature": 0, "ignore_eos": True,
                    "stop": stop}
            self.assertEqual(self.post(body).json["choices"][0]["text"], self.greedy)

    def test_more_prompt_logprobs_than_fit_in_memory(self):
        self.refused({"prompt": [[5] * 500] * 1000, "prompt_logprobs": 20, "max_tokens": 1}, param="prompt_logprobs")
        self.refused({"prompt": [[5] * 500] * 1000, "echo": True, "logprobs": 20, "max_tokens": 1}, param="logprobs")

    def test_keys_by_the_million(self):
        for body in (b'{"prompt":"x","max_tokens":1,' + b",".join(b'"k%d":1' % i for i in range(400_000)) + b"}",
                     b'{"prompt":"x","max_tokens":1' + b',"max_tokens":1' * 400_000 + b"}",
                     b'{"prompt":"x","a":[' + b"[]," * 3_000_000 + b"[]]}"):
            self.assertIn(self.post(body).status, (200, 400))

    def test_numbers_with_a_million_digits(self):
        for field in ("max_tokens", "temperature", "seed", "n", "unknown"):
            for number in (b"9" * 1_000_000, b"1e" + b"9" * 1_000_000, b"0." + b"0" * 1_000_000 + b"1", b"-" * 1000):
                status = self.post(b'{"model":"%s","prompt":"x","max_tokens":1,"%s":%s}'
                                   % (self.cluster.name.encode(), field.encode(), number)).status
                self.assertIn(status, (200, 400), (field, number[:10]))

    def test_text_that_is_hard_to_tokenize(self):
        for piece in ("a", " ", "\n", "0", "'", "é", "e\u0301", "\u0301", "😀", "\u200d", "가", "\u1100", "<|", "<|im_start|>", "\ufdfa", "aA", "ẛ̣"):
            text = piece * (1_000_000 // len(piece.encode()))
            start = time.monotonic()
            self.assertEqual(self.post({"prompt": text}, "/tokenize").status, 200, piece)
            self.post({"prompt": text, "max_tokens": 1})
            self.assertLess(time.monotonic() - start, 20, piece)

    def test_detokenizing_a_million_tokens(self):
        self.assertEqual(self.post({"tokens": [5] * 900_000}, "/detokenize").status, 200)

    def test_conversations_of_absurd_length(self):
        messages = [{"role": "user", "content": "x"}] * 100_000
        for path in ("/v1/chat/completions", "/tokenize"):
            self.assertEqual(self.post({"model": self.cluster.name, "messages": messages}, path).status, 400)
        many = {"type": "function", "function": {"name": "f", "parameters": {str(i): {} for i in range(50_000)}}}
        self.refused({"tools": [many], "tool_choice": "none"}, "/v1/chat/completions", param="tools")
        self.refused({"chat_template_kwargs": {"x": {str(i): i for i in range(50_000)}}}, "/v1/chat/completions")

    def test_header_values_come_back_as_json(self):
        for value in ('"quoted"', "\\", "a" * 5000, "<script>", "\x7f\t\xff"):
            response = self.cluster.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1}, {"X-Request-Id": value})
            self.assertIn(response.status, (200, 400))
            json.loads(response.body)

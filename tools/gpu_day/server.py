"""`somnus serve` with one worker, and a client of the server."""
import http.client
import json
import os
import re
import signal
import subprocess
import time

import events
import logs

START_S, STOP_S, ANSWER_S = 120, 20, 300
NAME = "day"


def free_ports(count):
    import free_port  # of tools/bench/peers, which kits.current() has made known
    ports = set()
    while len(ports) < count:
        ports.add(free_port.free_port())
    return list(ports)


class Server:
    """A context manager that ends the server. `log` is the name of the server's log among the kit's."""

    def __init__(self, kit, model, *flags, log, env=None):
        self.kit, self.log = kit, kit.log(log)
        self.port, self.admin_port, grpc_port, control_port = free_ports(4)
        command = [kit.path("tools", "somnus"), "serve", model, "--worker-binary", kit.path("worker", "worker"), "--workers=local:1",
                   "--port", str(self.port), "--admin-port", str(self.admin_port), "--grpc-port", str(grpc_port), "--control-port",
                   str(control_port), "--served-model-name", NAME, *flags]
        began = time.monotonic()
        with kit.open_log(log) as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=kit.environment(**(env or {})))
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise
        self.ready_seconds = time.monotonic() - began

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _wait_ready(self):
        deadline = time.monotonic() + START_S
        while True:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise events.Failed(f"the server did not start: {self.last_words()}")
            try:
                if self.request("GET", "/health", timeout=5)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)

    def last_words(self):
        return " | ".join(logs.text(self.log).splitlines()[-3:])[-600:]

    def request(self, method, path, body=None, timeout=ANSWER_S, port=None):
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=timeout)
        try:
            connection.request(method, path, body=None if body is None else json.dumps(body),
                               headers={} if body is None else {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def admin(self, path):
        """An operator's POST, as JSON."""
        status, body = self.request("POST", path, port=self.admin_port)
        if status != 200:
            raise events.Failed(f"{path}: HTTP {status}: {body[:300].decode(errors='replace')}")
        return json.loads(body)

    def complete(self, prompt, tokens, **fields):
        """The choice of a greedy answer of exactly so many tokens."""
        status, body = self.request("POST", "/v1/completions", {
            "model": NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
            **fields})
        if status != 200:
            raise events.Failed(f"a completion: HTTP {status}: {body[:300].decode(errors='replace')}")
        return json.loads(body)["choices"][0]

    def stream(self, prompt, tokens):
        """Yields the lists of token ids of a greedy answer as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            connection.request("POST", "/v1/completions", headers={"Content-Type": "application/json"}, body=json.dumps({
                "model": NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
                "stream": True}))
            answer = connection.getresponse()
            if answer.status != 200:
                raise events.Failed(f"a stream: HTTP {answer.status}: {answer.read(300).decode(errors='replace')}")
            for line in answer:
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[len(b"data: "):]).get("choices", []):
                        if choice.get("token_ids"):
                            yield choice["token_ids"]
        finally:
            connection.close()

    def metric(self, name):
        """The sum of a metric's series."""
        text = self.request("GET", "/metrics")[1].decode()
        return sum(float(value) for value in re.findall(rf"(?m)^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text))

    def status(self):
        done = subprocess.run([self.kit.path("tools", "somnus"), "status", "--json"], capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL, env=self.kit.environment(SOMNUS_URL=f"http://127.0.0.1:{self.port}"))
        if done.returncode != 0:
            raise events.Failed(f"somnus status: {done.stderr.strip()[-300:]}")
        return json.loads(done.stdout)

    def worker_pid(self):
        return int(self.status()["ranks"][0]["pid"])

    def resident_bytes(self):
        return sum(int(count) for rank in self.status()["ranks"] for count in rank["bytes_by_tag"].values())


def mapped_library(pid, name):
    """The file of a library that a process has opened, or None."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return next((line.split()[-1] for line in file if os.path.basename(line.split()[-1]).startswith(name)), None)
    except OSError:
        return None

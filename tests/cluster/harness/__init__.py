"""A whole cluster in real processes, and a plain HTTP client, for the tests of this folder.

Binaries come from bazel-bin, or from the folder that SOMNUS_BIN names.
"""
import http.client
import json
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import time

from cluster.harness import control

try:
    import grpc
except ImportError:
    grpc = None  # cases that need the program are skipped

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
BIN = os.environ.get("SOMNUS_BIN", os.path.join(ROOT, "bazel-bin"))
SOMNUS = os.path.join(BIN, "tools", "somnus")
WORKER = os.path.join(BIN, "worker", "worker")
TINY = os.path.join(ROOT, "tests", "data", "tiny")
SMOLLM2 = os.environ.get("SOMNUS_MODEL", os.path.expanduser("~/.cache/somnus/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60


def tiny(name):
    return os.path.join(TINY, name)


def expected(name):
    with open(os.path.join(TINY, name, "expected.json"), encoding="utf-8") as file:
        return json.load(file)["cases"]


def first_ephemeral_port():
    """The kernel gives this port and higher ports to outgoing connections."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        return int(file.read().split()[0])


def free_ports(count):
    """Distinct ports that were free a moment ago. Outgoing connections never get such a port, but another server may take a
    port before the caller binds it. Suites that run at once (SOMNUS_TEST_SLOT) choose from different ports."""
    slot, slots = map(int, os.environ.get("SOMNUS_TEST_SLOT", "0/1").split("/"))
    sockets = []
    try:
        while len(sockets) < count:
            one = socket.socket()
            sockets.append(one)
            try:
                one.bind(("127.0.0.1", random.randrange(10000 + slot, max(first_ephemeral_port(), 20000), slots)))
            except OSError:
                sockets.pop().close()
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def children(pid):
    """All live descendants of a process."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                for child in map(int, file.read().split()):
                    found += [child] + children(child)
    except OSError:
        pass  # the process has ended meanwhile
    return found


def alive(pid):
    """Whether the process runs: neither gone nor a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def wait_until(condition, timeout, what, poll=0.05):
    """The first true value of condition(); AssertionError after `timeout` seconds. `what` is text, or makes it then."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what() if callable(what) else what}")
        time.sleep(poll)


def begin_and_stop(pid, begin, under_way, finish):
    """The work of begin(), with the process stopped (SIGSTOP) while the work is under way. A fast server may have been done with
    the work before: then the work is finished and begun again."""
    for _ in range(100):
        work = begin()
        os.kill(pid, signal.SIGSTOP)
        if under_way():
            return work
        os.kill(pid, signal.SIGCONT)
        finish(work)
    raise AssertionError("it ended each time before the process could be stopped")


class Response:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def text(self):
        return self.body.decode("utf-8", errors="replace")


class Cluster:
    """`somnus serve` with its workers. Use as a context manager; leaving the context kills all processes that still run.

    `log` is a descriptor that takes the log instead of what log() reads.
    `prefix` is a command that in the end replaces itself by the server's command (exec). `ca` is a file with the authority of
    the certificates that `flags` give to the listeners; `client` the certificate and the key that clients show.
    """

    api_key = admin_api_key = ""
    ca, client, tls_ports = None, (), frozenset()

    def __init__(self, model, *flags, workers=2, wait=True, env=None, prefix=(), ca=None, client=(), log=None):
        self.port, self.admin_port, self.grpc_port, self.control_port = free_ports(4)
        self.name = "test-model"
        command = [*prefix, SOMNUS, "serve", model, "--port", str(self.port), "--admin-port", str(self.admin_port),
                   "--grpc-port", str(self.grpc_port), "--control-port", str(self.control_port), "--served-model-name", self.name, *flags]
        if workers:
            command.append(f"--workers=local:{workers}")
        self._log = tempfile.NamedTemporaryFile(prefix="somnus_", suffix=".log")
        self._seen = set()
        self.api_key, self.admin_api_key = (
            next((flag.partition("=")[2] for flag in flags if flag.startswith(f"{name}=")), "") for name in ("--api-key", "--admin-api-key"))
        self.ca, self.client = ca, client
        self.tls_ports = {port for flag, ports in (("--ssl-certfile=", (self.port, self.grpc_port)), ("--admin-ssl-certfile=", (
            self.admin_port, self.control_port))) for port in ports if any(one.startswith(flag) for one in flags)}
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log or self._log, stderr=log or self._log,
                                        env={**os.environ, **(env or {})}, start_new_session=True)
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.__exit__()
                raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pids = self.worker_pids() + [self.process.pid]
        for pid in {*pids, *self._seen}:
            if alive(pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.process.wait()
        self._log.close()

    def log(self):
        with open(self._log.name, encoding="utf-8", errors="replace") as file:
            return file.read()

    def worker_pids(self):
        found = children(self.process.pid)
        self._seen.update(found)
        return found

    def health(self):
        try:
            return self.request("GET", "/health", timeout=5).status
        except OSError:
            return 0

    def wait_ready(self, timeout=START_TIMEOUT_S):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with code {self.process.returncode}:\n{self.log()}")
            return self.health() == 200
        wait_until(ready, timeout, lambda: f"/health 200; log:\n{self.log()}")
        self.worker_pids()

    def stop(self, timeout=STOP_TIMEOUT_S):
        """Sends SIGTERM; returns the exit code once coordinator and workers have ended."""
        workers = self.worker_pids()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout)
        left = [pid for pid in workers if alive(pid)]
        if left:
            raise AssertionError(f"workers {left} outlived the coordinator")
        return code

    def request(self, method, path, body=None, headers=None, timeout=120, port=None):
        connection = self.connection(port or self.port, timeout)
        try:
            data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
            base = {"Content-Type": "application/json"} if data is not None else {}
            connection.request(method, path, body=data, headers={**base, **(headers or {})})
            answer = connection.getresponse()
            return Response(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def connection(self, port, timeout=120):
        if port in self.tls_ports:
            context = ssl.create_default_context(cafile=self.ca)
            if self.client:
                context.load_cert_chain(*self.client)
            return http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout, context=context)
        return http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def complete(self, prompt, **fields):
        """The answer of a greedy, non-streamed completion; AssertionError unless the status is 200."""
        body = {"model": self.name, "prompt": prompt, "temperature": 0, "max_tokens": 32, "return_token_ids": True, **fields}
        response = self.request("POST", "/v1/completions", body)
        if response.status != 200:
            raise AssertionError(f"HTTP {response.status}: {response.text[:500]}")
        return response.json

    def tokens(self, prompt, **fields):
        return self.complete(prompt, **fields)["choices"][0]["token_ids"]

    def open_stream(self, prompt, timeout=120, **fields):
        """A streamed completion as a Stream, after the header."""
        body = {"model": self.name, "prompt": prompt, "temperature": 0, "max_tokens": 32, "stream": True,
                "ignore_eos": True, **fields}
        return Stream(self.connection(self.port, timeout), "/v1/completions", body)

    def metric(self, name, **labels):
        """The sum over the series of one metric with these labels, or None without such a series."""
        text = self.request("GET", "/metrics").text
        series = re.findall(rf"(?m)^{re.escape(name)}(?:\{{([^}}]*)\}})? ([0-9.e+-]+)$", text)
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        values = [float(value) for found, value in series if all(label in found for label in wanted)]
        return sum(values) if values else None

    def status(self, model=""):
        """ControlService.GetStatus of one model, or of the first; through the command line where certificates or keys have to
        be shown."""
        if not (self.tls_ports or self.api_key or self.admin_api_key) and control.messages() is not None:
            return control.get_status(self.control_port, model)
        return json.loads(self.cli("status", "--json", *([f"--model={model}"] if model else [])).stdout)

    def cli(self, *args, stdin=None, check=True):
        done = subprocess.run([SOMNUS, *args], capture_output=True, text=True, timeout=120,
                              input=stdin if stdin is not None else "", env=self.cli_environment())
        if check and done.returncode != 0:
            raise AssertionError(f"somnus {' '.join(args)}: exit {done.returncode}: {done.stderr}")
        return done

    def cli_environment(self):
        scheme = "https" if self.port in self.tls_ports else "http"
        certificate, key = self.client or ("", "")
        return {**os.environ, "SOMNUS_API_KEY": self.api_key, "SOMNUS_ADMIN_API_KEY": self.admin_api_key, "SOMNUS_CA_CERT": self.ca or "",
                "SOMNUS_CLIENT_CERT": certificate, "SOMNUS_CLIENT_KEY": key, "SOMNUS_URL": f"{scheme}://127.0.0.1:{self.port}"}

    def admin(self, path):
        """An operator's POST, which must be answered with 200."""
        response = self.request("POST", path, port=self.admin_port)
        if response.status != 200:
            raise AssertionError(f"{path}: HTTP {response.status}: {response.text}")
        return response

    def wait_waiting(self, count, timeout=120):
        """Until so many requests wait."""
        def waiting():
            return self.status()["num_requests_waiting"]
        wait_until(lambda: waiting() == count, timeout, lambda: f"{count} requests wait: {waiting()} do")

    def wait_idle(self, timeout=120):
        """Until no request is left and every block is free again."""
        def idle():
            status = self.status()
            return (status["num_requests_running"] == status["num_requests_waiting"] == 0
                    and status["free_blocks"] == status["total_blocks"])
        wait_until(idle, timeout, "no requests and all blocks free")


class Stream:
    """Server-sent events of one request, over a socket that can be dropped at any time."""

    def __init__(self, connection, path, body, headers=None):
        self.connection = connection
        self.connection.request("POST", path, body=json.dumps(body), headers={"Content-Type": "application/json", **(headers or {})})
        self.answer = self.connection.getresponse()
        self.status = self.answer.status

    def events(self):
        """Parsed events up to [DONE]; raises http.client.IncompleteRead where the stream is cut."""
        while True:
            line = self.answer.readline()
            if not line:
                raise http.client.IncompleteRead(b"")
            line = line.strip()
            if line == b"data: [DONE]":
                return
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    def drop(self):
        """Closes the connection with a reset, as the end of a killed client does."""
        sock = self.connection.sock or self.answer.fp.raw._sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.close()

    def close(self):
        self.answer.close()
        self.connection.close()

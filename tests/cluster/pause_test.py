"""Pauses, the modes of pause and sleep, requests that wake an engine, and an engine that sleeps by itself, through the
whole cluster."""
import threading
import unittest

from cluster.harness import Cluster, expected, stubs, tiny, wait_until

try:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc
except ImportError:
    grpc = None

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if not case["ambiguous"])
LONG = 400


class Asking:
    """A completion in a thread."""

    def __init__(self, cluster, prompt, request_id=None, **fields):
        self.response = None
        body = {"model": cluster.name, "prompt": prompt, "temperature": 0, "max_tokens": 32, "return_token_ids": True, **fields}
        headers = {"X-Request-Id": request_id} if request_id else {}

        def ask():
            self.response = cluster.request("POST", "/v1/completions", body, headers)
        self._thread = threading.Thread(target=ask)
        self._thread.start()

    def done(self):
        return not self._thread.is_alive()

    def choice(self):
        self._thread.join(120)
        if self.response is None or self.response.status != 200:
            raise AssertionError(f"no answer: {self.response and self.response.text}")
        return self.response.json["choices"][0]

    def tokens(self):
        return self.choice()["token_ids"]


class Base(unittest.TestCase):
    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny(MODEL), "--dtype=float32", *cls.FLAGS, workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def tearDown(self):
        self.assertEqual(self.admin("/wake_up").status, 200)
        wait_until(lambda: self.cluster.health() == 200, 30, "awake again")

    def admin(self, target, body=None, method="POST"):
        return self.cluster.request(method, target, body, port=self.cluster.admin_port)

    def is_sleeping(self):
        return self.admin("/is_sleeping", method="GET").json["is_sleeping"]

    def state(self):
        return self.cluster.status()["state"].removeprefix("ENGINE_STATE_")

    def num_waiting(self):
        status = self.cluster.status()
        return status["num_requests_waiting"] + status["num_requests_running"]

    def assert_tokens(self):
        self.assertEqual(self.cluster.tokens(CASE["prompt"], ignore_eos=CASE["ignore_eos"]), CASE["tokens"])

    def undisturbed(self):
        return self.cluster.tokens(CASE["prompt"], max_tokens=LONG, ignore_eos=True)

    def start_stream(self):
        """A stream of which the first tokens have come, as (events, tokens)."""
        stream = self.cluster.open_stream(CASE["prompt"], max_tokens=LONG, return_token_ids=True)
        self.addCleanup(stream.close)
        events = stream.events()
        return events, list(next(events)["choices"][0]["token_ids"])

    def finish(self, events, tokens):
        """All tokens of a stream, and the finish_reason."""
        reason = None
        for event in events:
            for choice in event["choices"]:
                tokens += choice.get("token_ids") or []
                reason = choice.get("finish_reason") or reason
        return tokens, reason


class Pause(Base):

    def test_wait(self):
        expect = self.undisturbed()
        for target in ("/pause?mode=wait", "/sleep?level=1&mode=wait"):
            with self.subTest(target=target):
                events, tokens = self.start_stream()
                answers = []
                call = threading.Thread(target=lambda target=target: answers.append(self.admin(target).status))
                call.start()
                wait_until(lambda: self.state() != "AWAKE", 30, "the engine pauses")
                arrived = Asking(self.cluster, CASE["prompt"], ignore_eos=CASE["ignore_eos"])
                self.assertEqual(self.finish(events, tokens), (expect, "length"))
                call.join(60)
                self.assertEqual(answers, [200])
                wait_until(lambda: self.num_waiting() == 1, 30, "the request waits")
                self.assertFalse(arrived.done())
                self.assertTrue(self.is_sleeping())
                self.assertEqual(self.admin("/wake_up").json["status"], "awake")
                self.assertEqual(arrived.tokens(), CASE["tokens"])

    def test_a_queued_request_is_aborted_with_no_token(self):
        self.admin("/pause")
        asking = [Asking(self.cluster, CASE["prompt"], request_id=name) for name in ("first", "second")]
        wait_until(lambda: self.num_waiting() == 2, 30, "both wait")
        self.assertEqual(self.admin("/abort_requests", {"request_ids": ["cmpl-first"]}).json, {"status": "aborted", "aborted": 1})
        choice = asking[0].choice()
        self.assertEqual((choice["finish_reason"], choice["text"], choice["token_ids"]), ("abort", "", []))
        self.assertFalse(asking[1].done())
        self.assertEqual(self.admin("/abort_requests", {}).json["aborted"], 1)
        self.assertEqual(asking[1].choice()["finish_reason"], "abort")

    def test_command_line(self):
        self.assertIn("paused", self.cluster.cli("pause", "--mode", "wait").stdout)
        self.assertTrue(self.cluster.status()["paused"])
        self.assertEqual(self.cluster.cli("sleep", "--level", "0").stdout, "already paused\n")
        self.assertIn("somnus resume", self.cluster.cli("generate", "x", check=False).stderr)
        self.assertEqual(self.cluster.cli("resume").stdout, "resumed; the engine is awake\n")
        self.assertIn("freed", self.cluster.cli("sleep", "--mode", "abort").stdout)
        self.assertIn("mapped", self.cluster.cli("wake-up").stdout)
        self.assertEqual(self.cluster.cli("pause", "--mode", "never", check=False).returncode, 2)

    def test_methods_by_name(self):
        called = self.admin("/collective_rpc", {"method": "sleep", "kwargs": {"level": 1}})
        self.assertEqual(called.json, {"results": [None, None]})
        ranks = self.admin("/collective_rpc", {"method": "get_status"}).json["results"]
        self.assertEqual([(rank["rank"], rank["state"]) for rank in ranks], [(0, "asleep"), (1, "asleep")])
        self.assertEqual(self.admin("/collective_rpc", {"method": "exec"}).status, 404)


class Reject(Base):
    FLAGS = ("--sleep-arrivals=reject",)

    def test_a_sleeping_engine_refuses(self):
        self.admin("/pause")
        paused = Asking(self.cluster, CASE["prompt"], ignore_eos=CASE["ignore_eos"])
        wait_until(lambda: self.num_waiting() == 1, 30, "a paused engine takes requests")
        self.admin("/resume")
        self.assertEqual(paused.tokens(), CASE["tokens"])
        self.admin("/sleep")
        refused = self.cluster.request("POST", "/v1/completions", {"model": self.cluster.name, "prompt": "a"})
        self.assertEqual((refused.status, refused.headers["Retry-After"]), (503, "1"))
        self.assertEqual(refused.json["error"]["type"], "ServiceUnavailableError")
        self.assertGreaterEqual(self.cluster.metric("somnus:requests_rejected_total"), 1)
        self.assertTrue(self.is_sleeping())
        self.admin("/wake_up")
        self.assert_tokens()


class Wake(Base):
    FLAGS = ("--sleep-arrivals=wake",)

    def test_a_request_wakes_the_engine(self):
        for level in (1, 2):
            with self.subTest(level=level):
                self.admin(f"/sleep?level={level}")
                self.assertTrue(self.is_sleeping())
                self.assertEqual(self.cluster.health(), 200, "a request would be served")
                self.assert_tokens()
                self.assertFalse(self.is_sleeping())
        wait_until(lambda: self.cluster.metric("somnus:auto_wake_ups_total") >= 2, 30, "both are counted")


class Idle(Base):
    FLAGS = ("--idle-sleep-s=0.2", "--idle-sleep-level=2")

    def tearDown(self):
        pass

    def test_an_idle_engine_sleeps_until_the_next_request(self):
        for _ in range(2):
            wait_until(self.is_sleeping, 30, "it sleeps by itself")
            self.assertEqual(self.cluster.status()["sleep_level"], 2)
            for path in ("/health", "/livez", "/metrics", "/v1/models", "/server_info"):
                self.assertEqual(self.cluster.request("GET", path).status, 200, path)
            self.assertTrue(self.is_sleeping(), "that is no traffic")
            self.assert_tokens()
        for name in ("somnus:auto_sleeps_total", "somnus:auto_wake_ups_total"):
            wait_until(lambda name=name: self.cluster.metric(name) >= 2, 30, name)


class Probed(Base):
    """Probes, scrapes and looks at the status come all the time, each sooner than the idle time after the last."""

    FLAGS = ("--idle-sleep-s=2", "--idle-sleep-level=2")
    PERIOD_S = 0.05
    PATHS = ("/health", "/livez", "/readyz", "/metrics", "/v1/models", "/server_info")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.calls = {path: lambda path=path: cls.cluster.request("GET", path, timeout=30).status == 200 for path in cls.PATHS}
        cls.calls.update({f"operators' {path}": lambda path=path: cls.cluster.request(
            "GET", path, timeout=30, port=cls.cluster.admin_port).status == 200
            for path in (*cls.PATHS, "/is_sleeping", "/is_paused", "/get_world_size", "/weight_info")})
        cls.calls["GetStatus"] = lambda: cls.cluster.status()["state"] != ""
        cls.calls["somnus models"] = lambda: cls.cluster.cli("models").stdout != ""
        cls.add_grpc_calls()

    @classmethod
    def add_grpc_calls(cls):
        try:
            stubs.generate("transition", "weights", "control")
        except unittest.SkipTest:
            return  # the command line asks the same service
        from proto import control_pb2, control_pb2_grpc
        for name, port in (("public", cls.cluster.grpc_port), ("operators'", cls.cluster.control_port)):
            channel = grpc.insecure_channel(f"127.0.0.1:{port}")
            cls.addClassCleanup(channel.close)
            health = health_pb2_grpc.HealthStub(channel)
            cls.calls[f"{name} gRPC health"] = lambda health=health: health.Check(
                health_pb2.HealthCheckRequest(), timeout=30).status == health_pb2.HealthCheckResponse.SERVING
        control = control_pb2_grpc.ControlServiceStub(channel)
        cls.calls["GetStatus"] = lambda: control.GetStatus(control_pb2.GetStatusRequest(), timeout=30).state != 0
        cls.calls["ListModelStatus"] = lambda: len(
            control.ListModelStatus(control_pb2.ListModelStatusRequest(), timeout=30).models) == 1

    def tearDown(self):
        pass

    def keep_asking(self, name, over, counts, failures):
        try:
            while not over.is_set():
                if not self.calls[name]():
                    failures.append(f"{name} says no")
                counts[name] += 1
                over.wait(self.PERIOD_S)
        except Exception as error:  # pylint: disable=broad-except
            failures.append(f"{name}: {error!r}")

    def test_whoever_looks_does_not_postpone_the_sleep(self):
        for _ in range(2):
            self.assert_tokens()
            slept = self.cluster.metric("somnus:auto_sleeps_total")
            over, failures = threading.Event(), []
            counts = dict.fromkeys(self.calls, 0)
            threads = [threading.Thread(target=self.keep_asking, args=(name, over, counts, failures)) for name in self.calls]
            for thread in threads:
                thread.start()
            try:
                wait_until(lambda: self.cluster.metric("somnus:auto_sleeps_total") > slept, 60, "it sleeps by itself")
                before, woken = dict(counts), self.cluster.metric("somnus:auto_wake_ups_total")
                # The same requests once more wake nobody.
                wait_until(lambda: failures or all(counts[name] >= before[name] + 2 for name in counts), 60, lambda: f"{counts}, {before}")
                self.assertTrue(self.is_sleeping())
                self.assertEqual(self.cluster.metric("somnus:auto_wake_ups_total"), woken)
            finally:
                over.set()
                for thread in threads:
                    thread.join()
            self.assertEqual(failures, [], "where a request would wake the engine, all are answered as if it were awake")
            self.assertEqual([name for name in before if before[name] < 2], [], "asked while it was awake")
        self.assert_tokens()


del Base

"""The gRPC services, through stubs that are generated from proto/ as a client author would generate stubs."""
import os
import subprocess
import tempfile
import unittest

from cluster.harness import Cluster, expected, stubs, tiny
from cluster.harness.soak import rss_mib

try:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
except ImportError:
    grpc = None

MODEL = "qwen3"
DEADLINE_S = 60


def setUpModule():
    stubs.generate("model", "inference", "transition", "weights", "control")
    global pb, rpc, control_pb, control_rpc
    from proto import control_pb2 as control_pb, control_pb2_grpc as control_rpc
    from proto import inference_pb2 as pb, inference_pb2_grpc as rpc


class Grpc(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny(MODEL), "--dtype=float32", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.channel = grpc.insecure_channel(f"127.0.0.1:{cls.cluster.grpc_port}")
        cls.addClassCleanup(cls.channel.close)
        cls.inference = rpc.InferenceServiceStub(cls.channel)
        cls.control_channel = grpc.insecure_channel(f"127.0.0.1:{cls.cluster.control_port}")
        cls.addClassCleanup(cls.control_channel.close)
        cls.control = control_rpc.ControlServiceStub(cls.control_channel)

    def tearDown(self):
        self.control.WakeUp(control_pb.WakeUpRequest(), timeout=DEADLINE_S)
        self.cluster.wait_idle()

    def generate(self, prompt, **sampling):
        request = pb.GenerateRequest(sampling=pb.SamplingParams(**{"temperature": 0, **sampling}))
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.token_ids.ids.extend(prompt)
        return self.inference.Generate(request, timeout=DEADLINE_S)

    def refused(self, call, code):
        with self.assertRaises(grpc.RpcError) as caught:
            list(call)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        return caught.exception.details()

    def test_token_ids_in_reference_tokens_out(self):
        for case in (case for case in expected(MODEL) if not case["ambiguous"]):
            responses = list(self.generate(case["prompt"], max_tokens=len(case["tokens"]), ignore_eos=case["ignore_eos"]))
            tokens = [token for response in responses for choice in response.choices for token in choice.token_ids]
            self.assertEqual(tokens, case["tokens"], case["name"])
            self.assertGreater(len(responses), 1, "a stream")
            self.assertIn(responses[-1].choices[-1].finish_reason, ("stop", "length"))
            self.assertEqual(responses[-1].usage.prompt_tokens, len(case["prompt"]))
            self.assertEqual(responses[-1].usage.completion_tokens, len(tokens))

    def test_text_in_is_what_http_answers(self):
        whole = self.cluster.complete("The quick brown fox", max_tokens=24, ignore_eos=True)["choices"][0]["text"]
        responses = self.generate("The quick brown fox", max_tokens=24, ignore_eos=True)
        self.assertEqual("".join(choice.text for response in responses for choice in response.choices), whole)

    def test_several_choices_and_logprobs(self):
        responses = list(self.generate([5, 6, 7], max_tokens=6, n=3, temperature=1, seed=11, logprobs=2, ignore_eos=True))
        for index in range(3):
            deltas = [choice for response in responses for choice in response.choices if choice.index == index]
            self.assertEqual(sum(len(delta.token_ids) for delta in deltas), 6)
            positions = [position for delta in deltas for position in delta.logprobs]
            self.assertEqual(len(positions), 6)
            for position in positions:
                self.assertGreaterEqual(len(position.tokens), 2)
                self.assertTrue(all(token.logprob <= 0 for token in position.tokens))

    def test_every_bad_field_is_named(self):
        bad = {"max_tokens": -1, "min_tokens": -5, "temperature": float("nan"), "top_p": 0.0, "top_k": -7, "min_p": 1.5,
               "presence_penalty": 3, "frequency_penalty": -3, "repetition_penalty": 0, "logit_bias": {1 << 30: 1.0},
               "stop": [""], "stop_token_ids": [-1], "logprobs": 21, "prompt_logprobs": -1, "n": 100_000, "best_of": 0, "allowed_token_ids": [1 << 30],
               "bad_words": [pb.TokenIds()]}
        for field, value in bad.items():
            with self.subTest(field=field):
                details = self.refused(self.generate("x", **{field: value}), grpc.StatusCode.INVALID_ARGUMENT)
                self.assertTrue(details.startswith(field + ":"), details)
        for request in (pb.GenerateRequest(), pb.GenerateRequest(text=""), pb.GenerateRequest(token_ids=pb.TokenIds(ids=[-1]))):
            details = self.refused(self.inference.Generate(request, timeout=DEADLINE_S), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertTrue(details.startswith("prompt:"), details)
        salted = pb.GenerateRequest(text="x", cache_salt="a@b")
        self.refused(self.inference.Generate(salted, timeout=DEADLINE_S), grpc.StatusCode.INVALID_ARGUMENT)

    def test_a_deadline_ends_the_request_and_frees_its_blocks(self):
        request = pb.GenerateRequest(text="x", sampling=pb.SamplingParams(max_tokens=480, n=16, temperature=1, ignore_eos=True))
        # On a fast machine the tiny model takes less than 0.2 s for all tokens.
        self.refused(self.inference.Generate(request, timeout=0.05), grpc.StatusCode.DEADLINE_EXCEEDED)
        self.cluster.wait_idle()

    def test_calls_that_are_dropped_with_their_channel(self):
        for _ in range(20):
            channel = grpc.insecure_channel(f"127.0.0.1:{self.cluster.grpc_port}",
                                            options=[("grpc.use_local_subchannel_pool", 1)])
            request = pb.GenerateRequest(text="x", sampling=pb.SamplingParams(max_tokens=400, ignore_eos=True))
            next(rpc.InferenceServiceStub(channel).Generate(request, timeout=DEADLINE_S))
            channel.close()
        self.cluster.wait_idle()

    def test_a_message_that_is_too_large(self):
        # Just above --max-grpc-message-bytes; a message just below is parsed, and refused for the contents.
        self.refused(self.generate("a" * (4 << 20)), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.refused(self.generate("a" * ((4 << 20) - 1000)), grpc.StatusCode.INVALID_ARGUMENT)

    def test_a_message_that_grows_when_it_is_parsed(self):
        self.refused(self.generate("x", stop=[""] * (3 << 19)), grpc.StatusCode.INVALID_ARGUMENT)

    def test_messages_that_grow_when_they_are_parsed_leave_no_memory(self):
        """Each takes 70 MiB on a thread of its own."""
        pid = self.cluster.process.pid
        before = rss_mib(pid)
        calls = [self.generate("x", stop=[""] * (3 << 19)) for _ in range(4)]
        for call in calls:
            self.refused(call, grpc.StatusCode.INVALID_ARGUMENT)
        self.assertLess(rss_mib(pid), before + 32)

    def test_cancelled_stream_frees_its_blocks(self):
        stream = self.generate("The quick brown fox", max_tokens=400, ignore_eos=True)
        next(stream)
        stream.cancel()
        self.cluster.wait_idle()

    def test_models(self):
        models = self.inference.ListModels(pb.ListModelsRequest(), timeout=DEADLINE_S).models
        self.assertEqual([model.id for model in models], [self.cluster.name])
        self.assertGreater(models[0].vocab_size, 0)

    def test_health_follows_the_engine(self):
        def check(service):
            channel = self.control_channel if service.endswith("ControlService") else self.channel
            request = health_pb2.HealthCheckRequest(service=service)
            return health_pb2_grpc.HealthStub(channel).Check(request, timeout=DEADLINE_S).status
        yes, no = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        services = ("", "somnus.v1.InferenceService", "somnus.v1.ControlService")
        self.assertEqual([check(service) for service in services], [yes, yes, yes])
        self.control.Sleep(control_pb.SleepRequest(level=1), timeout=DEADLINE_S)
        self.assertEqual([check(service) for service in services], [no, no, yes], "what wakes it is there")
        self.control.WakeUp(control_pb.WakeUpRequest(), timeout=DEADLINE_S)
        self.assertEqual([check(service) for service in services], [yes, yes, yes])
        with self.assertRaises(grpc.RpcError) as caught:
            check("somnus.v1.NoSuchService")
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_reflection_lists_the_services(self):
        def names(channel):
            requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            answer = next(stub.ServerReflectionInfo(requests, timeout=DEADLINE_S))
            return {service.name for service in answer.list_services_response.service}
        other = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        self.assertEqual(names(self.channel), {"somnus.v1.InferenceService", "somnus.v1.PrefixService",
                                               "vllm.grpc.engine.VllmEngine", *other})
        self.assertEqual(names(self.control_channel), {"somnus.v1.ControlService", "somnus.v1.KvEventService", *other})


class Tls(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", self.path("key.pem"), "-out", self.path("cert.pem")],
                       check=True, capture_output=True, stdin=subprocess.DEVNULL)

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def models(self, cluster, credentials):
        """The end of ListModels, over a new connection."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        target = f"127.0.0.1:{cluster.grpc_port}"
        with (grpc.secure_channel(target, credentials, options) if credentials else grpc.insecure_channel(target, options)) as channel:
            try:
                return len(rpc.InferenceServiceStub(channel).ListModels(pb.ListModelsRequest(), timeout=DEADLINE_S).models)
            except grpc.RpcError as error:
                return error.code()

    def test_by_tls_alone(self):
        with Cluster(tiny(MODEL), f"--ssl-certfile={self.path('cert.pem')}", f"--ssl-keyfile={self.path('key.pem')}",
                     workers=1, ca=self.path("cert.pem")) as cluster:
            self.assertEqual(self.models(cluster, grpc.ssl_channel_credentials(self.read("cert.pem"))), 1)
            self.assertEqual(self.models(cluster, None), grpc.StatusCode.UNAVAILABLE)
            self.assertEqual(cluster.status()["state"], "ENGINE_STATE_AWAKE")

    def test_only_clients_with_a_certificate(self):
        with Cluster(tiny(MODEL), f"--ssl-certfile={self.path('cert.pem')}", f"--ssl-keyfile={self.path('key.pem')}",
                     f"--ssl-ca-certs={self.path('cert.pem')}", workers=1, ca=self.path("cert.pem"),
                     client=(self.path("cert.pem"), self.path("key.pem"))) as cluster:
            root, key = self.read("cert.pem"), self.read("key.pem")
            self.assertEqual(self.models(cluster, grpc.ssl_channel_credentials(root, key, root)), 1)
            self.assertEqual(self.models(cluster, grpc.ssl_channel_credentials(root)), grpc.StatusCode.UNAVAILABLE)

    def test_files_of_no_use_are_named(self):
        with Cluster(tiny(MODEL), f"--ssl-certfile={self.path('cert.pem')}", workers=1, wait=False) as cluster:
            self.assertEqual(cluster.process.wait(DEADLINE_S), 2)
            self.assertIn("--ssl-keyfile", cluster.log())

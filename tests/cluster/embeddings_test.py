"""Embeddings of served decoders through the whole cluster: the vectors equal transformers' on any number of ranks, in chunks,
in batches, from the prefix cache, after a worker's death and after a sleep; and the shapes are OpenAI's and vLLM's."""
import json
import math
import os
import shutil
import signal
import struct
import tempfile
import threading
import unittest

from cluster.harness import ROOT, Cluster, grpc, stubs, tiny, wait_until

with open(os.path.join(ROOT, "tests", "data", "embedding_goldens.json"), encoding="utf-8") as goldens_file:
    GOLDENS = json.load(goldens_file)
CHUNKS = ("--max-num-batched-tokens=16", "--max-num-seqs=8")  # the longest prompts take several steps
GENERATING = {"/v1/completions": {"prompt": "a"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
              "/v1/responses": {"input": "a"}, "/v1/messages": {"max_tokens": 4, "messages": [{"role": "user", "content": "a"}]}}


def f32(numbers):
    """The bits of the numbers as f32, little-endian."""
    return struct.pack(f"<{len(numbers)}f", *numbers)


def unit(numbers):
    length = math.sqrt(sum(x * x for x in numbers))
    return [x / length for x in numbers]


class EmbeddingCase(unittest.TestCase):
    cluster = None

    def post(self, path, status=200, **fields):
        response = self.cluster.request("POST", path, {"model": self.cluster.name, **fields})
        self.assertEqual(response.status, status, response.text[:500])
        return response.json

    def embed(self, given, **fields):
        """The vectors of a request to /v1/embeddings, in order."""
        data = self.post("/v1/embeddings", input=given, **fields)["data"]
        self.assertEqual([item["index"] for item in data], list(range(len(data))))
        self.assertEqual({item["object"] for item in data}, {"embedding"})
        return [item["embedding"] for item in data]

    def assert_close(self, vector, expected):
        self.assertEqual(len(vector), len(expected))
        for x, y in zip(vector, expected):
            self.assertAlmostEqual(x, y, delta=1e-4 * (1 + abs(y)))


class Vectors(EmbeddingCase):
    """Each row: ranks, model, pooling type. The rows' vectors are compared with transformers' vectors."""

    ROWS = ((1, "llama-uneven", "last"), (2, "qwen2", "mean"), (3, "llama-uneven", "cls"), (4, "opt", "mean"), (3, "opt", "last"),
            (4, "llama-uneven", "mean"))

    def test_vectors_are_those_of_transformers(self):
        for workers, model, pooling in self.ROWS:
            with self.subTest(workers=workers, model=model, pooling=pooling), Cluster(
                    tiny(model), "--dtype=float32", *CHUNKS, f"--pooling-type={pooling}", workers=workers) as self.cluster:
                self.check(GOLDENS[model], pooling)

    def check(self, cases, pooling):
        prompts = [case["prompt"] for case in cases]
        together = self.embed(prompts, normalize=False)
        for case, vector in zip(cases, together):
            self.assert_close(vector, case[pooling])
        normalized = self.embed(prompts)
        for case, vector in zip(cases, normalized):
            self.assert_close(vector, unit(case[pooling]))
        # Alone, and from the prefix cache where that may be: the same bits.
        for prompt, vector in zip(prompts, together):
            self.assertEqual(self.embed(prompt, normalize=False), [vector])
        # Among requests for text.
        with self.subTest("among text"):
            stream = self.cluster.open_stream([5, 6, 7], max_tokens=60)
            self.assertEqual(self.embed(prompts, normalize=False, cache_salt="other"), together)
            self.assertEqual(list(stream.events())[-1]["choices"][0]["finish_reason"], "length")
            stream.close()
        self.cluster.wait_idle()


class ByFiles(EmbeddingCase):
    """Without --pooling-type the files of sentence-transformers count."""

    def serve(self, pooling, *modules, flags=()):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name in os.listdir(tiny("qwen2")):
            shutil.copyfile(os.path.join(tiny("qwen2"), name), os.path.join(folder.name, name))
        os.mkdir(os.path.join(folder.name, "1_Pooling"))
        with open(os.path.join(folder.name, "1_Pooling", "config.json"), "w", encoding="utf-8") as file:
            json.dump({pooling: True}, file)
        with open(os.path.join(folder.name, "modules.json"), "w", encoding="utf-8") as file:
            json.dump([{"path": "1_Pooling", "type": f"sentence_transformers.models.{name}"} for name in modules], file)
        return Cluster(folder.name, "--dtype=float32", *flags, workers=1)

    def test_pooling_and_length(self):
        case = GOLDENS["qwen2"][0]
        with self.serve("pooling_mode_mean_tokens", "Transformer", "Pooling") as self.cluster:
            self.assert_close(self.embed(case["prompt"])[0], case["mean"])
            self.assert_close(self.embed(case["prompt"], normalize=True)[0], unit(case["mean"]))
        with self.serve("pooling_mode_mean_tokens", "Pooling", "Normalize", flags=("--pooling-type=last",)) as self.cluster:
            self.assert_close(self.embed(case["prompt"])[0], unit(case["last"]))

    def test_a_module_that_is_missing(self):
        with self.serve("pooling_mode_mean_tokens", "Pooling", "Dense") as self.cluster:
            error = self.post("/v1/embeddings", 400, input="a")["error"]
            self.assertIn("the module Dense", error["message"])
            self.assertIn("--pooling-type", error["message"])
            self.assertEqual(len(self.cluster.tokens("a", max_tokens=2)), 2, "text is served")


class Replicas(EmbeddingCase):
    def test_every_replica_gives_the_same_bits(self):
        prompts = [[i, *case["prompt"]] for i in range(12) for case in GOLDENS["qwen2"]]
        with Cluster(tiny("qwen2"), "--dtype=float32", *CHUNKS, workers=1) as self.cluster:
            wanted = self.embed(prompts)
        with Cluster(tiny("qwen2"), "--dtype=float32", *CHUNKS, "--data-parallel-size=2", "--max-recoveries=0",
                     workers=1) as self.cluster:
            self.assertEqual(self.embed(prompts), wanted)
            self.assertTrue(all(replica["num_requests"] > 0 for replica in self.cluster.status()["replicas"]), "both have computed")


class Faults(EmbeddingCase):
    """A mean takes every row of the prompt: rows from before a fault must not be forgotten, nor counted twice."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny("qwen2"), "--dtype=float32", *CHUNKS, "--pooling-type=mean", "--max-num-partial-prefills=4",
                              "--max-recoveries=100", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)
        prompt = GOLDENS["qwen2"][-1]["prompt"]
        cls.prompts = [[i % 400 + 3, *prompt] for i in range(600)]
        cls.expected = {i: cls.embed(cls(), cls.prompts[i], normalize=False)[0] for i in (0, 1, 299, 300, 598, 599)}

    def under_way(self, strike):
        """A request of all prompts, struck in the middle; the vectors must equal the undisturbed vectors."""
        answers = []
        thread = threading.Thread(target=lambda: answers.append(self.embed(self.prompts, normalize=False)))
        thread.start()
        wait_until(lambda: self.cluster.metric("vllm:num_requests_running"), 30, "requests run")
        strike()
        thread.join(120)
        self.assertEqual(len(answers), 1, "the request has failed or hangs")
        self.assertEqual({i: answers[0][i] for i in self.expected}, self.expected)
        self.cluster.wait_idle()

    def test_a_worker_is_killed(self):
        def kill():
            worker = self.cluster.worker_pids()[-1]
            os.kill(worker, signal.SIGKILL)
        before = int(self.cluster.status()["num_recoveries"])
        self.under_way(kill)
        self.assertEqual(int(self.cluster.status()["num_recoveries"]), before + 1)

    def test_a_sleep_that_keeps_requests(self):
        def sleep():
            self.cluster.admin("/sleep?level=1&mode=keep")
            self.cluster.admin("/wake_up")
        self.under_way(sleep)

    def test_a_client_that_leaves_ends_its_requests(self):
        connection = self.cluster.connection(self.cluster.port)
        connection.request("POST", "/v1/embeddings", json.dumps({"input": self.prompts}), {"Content-Type": "application/json"})
        wait_until(lambda: self.cluster.metric("vllm:num_requests_running"), 30, "requests run")
        connection.close()
        self.cluster.wait_idle()


class Api(EmbeddingCase):
    @classmethod
    def setUpClass(cls):
        stubs.generate("inference")
        cls.cluster = Cluster(tiny("qwen2"), "--dtype=float32", "--matryoshka-dimensions=16,32", "--max-prompts=64", workers=1)
        cls.addClassCleanup(cls.cluster.__exit__)

    def test_dimensions_are_the_first_numbers(self):
        whole = self.embed("one", normalize=False)[0]
        self.assertEqual(self.embed("one", normalize=False, dimensions=16)[0], whole[:16])
        self.assert_close(self.embed("one", dimensions=32)[0], unit(whole[:32]))
        self.assertEqual(self.embed("one", dimensions=64), self.embed("one"))
        error = self.post("/v1/embeddings", 400, input="one", dimensions=17)["error"]
        self.assertIn("[16, 32] matryoshka dimensions", error["message"])

    def test_too_many_inputs(self):
        self.assertEqual(self.post("/v1/embeddings", 400, input=["a"] * 65)["error"]["param"], "input")

    def test_the_official_client(self):
        try:
            import openai
        except ImportError as error:
            raise unittest.SkipTest("openai is not installed") from error
        with openai.OpenAI(base_url=f"http://127.0.0.1:{self.cluster.port}/v1", api_key="none", max_retries=0) as client:
            answer = client.embeddings.create(model=self.cluster.name, input=["one", "two"])
        self.assertEqual([f32(item.embedding) for item in answer.data], [f32(vector) for vector in self.embed(["one", "two"])])

    def test_grpc(self):
        from proto import inference_pb2 as pb, inference_pb2_grpc as rpc
        request = pb.EmbedRequest(request_id="one", inputs=[pb.EmbedInput(text="one"), pb.EmbedInput(text="two")])
        with grpc.insecure_channel(f"127.0.0.1:{self.cluster.grpc_port}") as channel:
            responses = list(rpc.InferenceServiceStub(channel).Embed(request, timeout=60))
        vectors = {item.index: list(item.values) for response in responses for item in response.embeddings}
        self.assertEqual([f32(vectors[i]) for i in range(2)], [f32(vector) for vector in self.embed(["one", "two"])])
        self.assertEqual({response.request_id for response in responses}, {"one"})
        self.assertGreater(responses[-1].usage.prompt_tokens, 0)


class PoolingRunner(EmbeddingCase):
    def test_requests_for_text_are_refused(self):
        stubs.generate("inference")
        from proto import inference_pb2 as pb, inference_pb2_grpc as rpc
        with Cluster(tiny("qwen3"), "--runner=pooling", workers=1) as self.cluster:
            for path, fields in GENERATING.items():
                self.assertIn("--runner=pooling", json.dumps(self.post(path, 400, **fields)), path)
            with grpc.insecure_channel(f"127.0.0.1:{self.cluster.grpc_port}") as channel:
                call = rpc.InferenceServiceStub(channel).Generate(pb.GenerateRequest(text="a"), timeout=60)
                with self.assertRaises(grpc.RpcError) as caught:
                    list(call)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertEqual(len(self.embed(["a", "b"])), 2)

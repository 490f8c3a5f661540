"""The gateways' VllmEngine of a whole cluster, through stubs that are generated from proto/ as a gateway's author would
generate stubs."""
import hashlib
import io
import json
import os
import signal
import unittest
import zipfile

from cluster.harness import SMOLLM2, Cluster, expected, grpc, stubs, tiny, wait_until

MODEL = "qwen3"
DEADLINE_S = 60
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"enum": [1, 2, 3]}},
          "required": ["city", "days"], "additionalProperties": False}


def setUpModule():
    stubs.generate("smg_common", "vllm_engine")
    global pb, common, rpc
    from proto import smg_common_pb2 as common
    from proto import vllm_engine_pb2 as pb, vllm_engine_pb2_grpc as rpc


class Gateway:
    """A gateway's side of a cluster."""

    def __init__(self, cluster):
        self.channel = grpc.insecure_channel(f"127.0.0.1:{cluster.grpc_port}")
        self.stub = rpc.VllmEngineStub(self.channel)

    def generate(self, prompt, stream=True, request_id="", **sampling):
        sampling = {"temperature": 0, "top_p": 1, "repetition_penalty": 1, "n": 1, "skip_special_tokens": True, **sampling}
        request = pb.GenerateRequest(request_id=request_id, stream=stream, tokenized=pb.TokenizedInput(input_ids=prompt),
                                     sampling_params=pb.SamplingParams(**sampling))
        return self.stub.Generate(request, timeout=DEADLINE_S)

    def tokens(self, prompt, **options):
        """(ids, GenerateComplete) of a single choice."""
        responses = list(self.generate(prompt, **options))
        completes = [response.complete for response in responses if response.HasField("complete")]
        assert len(completes) == 1, responses
        streamed = [id for response in responses for id in response.chunk.token_ids]
        assert not streamed or streamed == list(completes[0].output_ids), responses
        return list(completes[0].output_ids), completes[0]

    def healthy(self):
        return self.stub.HealthCheck(pb.HealthCheckRequest(), timeout=DEADLINE_S).healthy


class Calls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny(MODEL), "--dtype=float32", "--trust-gateways", "--max-kv-events=4096", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.gateway = Gateway(cls.cluster)
        cls.addClassCleanup(cls.gateway.channel.close)

    def test_token_ids_in_reference_tokens_out(self):
        for case in (case for case in expected(MODEL) if not case["ambiguous"]):
            for stream in (True, False):
                tokens, complete = self.gateway.tokens(case["prompt"], stream=stream, max_tokens=len(case["tokens"]),
                                                       ignore_eos=case["ignore_eos"])
                self.assertEqual(tokens, case["tokens"], case["name"])
                self.assertIn(complete.finish_reason, ("stop", "length"))
                self.assertEqual(complete.prompt_tokens, len(case["prompt"]))
                self.assertEqual(complete.completion_tokens, len(tokens))

    def test_log_probabilities_of_outputs_and_of_the_prompt(self):
        for stream in (True, False):
            responses = list(self.gateway.generate([5, 6, 7], stream=stream, max_tokens=4, logprobs=2, prompt_logprobs=1,
                                                   ignore_eos=True))
            whole = responses[-1].complete
            parts = [response.chunk for response in responses[:-1]] or [whole]
            outputs = [part.output_logprobs for part in parts]
            self.assertEqual([id for output in outputs for id in output.token_ids], list(whole.output_ids))
            for output in outputs:
                for logprob, token, top in zip(output.token_logprobs, output.token_ids, output.top_logprobs):
                    self.assertEqual(len(top.values), 2)
                    self.assertEqual((top.values[0], top.token_ids[0]), (logprob, token), "greedy: the likeliest")
                    self.assertGreaterEqual(top.values[0], top.values[1])
            prompt = parts[0].input_logprobs
            self.assertEqual(list(prompt.token_ids), [5, 6, 7])
            self.assertFalse(prompt.token_logprobs[0].HasField("value"))
            self.assertTrue(all(entry.value < 0 for entry in prompt.token_logprobs[1:]))
            self.assertFalse(any(part.HasField("input_logprobs") for part in parts[1:]))

    def test_several_choices(self):
        sampling = {"max_tokens": 6, "n": 3, "temperature": 1, "seed": 11, "ignore_eos": True}
        responses = list(self.gateway.generate([5, 6, 7], **sampling))
        wholes = {response.complete.index: list(response.complete.output_ids)
                  for response in responses if response.HasField("complete")}
        self.assertEqual(sorted(wholes), [0, 1, 2])
        for index, whole in wholes.items():
            chunks = [response.chunk for response in responses if response.HasField("chunk") and response.chunk.index == index]
            self.assertEqual([id for chunk in chunks for id in chunk.token_ids], whole)
        again = {response.complete.index: list(response.complete.output_ids)
                 for response in self.gateway.generate([5, 6, 7], stream=False, **sampling)}
        self.assertEqual(again, wholes)

    def test_a_second_prompt_is_cached_until_the_cache_is_flushed(self):
        prompt = [(31 * number) % 400 + 3 for number in range(64)]
        self.gateway.tokens(prompt, max_tokens=2)
        self.assertGreater(self.gateway.tokens(prompt, max_tokens=2)[1].cached_tokens, 0)
        self.assertTrue(self.gateway.stub.FlushCache(common.FlushCacheRequest(), timeout=DEADLINE_S).success)
        self.assertEqual(self.gateway.tokens(prompt, max_tokens=2)[1].cached_tokens, 0)

    def test_abort_by_id_and_by_leaving(self):
        stream = self.gateway.generate([5, 6, 7], request_id="to-abort", max_tokens=480, ignore_eos=True)
        next(stream)
        self.gateway.stub.Abort(pb.AbortRequest(request_ids=["unknown", "to-abort"]), timeout=DEADLINE_S)
        last = list(stream)[-1].complete
        self.assertEqual(last.finish_reason, "abort")
        self.assertLess(last.completion_tokens, 480)
        stream = self.gateway.generate([5, 6, 7], max_tokens=480, ignore_eos=True)
        next(stream)
        stream.cancel()
        self.cluster.wait_idle()

    def test_the_tokenizer_is_a_zip_of_the_models_files(self):
        chunks = list(self.gateway.stub.GetTokenizer(common.GetTokenizerRequest(), timeout=DEADLINE_S))
        data = b"".join(chunk.data for chunk in chunks)
        self.assertEqual(chunks[-1].sha256, hashlib.sha256(data).hexdigest())
        self.assertTrue(all(not chunk.sha256 for chunk in chunks[:-1]))
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            self.assertIsNone(archive.testzip())
            names = archive.namelist()
            self.assertIn("tokenizer.json", names)
            self.assertIn("chat_template.jinja", names)
            self.assertFalse([name for name in names if "safetensors" in name or "/" in name])
            for name in names:
                with open(os.path.join(tiny(MODEL), name), "rb") as file:
                    self.assertEqual(archive.read(name), file.read(), name)

    def test_blocks_of_a_prompt_are_told(self):
        prompt = [(37 * number) % 400 + 5 for number in range(48)]  # three blocks
        stream = self.gateway.stub.SubscribeKvEvents(common.SubscribeKvEventsRequest(load_records_before_first_batch=True))
        first = next(stream)
        self.assertEqual((first.snapshot.index, first.snapshot.unknown_before), (0, 0))
        self.assertTrue(first.events[0].HasField("cleared"))
        self.gateway.tokens(prompt, max_tokens=2)
        tokens, last = [], first.sequence_number
        for batch in stream:
            if batch.load.load_only or batch.HasField("snapshot"):
                continue
            self.assertEqual(batch.sequence_number, last + 1)
            last = batch.sequence_number
            tokens += [id for event in batch.events for block in event.stored.blocks for id in block.token_ids]
            if tokens[:48] == prompt:
                break
        stream.cancel()


class Lifecycle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny(MODEL), "--dtype=float32", "--api-key=secret", workers=2)
        cls.cluster.api_key = "secret"
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.gateway = Gateway(cls.cluster)
        cls.addClassCleanup(cls.gateway.channel.close)
        cls.metadata = (("authorization", "Bearer secret"),)

    def stream(self, max_tokens):
        sampling = pb.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        request = pb.GenerateRequest(stream=True, tokenized=pb.TokenizedInput(input_ids=[5, 6, 7]), sampling_params=sampling)
        return self.gateway.stub.Generate(request, timeout=DEADLINE_S, metadata=self.metadata)

    def test_a_worker_that_is_killed_ends_no_stream(self):
        whole = list(list(self.stream(400))[-1].complete.output_ids)
        stream = self.stream(400)
        tokens = list(next(stream).chunk.token_ids)
        os.kill(self.cluster.worker_pids()[1], signal.SIGKILL)
        for response in stream:
            tokens += response.chunk.token_ids
        self.assertEqual(tokens, whole)
        wait_until(self.gateway.healthy, 30, "the engine is healthy again")


@unittest.skipUnless(os.path.exists(SMOLLM2), "SmolLM2 is not there (tools/setup.sh model)")
class Constraints(unittest.TestCase):
    """The text is read back through the HTTP API's /detokenize."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(SMOLLM2, workers=1)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.gateway = Gateway(cls.cluster)
        cls.addClassCleanup(cls.gateway.channel.close)
        cls.prompt = cls.cluster.request("POST", "/tokenize", {"prompt": "The weather in Rome as JSON:"}).json["tokens"]

    def text(self, **sampling):
        tokens, complete = self.gateway.tokens(self.prompt, max_tokens=60, **sampling)
        self.assertEqual(complete.finish_reason, "stop")
        return self.cluster.request("POST", "/detokenize", {"tokens": [id for id in tokens if id > 16]}).json["prompt"]

    def test_each_constraint_holds(self):
        weather = json.loads(self.text(json_schema=json.dumps(SCHEMA)))
        self.assertEqual(set(weather), {"city", "days"})
        self.assertIn(weather["days"], (1, 2, 3))
        self.assertRegex(self.text(regex="[a-c]{3}-[0-9]{2}"), r"\A[a-c]{3}-[0-9]{2}\Z")
        self.assertIn(self.text(choice=pb.ChoiceConstraint(choices=["red", "green"])), ("red", "green"))
        self.assertIn(self.text(grammar='root ::= "yes" | "no"'), ("yes", "no"))
        tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<a>", "end": "</a>",
                                                    "content": {"type": "json_schema", "json_schema": SCHEMA}}}
        tagged = self.text(structural_tag=json.dumps(tag))
        self.assertRegex(tagged, r"(?s)\A<a>.*</a>\Z")
        self.assertIn(json.loads(tagged[len("<a>"):-len("</a>")])["days"], (1, 2, 3))
        tokens, _ = self.gateway.tokens(self.prompt, max_tokens=8, json_object=True)  # any object, which may have no end
        self.assertRegex(self.cluster.request("POST", "/detokenize", {"tokens": tokens}).json["prompt"], r"\A\s*\{\s*[\"}]")

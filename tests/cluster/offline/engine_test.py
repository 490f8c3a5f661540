"""The engine within a Python program (clients/python: LLM), and the blocks of docs/offline.md, run as written."""
import ast
import contextlib
import io
import json
import os
import unittest
import urllib.error
import urllib.request

from cluster.harness import ROOT, children, grpc, tiny
from cluster.harness.offline_engine import CASES, GREEDY, MODEL, PACKAGE, SETTINGS
from cluster.harness.page_blocks import Machine, marked_blocks
from somnus import LLM, BeamSearchParams, PoolingParams, SamplingParams, StructuredOutputsParams, metrics

with open(os.path.join(ROOT, "tests", "data", "beam_goldens.json"), encoding="utf-8") as golden_file:
    SEARCHES = [case for case in json.load(golden_file) if case["model"] == MODEL and "early_stopping" not in case]


class Pages(unittest.TestCase):
    def test_every_block_of_the_page_runs_as_written(self):
        """vLLM's three examples of sleep are among the blocks: offline, reinforcement learning, serving."""
        blocks = marked_blocks("docs/offline.md", to_run=True)
        self.assertEqual([language for language, _ in blocks], ["python"] * 3 + ["bash"] * 2 + ["python"])
        with Machine() as machine:
            said = [machine.run("python", text, PYTHONPATH=PACKAGE) for language, text in blocks if language == "python"]
            machine.serve(blocks[3][1])
            served = machine.run("bash", blocks[4][1])
        self.assertIn("The capital of France is", said[0])
        self.assertEqual(said[0].count("Paris"), 2)
        stream = list(map(ast.literal_eval, said[3].splitlines()))
        self.assertGreater(len(stream), 2)
        self.assertTrue(all(later.startswith(earlier) for earlier, later in zip(stream, stream[1:])))
        self.assertIn('{"is_sleeping":true}', served)
        self.assertIn('"status":"awake"', served)


class Engine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(tiny(MODEL), tensor_parallel_size=2, **SETTINGS)
        cls.addClassCleanup(cls.llm.shutdown)

    def generate(self, prompts, params=None, **fields):
        return self.llm.generate(prompts, params, use_tqdm=False, **fields)

    def test_tokens_of_many_prompts_in_their_order(self):
        """More prompts than a request has, of both kinds, each with different parameters."""
        prompts, params, wanted = [], [], []
        for number in range(150):
            case = CASES[number % len(CASES)]
            count = 1 + number % 7
            prompts.append({"prompt_token_ids": case["prompt"]} if number % 2 else case["prompt"])
            params.append(SamplingParams(temperature=0, max_tokens=count, ignore_eos=True))
            wanted.append(case["tokens"][:count])
        outputs = self.generate(prompts, params)
        self.assertEqual([one.outputs[0].token_ids for one in outputs], wanted)
        given = [CASES[number % len(CASES)]["prompt"] for number in range(150)]
        self.assertEqual([one.prompt_token_ids for one in outputs], given)
        self.assertEqual(len({one.request_id for one in outputs}), 150)
        same = self.generate([CASES[0]["prompt"]] * 150, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
        self.assertEqual([one.outputs[0].token_ids for one in same], [CASES[0]["tokens"][:4]] * 150)

    def test_prompts_that_wait_for_whoever_waits_for_them(self):
        case = CASES[0]
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        ids = self.llm.enqueue([case["prompt"]] * 3, params, priority=1)
        self.generate("abc", GREEDY)
        ids += self.llm.enqueue("abc", GREEDY)
        with self.assertRaises(TypeError):
            self.llm.wait_for_completion(int)
        outputs = self.llm.wait_for_completion(use_tqdm=False)
        self.assertEqual([one.request_id for one in outputs], ids)
        self.assertEqual([one.outputs[0].token_ids for one in outputs[:3]], [case["tokens"][:4]] * 3)
        self.assertEqual(outputs[3].outputs[0].text, self.generate("abc", GREEDY)[0].outputs[0].text)
        self.assertEqual(self.llm.wait_for_completion(use_tqdm=False), [])

    def test_samples_are_independent(self):
        params = SamplingParams(temperature=2, max_tokens=16, ignore_eos=True)
        texts = {tuple(one.outputs[0].token_ids) for one in self.generate(["abc"] * 64, params)}
        self.assertGreater(len(texts), 48)

    def test_choices_and_why_they_end(self):
        output, = self.generate("abc", SamplingParams(n=3, seed=4, max_tokens=5, ignore_eos=True))
        self.assertEqual([(one.index, len(one.token_ids), one.finish_reason) for one in output.outputs],
                         [(index, 5, "length") for index in range(3)])
        again, = self.generate("abc", SamplingParams(seed=5, max_tokens=5, ignore_eos=True))
        self.assertEqual(again.outputs[0].token_ids, output.outputs[1].token_ids)
        token = output.outputs[0].token_ids[2]
        stopped, = self.generate("abc", SamplingParams(seed=4, max_tokens=5, ignore_eos=True, stop_token_ids=[token]))
        self.assertEqual((stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason), ("stop", token))
        many = SamplingParams(stop=[f"<{number}>" for number in range(50)], max_tokens=2, ignore_eos=True)
        self.assertEqual(self.generate("abc", many)[0].outputs[0].finish_reason, "length", "a server takes four stops")
        chosen, = self.generate("abc", SamplingParams(structured_outputs=StructuredOutputsParams(choice=["left", "right"])))
        self.assertIn(chosen.outputs[0].text, ("left", "right"))

    def test_log_probabilities(self):
        case = CASES[0]
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=3, prompt_logprobs=1)
        output, = self.generate([case["prompt"]], params)
        choice = output.outputs[0]
        self.assertEqual([next(iter(one)) for one in choice.logprobs], choice.token_ids)
        for position in choice.logprobs:
            self.assertEqual([one.rank for one in position.values()], [1, 2, 3])
            values = [one.logprob for one in position.values()]
            self.assertEqual(values, sorted(values, reverse=True))
        self.assertAlmostEqual(choice.cumulative_logprob, sum(next(iter(one.values())).logprob for one in choice.logprobs))
        decode = self.llm.get_tokenizer().decode
        self.assertEqual([position[token].decoded_token for position, token in zip(choice.logprobs, choice.token_ids)],
                         [decode([token]) for token in choice.token_ids])
        self.assertEqual([output.prompt_logprobs[0], len(output.prompt_logprobs)], [None, len(case["prompt"])])
        unlikely, = self.generate([case["prompt"]], SamplingParams(max_tokens=1, logprobs=1, allowed_token_ids=[
            token for token in range(3, 9) if token not in choice.logprobs[0]]))
        first, second = unlikely.outputs[0].logprobs[0].values()
        self.assertIn((first.rank, second.rank), [(None, 1), (1, 2)])

    def test_what_is_refused_has_a_name(self):
        for params, name in (({"temperature": 9}, "temperature"), ({"top_p": 2}, "top_p"), ({"logprobs": 99}, "logprobs")):
            with self.assertRaisesRegex(ValueError, name):
                self.generate("abc", SamplingParams(**params))
        for prompt, error in ((3, TypeError), ({"text": "abc"}, ValueError), ([["abc"]], TypeError)):
            with self.assertRaises(error):
                self.generate(prompt)
        with self.assertRaisesRegex(ValueError, "sampling_params: 2 for 3"):
            self.generate(["a", "b", "c"], [GREEDY, GREEDY])
        with self.assertRaisesRegex(ValueError, "exactly one"):
            StructuredOutputsParams(regex="a", choice=["b"])
        for field, value in (("logits_processors", [print]), ("extra_args", {"a": 1}), ("logprob_token_ids", [1]),
                             ("thinking_token_budget", 9), ("flat_logprobs", True), ("repetition_detection", {"min_count": 2})):
            with self.assertRaisesRegex(ValueError, f"^{field}: "):
                SamplingParams(**{field: value})
        with self.assertRaisesRegex(TypeError, "no_such"):
            SamplingParams(no_such=1)
        self.assertEqual(self.generate([]), [])

    def test_requests_that_wait_for_room_in_the_queue(self):
        """More prompts than the queue takes are sent again; a prompt that could never go in is an error."""
        with LLM(tiny(MODEL), max_num_waiting=40, max_num_seqs=1, **SETTINGS) as llm:
            params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
            outputs = llm.generate([CASES[0]["prompt"]] * 200, params, use_tqdm=False)
            self.assertEqual([one.outputs[0].token_ids for one in outputs], [CASES[0]["tokens"][:2]] * 200)
            with self.assertRaisesRegex(RuntimeError, "queue"):
                llm.generate("abc", SamplingParams(n=60), use_tqdm=False)

    def test_sleep_wake_and_metrics(self):
        wanted = self.generate("abc", GREEDY)[0].outputs[0].token_ids
        for level in (1, 2):
            freed = self.llm.sleep(level=level)
            self.assertEqual((freed["level"], self.llm.is_sleeping()), (level, True))
            self.llm.wake_up(tags=["weights"])
            self.assertEqual((self.llm.is_sleeping(), self.llm.collective_rpc("reload_weights")), (True, [None, None]))
            self.llm.wake_up(tags=["kv_cache"])
            self.assertFalse(self.llm.is_sleeping())
            self.assertEqual(self.generate("abc", GREEDY)[0].outputs[0].token_ids, wanted)
        freed = self.llm.sleep(tags=["kv_cache"])
        self.assertTrue(self.llm.is_sleeping(), freed)
        self.llm.wake_up()
        self.assertEqual(self.generate("abc", GREEDY)[0].outputs[0].token_ids, wanted)
        self.llm.release_kv_cache_memory()
        self.assertTrue(self.llm.is_sleeping())
        self.llm.wake_up()
        self.assertEqual(self.llm.get_world_size(), 2)
        self.assertGreaterEqual(int(self.llm.get_weight_version()), 1)
        self.assertTrue(self.llm.reset_prefix_cache())
        self.assertEqual(self.llm.get_default_sampling_params(), SamplingParams())
        found = {type(one): one for one in self.llm.get_metrics() if one.name in (
            "vllm:prompt_tokens_total", "vllm:num_requests_running", "vllm:time_to_first_token_seconds")}
        self.assertEqual(set(found), {metrics.Counter, metrics.Gauge, metrics.Histogram})
        self.assertGreater(found[metrics.Counter].value, 0)
        self.assertEqual(found[metrics.Histogram].buckets["+Inf"], found[metrics.Histogram].count)

    def test_vectors(self):
        vectors = self.llm.embed(["a text", "another one"], use_tqdm=False)
        self.assertAlmostEqual(sum(value * value for value in vectors[0].outputs.embedding), 1, places=4)
        ids = self.llm.get_tokenizer().encode("another one")
        self.assertEqual(self.llm.encode([ids], use_tqdm=False)[0].outputs.data, vectors[1].outputs.embedding)
        each = [PoolingParams(use_activation=one) for one in (True, False)]
        both = self.llm.encode(["a text"] * 2, each, use_tqdm=False)
        lengths = [sum(value * value for value in one.outputs.data) for one in both]
        self.assertAlmostEqual(lengths[0], 1, places=4)
        self.assertGreater(abs(1 - lengths[1]), 0.01)
        with self.assertRaisesRegex(ValueError, "^task: "):
            PoolingParams(task="classify")
        plain, = self.llm.embed("a text", use_tqdm=False, pooling_params=PoolingParams(use_activation=False))
        self.assertGreater(abs(1 - sum(value * value for value in plain.outputs.embedding)), 0.01)

    def test_scores_are_the_cosines_of_vectors(self):
        texts = ["a text", "another one", "a text"]
        vectors = [one.outputs.embedding for one in self.llm.embed(texts, use_tqdm=False)]
        cosines = [sum(map(lambda one, other: one * other, vectors[0], vector)) for vector in vectors]
        scores = [one.outputs.score for one in self.llm.score(texts[0], texts, use_tqdm=False)]
        for score, cosine in zip(scores, cosines):
            self.assertAlmostEqual(score, cosine, places=5)
        self.assertAlmostEqual(scores[2], 1, places=5)
        self.assertLess(scores[1], 0.999)
        each = [one.outputs.score for one in self.llm.score(texts[:2], texts[1:], use_tqdm=False)]
        self.assertAlmostEqual(each[0], scores[1], places=5)
        self.assertEqual(len(each), 2)
        with self.assertRaisesRegex(ValueError, "data_1: 2 for 3"):
            self.llm.score(texts[:2], texts, use_tqdm=False)

    def test_the_tokenizer(self):
        tokenizer = self.llm.get_tokenizer()
        ids = tokenizer.encode("another one", add_special_tokens=False)
        self.assertEqual(tokenizer("another one", add_special_tokens=False), {"input_ids": ids})
        self.assertEqual(tokenizer(["another one"] * 2, add_special_tokens=False), {"input_ids": [ids, ids]})
        self.assertEqual(tokenizer.decode(ids), "another one")
        self.assertEqual(tokenizer.decode([tokenizer.eos_token_id]), tokenizer.eos_token)
        with_end = [*ids, tokenizer.eos_token_id]
        self.assertEqual(tokenizer.decode(with_end), "another one" + tokenizer.eos_token)
        self.assertEqual(tokenizer.decode(with_end, skip_special_tokens=True), "another one")
        self.assertEqual(self.llm.llm_engine.get_tokenizer().vocab_size, tokenizer.vocab_size)
        self.assertEqual(self.llm.llm_engine.model_config.max_model_len, self.llm.max_model_len)

    def test_beam_searches(self):
        """The answers are transformers'; tokens and texts begin with the prompt, and sums are the sums of the
        log-probabilities."""
        decode = self.llm.get_tokenizer().decode
        for case in SEARCHES:
            params = BeamSearchParams(beam_width=case["n"], max_tokens=case["max_tokens"], ignore_eos=case["ignore_eos"],
                                      length_penalty=case["length_penalty"])
            found, = self.llm.beam_search([{"prompt_token_ids": case["prompt"]}], params)
            self.assertEqual([(one.tokens, one.finish_reason) for one in found.sequences],
                             [(case["prompt"] + one["tokens"], one["finish_reason"]) for one in case["answers"]])
            for one in found.sequences:
                new = one.tokens[len(case["prompt"]):] + ([one.stop_reason] if one.finish_reason == "stop" else [])
                self.assertEqual([next(iter(position)) for position in one.logprobs], new)
                self.assertAlmostEqual(one.cum_logprob, sum(next(iter(position.values())).logprob for position in one.logprobs))
                self.assertEqual((one.text, one.orig_prompt), (decode(one.tokens, skip_special_tokens=True),
                                                               {"prompt_token_ids": case["prompt"]}))
        self.assertIn("stop", [one["finish_reason"] for case in SEARCHES for one in case["answers"]])
        params.include_stop_str_in_output, params.skip_special_tokens = True, False
        ended = [one for one in self.llm.beam_search([case["prompt"]], params)[0].sequences if one.finish_reason == "stop"]
        self.assertEqual([one.tokens[-1] for one in ended], [one.stop_reason for one in ended])
        self.assertEqual([one.text for one in ended], [decode(one.tokens) for one in ended])
        many = self.llm.beam_search(["abc"] * 5 + ["b"], BeamSearchParams(2, 4, ignore_eos=True), concurrency_limit=2)
        self.assertEqual(len({tuple(one.sequences[0].tokens) for one in many}), 2)
        self.assertEqual(many[5].sequences[0].orig_prompt["prompt"], "b")
        for width, message in ((33, "beams"), (0, "beam_width")):
            with self.assertRaisesRegex(ValueError, message):
                self.llm.beam_search("abc", BeamSearchParams(width, 4))
        with self.assertRaisesRegex(ValueError, "^structured_outputs: "):
            BeamSearchParams(2, 4, structured_outputs=StructuredOutputsParams(regex="a"))

    def test_a_bar_for_the_prompts(self):
        class Bar:
            seen = []

            def __init__(self, **fields):
                self.seen.append(fields["total"])

            def update(self, n=1):
                self.seen.append(n)

            def close(self):
                self.seen.append("closed")

        self.llm.generate(["abc"] * 40, SamplingParams(max_tokens=1), use_tqdm=Bar)
        self.assertEqual((Bar.seen[0], sum(Bar.seen[1:-1]), Bar.seen[-1]), (40, 40, "closed"))
        with contextlib.redirect_stderr(io.StringIO()) as nothing:
            self.llm.generate(["abc"], SamplingParams(max_tokens=1), use_tqdm=False)
        self.assertEqual(nothing.getvalue(), "")

    def test_its_ports_are_for_this_program_alone(self):
        """Other users of the machine reach the ports, but have no key: each listener refuses them, and no command line tells."""
        process = self.llm._process  # pylint: disable=protected-access
        for port, path in ((process.port, "/v1/models"), (process.admin_port, "/status")):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60)
            self.assertEqual(refused.exception.code, 401)
        for pid in [process.pid, *children(process.pid)]:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                command = file.read()
            self.assertNotIn(process.key, command)
            self.assertNotIn(process.admin_key, command)
        if grpc is None:
            self.skipTest("no gRPC for Python: tools/setup.sh tests")
        for port, method in ((process.grpc_port, "InferenceService/ListModels"), (process.control_port, "ControlService/GetStatus")):
            with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_http_proxy", 0)]) as channel:
                with self.assertRaises(grpc.RpcError) as refused:
                    channel.unary_unary(f"/somnus.v1.{method}")(b"", timeout=60)
            self.assertEqual(refused.exception.code(), grpc.StatusCode.UNAUTHENTICATED)

    def test_a_forked_process_leaves_the_engine_alone(self):
        pid = os.fork()
        if pid == 0:
            try:
                self.llm.shutdown()
                self.llm.is_sleeping()
            except RuntimeError:
                os._exit(3)
            finally:
                os._exit(4)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 3, "its calls are refused")
        self.assertEqual(len(self.generate("abc", GREEDY)), 1)


if __name__ == "__main__":
    unittest.main()

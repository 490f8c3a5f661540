"""The engine within a Python program (clients/python: LLM, AsyncLLM), and the blocks of docs/offline.md, run as written."""
import ast
import asyncio
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import warnings

from cluster.harness import BIN, ROOT, Cluster, alive, children, expected, tiny, wait_until
from cluster.harness.lora_files import write_adapter, write_merged
from cluster.harness.other_weights import second_checkpoint
from cluster.harness.page_blocks import Machine, marked_blocks
from cluster.harness.python_client import RLHF_STEP, InstalledClient

PACKAGE = os.path.join(ROOT, "clients", "python")
sys.path.insert(0, PACKAGE)
os.environ["SOMNUS_BIN"] = BIN

# pylint: disable=wrong-import-position
from somnus import (LLM, AsyncLLM, BeamSearchParams, EngineDeadError, EngineStartError, LoRARequest,  # noqa: E402
                    PoolingParams, RequestOutputKind, SamplingParams, StructuredOutputsParams, metrics, programs)
from somnus.engine_args import to_flags  # noqa: E402

MODEL = "llama-uneven"
SETTINGS = {"dtype": "float32", "kv_cache_memory_bytes": "32MiB"}
CASES = [case for case in expected(MODEL) if not case["ambiguous"]]
with open(os.path.join(ROOT, "tests", "data", "beam_goldens.json"), encoding="utf-8") as golden_file:
    SEARCHES = [case for case in json.load(golden_file) if case["model"] == MODEL and "early_stopping" not in case]
COORDINATOR = os.path.join(BIN, "coordinator", "coordinator")
ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
GREEDY = SamplingParams(temperature=0, max_tokens=8)


def engine_pids(pid):
    """The coordinator that the process has started, and the coordinator's workers."""
    return children(pid)


def run_program(text, *arguments, path=PACKAGE):
    """A Python process that runs the text, with pipes. Ctrl-C reaches the process also where the tests run in the background of
    a shell, which ignores it."""
    return subprocess.Popen([sys.executable, "-c", text, *arguments], env={**os.environ, "PYTHONPATH": path},
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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


class Arguments(unittest.TestCase):
    def test_flags(self):
        table = (
            ({"tensor_parallel_size": 2, "enforce_eager": True, "enable_prefix_caching": False, "max_model_len": None},
             ["--tensor-parallel-size=2", "--enforce-eager", "--no-enable-prefix-caching"]),
            ({"dtype": "half", "gpu_memory_utilization": 0.5, "swap_space": 0.5, "graph_sizes": [1, 2]},
             ["--dtype=float16", "--memory-utilization=0.5", "--swap-space=536870912B", "--graph-sizes=1,2"]),
            ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}, "task": "embed", "seed": 7},
             ["--speculative=ngram", "--num-speculative-tokens=3", "--runner=pooling", "--seed=7"]),
            ({"enable_expert_parallel": True}, ["--enable-expert-parallel"]),
            ({"enable_sleep_mode": True, "trust_remote_code": False, "tokenizer_mode": "auto", "logprobs_mode": "raw_logprobs",
              "convert": "auto", "nnodes": 1, "enable_eplb": False}, []),
            ({"cudagraph_capture_sizes": [1, 4]}, ["--graph-sizes=1,4"]),
            ({"enable_sleep_mode": False}, []),
            ({"spec_method": "ngram", "spec_tokens": 3}, ["--speculative=ngram", "--num-speculative-tokens=3"]),
            ({"spec_model": "/draft", "spec_tokens": 2},
             ["--draft-model=/draft", "--num-speculative-tokens=2", "--speculative=draft"]),
            ({"device_ids": [2, 3], "reasoning_parser": ""}, ["--device-indices=2,3"]),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for arguments, flags in table:
                self.assertEqual(to_flags(COORDINATOR, arguments), flags)

    def test_what_is_unknown_or_means_nothing_is_named(self):
        with self.assertRaisesRegex(TypeError, r"^unknown engine arguments: no_such, neither;"):
            to_flags(COORDINATOR, {"no_such": 1, "dtype": "auto", "neither": 2})
        with self.assertRaisesRegex(ValueError, r"^speculative_config: has method already"):
            to_flags(COORDINATOR, {"spec_method": "ngram", "speculative_config": {"method": "ngram"}})
        with self.assertRaisesRegex(TypeError, r"gives itself: port, api_key"):
            to_flags(COORDINATOR, {"port": 1, "api_key": "key"})
        with self.assertRaisesRegex(ValueError, r"^speculative_config: eagle: not known"):
            to_flags(COORDINATOR, {"speculative_config": {"eagle": 1}})
        with self.assertRaisesRegex(ValueError, r"^decode_context_parallel_size: "):
            to_flags(COORDINATOR, {"decode_context_parallel_size": 2})
        with self.assertRaisesRegex(ValueError, r"^num_gpu_blocks_override: .*kv_cache_memory_bytes"):
            to_flags(COORDINATOR, {"num_gpu_blocks_override": 100})
        for name, value in (("trust_remote_code", True), ("mm_processor_cache_gb", 4)):
            with self.assertWarnsRegex(UserWarning, rf"^{name} means nothing here"):
                self.assertEqual(to_flags(COORDINATOR, {name: value}), [])

    def test_vllms_defaults_given_by_name_start_an_engine(self):
        """The names and values are those of an installed vLLM (tests/data/make_vllm_signatures.py). A warning is fine: an argument
        may mean nothing here."""
        with open(os.path.join(ROOT, "tests", "data", "vllm_signatures.json"), encoding="utf-8") as file:
            rows = json.load(file)["EngineArgs"]
        defaults = {row[0]: row[2] for row in rows if len(row) > 2 and row[0] != "model" and not isinstance(row[2], dict)}
        self.assertGreater(len(defaults), 200)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            llm = LLM(tiny(MODEL), **{**defaults, **SETTINGS})
        with llm:
            params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
            output, = llm.generate([CASES[0]["prompt"]], params, use_tqdm=False)
        self.assertEqual(output.outputs[0].token_ids, CASES[0]["tokens"][:4])

    def test_methods_of_vllm_that_are_not_here(self):
        llm = LLM.__new__(LLM)
        for name, why in (("start_profile", "trace"), ("classify", "classify"), ("no_such_method", "no_such_method'$")):
            self.assertFalse(hasattr(llm, name))
            with self.assertRaisesRegex(AttributeError, why):
                getattr(llm, name)
        for call, name in ((lambda: llm.generate("a", tokenization_kwargs={"truncation": True}), "tokenization_kwargs"),
                           (lambda: llm.embed("a", lora_request=LoRARequest("a", 1, "/a")), "lora_request"),
                           (lambda: llm.reset_prefix_cache(reset_connector=True), "reset_connector"),
                           (lambda: llm.chat([{}], chat_template_content_format="openai"), "chat_template_content_format")):
            with self.assertRaisesRegex(ValueError, f"^{name}: "):
                call()

    def test_a_start_that_fails_shows_the_log(self):
        with self.assertRaisesRegex(EngineStartError, r"(?s)exit code 1.*no-such-model: cannot open"):
            LLM("/no-such-model")
        with self.assertRaisesRegex(EngineStartError, r"(?s)exit code 2.*max-num-seqs"):
            LLM(tiny(MODEL), max_num_seqs=0)
        self.assertEqual(engine_pids(os.getpid()), [])

    def test_programs_that_are_not_there(self):
        before = os.environ["SOMNUS_BIN"]
        os.environ["SOMNUS_BIN"] = "/no-such-folder"
        try:
            with self.assertRaisesRegex(FileNotFoundError, "/no-such-folder.*SOMNUS_BIN"):
                programs.folder()
        finally:
            os.environ["SOMNUS_BIN"] = before


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


class Adapters(unittest.TestCase):
    """Three adapters and the model, with one place for adapters."""

    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="somnus_lora_")
        cls.addClassCleanup(shutil.rmtree, cls.root)
        paths = [os.path.join(cls.root, name) for name in ("poet", "other", "third", "merged")]
        write_merged(tiny(MODEL), paths[3], write_adapter(tiny(MODEL), paths[0]))
        write_adapter(tiny(MODEL), paths[1], seed=2)
        write_adapter(tiny(MODEL), paths[2], rank=3, seed=3)
        with LLM(paths[3], **SETTINGS) as llm:
            cls.merged = llm.generate("abc", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
        cls.adapters = [LoRARequest(name, number, path)
                        for number, (name, path) in enumerate(zip(("poet", "other", "third"), paths), 1)]

    def tokens(self, prompts, lora_request=None, llm=None):
        outputs = (llm or self.llm).generate(prompts, GREEDY, use_tqdm=False, lora_request=lora_request)
        return [one.outputs[0].token_ids for one in outputs]

    def test_adapters_by_turns(self):
        with LLM(tiny(MODEL), enable_lora=True, max_loras=1, tensor_parallel_size=2, **SETTINGS) as self.llm:
            alone = [self.tokens("abc", adapter)[0] for adapter in [None, *self.adapters]]
            self.assertEqual(alone[1], self.merged)
            self.assertEqual(len(set(map(tuple, alone))), 4, "each has an answer of its own")
            mixed = [None, *self.adapters] * 4
            self.assertEqual(self.tokens(["abc"] * 16, mixed), alone * 4)
            output, = self.llm.generate("abc", GREEDY, use_tqdm=False, lora_request=self.adapters[0])
            self.assertEqual((output.lora_request, output.outputs[0].lora_request), (self.adapters[0],) * 2)
            self.llm.sleep(level=2)
            self.llm.wake_up()
            self.assertEqual(self.tokens("abc", self.adapters[0]), [self.merged])
            search, = self.llm.beam_search("abc", BeamSearchParams(1, 8), lora_request=self.adapters[0])
            self.assertEqual(search.sequences[0].tokens[-8:], self.merged)
            other_path = LoRARequest("poet", 4, self.adapters[1].lora_path)
            self.assertEqual(self.tokens("abc", other_path), [alone[2]], "another path under a known name")

            moving = os.path.join(self.root, "moving")
            for source, inplace, wanted in ((0, False, 1), (1, False, 1), (1, True, 2)):
                shutil.rmtree(moving, ignore_errors=True)
                shutil.copytree(self.adapters[source].lora_path, moving)
                self.assertEqual(self.tokens("abc", LoRARequest("moving", 5, moving, load_inplace=inplace)), [alone[wanted]])
            with self.assertRaisesRegex(LookupError, "adapter_config.json"):
                self.tokens("abc", LoRARequest("nowhere", 6, "/nowhere"))
            self.assertEqual(self.tokens("abc", self.adapters[0]), [self.merged])
            with self.assertRaisesRegex(LookupError, "adapter_config.json"):
                self.tokens("abc", LoRARequest("poet", 8, "/nowhere"))
            with self.assertRaisesRegex(ValueError, "is a served model"):
                self.tokens("abc", LoRARequest(MODEL, 7, moving))
            with self.assertRaisesRegex(ValueError, "lora_request: 1 for 2"):
                self.tokens(["abc", "b"], self.adapters[:1])
            self.assertEqual(self.tokens("abc", self.adapters[2]), [alone[3]])
            copies = [LoRARequest(f"copy {number}", number, self.adapters[0].lora_path) for number in range(20, 32)]
            self.assertEqual(self.tokens(["abc"] * len(copies), copies), [self.merged] * len(copies), "more than calls at once")

    def test_streams_and_engines_without_adapters(self):
        async def stream(llm):
            outputs = [one async for one in llm.generate("abc", GREEDY, lora_request=self.adapters[0])]
            return outputs[-1].outputs[0].token_ids, outputs[-1].lora_request

        async def nested(llm):
            """A reader that pauses holds no place of an adapter."""
            inner = []
            async for outer in llm.generate("abc", GREEDY, lora_request=self.adapters[0]):
                async for one in llm.generate("abc", GREEDY, lora_request=self.adapters[1]):
                    pass
                inner.append(one.outputs[0].token_ids)
            return outer.outputs[0].token_ids, inner

        llm = AsyncLLM(tiny(MODEL), enable_lora=True, max_loras=1, **SETTINGS)
        try:
            self.assertEqual(asyncio.run(stream(llm)), (self.merged, self.adapters[0]))
            outer, inner = asyncio.run(asyncio.wait_for(nested(llm), 120))
            self.assertEqual(outer, self.merged)
            self.assertNotIn(self.merged, inner)
        finally:
            llm.shutdown()
        with LLM(tiny(MODEL), **SETTINGS) as llm:
            with self.assertRaisesRegex(RuntimeError, "enable-lora"):
                self.tokens("abc", self.adapters[0], llm)
        for number, path, name in ((0, "/a", "lora_int_id"), (1, "", "lora_path")):
            with self.assertRaisesRegex(ValueError, f"^{name}: "):
                LoRARequest("poet", number, path)


INTERRUPTED = """
import sys, threading, signal, os
from somnus import LLM, SamplingParams
llm = LLM(sys.argv[1], tensor_parallel_size=2, dtype="float32", kv_cache_memory_bytes="32MiB")
running = lambda: sum(one.value for one in llm.get_metrics() if one.name == "vllm:num_requests_running")
def interrupt():
    while not running():
        pass
    os.kill(os.getpid(), signal.SIGINT)
llm.sleep(level=0)
threading.Thread(target=lambda: (llm.wake_up(), interrupt())).start()
try:
    llm.generate(["abc"] * 200, SamplingParams(max_tokens=None, ignore_eos=True, n=8), use_tqdm=False)
    print("not interrupted")
except KeyboardInterrupt:
    while running():
        pass
    print(len(llm.generate("abc", use_tqdm=False)))
"""

STAYS = """
import sys, time
from somnus import LLM
llm = LLM(sys.argv[1], tensor_parallel_size=2, dtype="float32", kv_cache_memory_bytes="32MiB")
print("started", flush=True)
time.sleep(1000)
"""


class Ends(unittest.TestCase):
    def test_ctrl_c_ends_the_call_and_not_the_engine(self):
        with run_program(INTERRUPTED, tiny(MODEL)) as program:
            said, errors = program.communicate(timeout=120)
        self.assertEqual((said, program.returncode), ("1\n", 0), errors)

    def test_nothing_outlives_the_program(self):
        for number in (signal.SIGINT, signal.SIGKILL):
            with self.subTest(number), run_program(STAYS, tiny(MODEL)) as program:
                self.assertEqual(program.stdout.readline(), "started\n")
                pids = engine_pids(program.pid)
                self.assertEqual(len(pids), 3, "a coordinator and two workers")
                program.send_signal(number)
                program.communicate(timeout=60)
                wait_until(lambda: not any(map(alive, pids)), 30, "all have ended")

    def test_an_engine_that_dies_is_an_error_with_its_log(self):
        with LLM(tiny(MODEL), **SETTINGS) as llm:
            coordinator, = [pid for pid in children(os.getpid()) if "coordinator" in os.readlink(f"/proc/{pid}/exe")]
            os.kill(coordinator, signal.SIGKILL)
            with self.assertRaisesRegex(EngineDeadError, r"(?s)signal 9.*serving"):
                llm.generate("abc", use_tqdm=False)
        with self.assertRaises(EngineDeadError):
            llm.is_sleeping()


class Streams(unittest.TestCase):
    def test_outputs_grow_and_a_reader_that_leaves_ends_the_request(self):
        async def work(llm):
            async def all_of(kind):
                params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1, output_kind=kind)
                return [one async for one in llm.generate(CASES[0]["prompt"], params)]

            whole, parts, end = await asyncio.gather(*map(all_of, RequestOutputKind))
            wanted = CASES[0]["tokens"][:12]
            self.assertEqual([one.finished for one in whole], [False] * (len(whole) - 1) + [True])
            self.assertTrue(all(one.outputs[0].token_ids == wanted[:len(one.outputs[0].token_ids)] for one in whole))
            self.assertEqual(sum((one.outputs[0].token_ids for one in parts), []), wanted)
            self.assertEqual("".join(one.outputs[0].text for one in parts), whole[-1].outputs[0].text)
            self.assertEqual([(one.finished, one.outputs[0].token_ids, one.outputs[0].finish_reason) for one in end],
                             [(True, wanted, "length")])
            self.assertEqual(len(whole[-1].outputs[0].logprobs), 12)

            stream = llm.generate("abc", ENDLESS)
            await stream.__anext__()
            await stream.aclose()
            while any(one.value for one in await llm.get_metrics() if one.name == "vllm:num_requests_running"):
                await asyncio.sleep(0.01)

            await llm.pause_generation()
            waiting = asyncio.ensure_future(llm.generate("abc", ENDLESS, "mine").__anext__())
            while not any(one.value for one in await llm.get_metrics() if one.name == "vllm:num_requests_waiting"):
                await asyncio.sleep(0.01)
            await llm.abort("mine")
            self.assertEqual((await waiting).outputs[0].finish_reason, "abort")
            await llm.resume_generation()
            with self.assertRaisesRegex(ValueError, "temperature"):
                await llm.generate("abc", SamplingParams(temperature=9)).__anext__()
            with self.assertRaisesRegex(ValueError, "^data_parallel_rank: "):
                await llm.generate("abc", GREEDY, data_parallel_rank=1).__anext__()
            await llm.check_health()
            self.assertEqual((await llm.get_weight_version(), llm.is_running, llm.errored), ("1", True, False))

        llm = AsyncLLM(tiny(MODEL), tensor_parallel_size=2, **SETTINGS)
        try:
            asyncio.run(work(llm))
            self.assertFalse(asyncio.run(llm.is_sleeping()), "another event loop")
        finally:
            llm.shutdown()


UPDATED = """
import json, runpy, sys
from somnus import LLM, SamplingParams
llm = LLM(sys.argv[1], tensor_parallel_size=2, dtype="float32", kv_cache_memory_bytes="32MiB", enable_sleep_mode=True)
versions = []
for shared_memory in (False, True):
    llm.sleep(level=2)
    llm.wake_up(tags=["weights"], load_weights=False)
    versions.append(llm.update_weights(runpy.run_path(sys.argv[2])["read_tensors"](sys.argv[3]), shared_memory=shared_memory))
    llm.wake_up(tags=["kv_cache"])
tokens = llm.generate([list(range(3, 40))], SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)[0].outputs[0].token_ids
print(json.dumps([versions, tokens]))
"""


class Updates(unittest.TestCase):
    def test_new_weights_in_place(self):
        other = second_checkpoint(type(self), tiny("qwen3"))
        self.addCleanup(type(self).doClassCleanups)
        with Cluster(other, "--dtype=float32", workers=2) as cluster:
            wanted = cluster.tokens(list(range(3, 40)), max_tokens=8)
        with InstalledClient() as client, run_program(UPDATED, tiny("qwen3"), RLHF_STEP, other, path=client.path) as program:
            said, errors = program.communicate(timeout=120)
        self.assertEqual(program.returncode, 0, errors)
        self.assertEqual(json.loads(said), [[2, 3], wanted])


if __name__ == "__main__":
    unittest.main()

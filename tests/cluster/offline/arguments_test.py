"""The arguments of the engine within a Python program: flags, names of vLLM's that are not here, starts that fail."""
import json
import os
import unittest
import warnings

from cluster.harness import BIN, ROOT, tiny
from cluster.harness.offline_engine import CASES, MODEL, SETTINGS, engine_pids
from somnus import LLM, EngineStartError, LoRARequest, SamplingParams, programs
from somnus.engine_args import to_flags

COORDINATOR = os.path.join(BIN, "coordinator", "coordinator")


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


if __name__ == "__main__":
    unittest.main()

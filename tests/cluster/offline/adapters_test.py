"""Adapters of the engine within a Python program: LLM and AsyncLLM read an adapter when a call first names the adapter."""
import asyncio
import os
import shutil
import tempfile
import unittest

from cluster.harness import tiny
from cluster.harness.lora_files import write_adapter, write_merged
from cluster.harness.offline_engine import GREEDY, MODEL, SETTINGS
from somnus import LLM, AsyncLLM, BeamSearchParams, LoRARequest


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


if __name__ == "__main__":
    unittest.main()

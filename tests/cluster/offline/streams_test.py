"""Streams of the engine within a Python program (clients/python: AsyncLLM)."""
import asyncio
import unittest

from cluster.harness import tiny
from cluster.harness.offline_engine import CASES, GREEDY, MODEL, SETTINGS
from somnus import AsyncLLM, RequestOutputKind, SamplingParams

ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)


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


if __name__ == "__main__":
    unittest.main()

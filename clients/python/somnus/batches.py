"""Many prompts become requests of several prompts each: few enough requests that HTTP costs little, small enough ones that the
engine always has enough sequences."""
import asyncio
from typing import Awaitable, Callable, Iterator, List, Optional, Sequence, Tuple

from somnus.engine_client import EngineClient, Job
from somnus.lora import LoRARequest
from somnus.outputs import BeamSearchOutput, RequestOutput
from somnus.prompts import Prompt
from somnus.sampling_params import BeamSearchParams

MOST_SEQUENCES = 32  # of one request
REQUESTS_AT_ONCE = 32


def cut(jobs: Sequence[Job]) -> Iterator[List[Job]]:
    """Runs of jobs that can be one request, in their order."""
    # With few prompts each request is smaller, so that all of them are under way at once.
    most = min(MOST_SEQUENCES, -(-sum(job.num_sequences for job in jobs) // REQUESTS_AT_ONCE))
    batch: List[Job] = []
    for job in jobs:
        if batch and not (_alike(batch[0], job) and (len(batch) + 1) * job.num_sequences <= most):
            yield batch
            batch = []
        batch.append(job)
    if batch:
        yield batch


def _alike(one: Job, other: Job) -> bool:
    if one.params is not None and (one.params.prompt_logprobs is not None or one.params.seed is not None):
        return False  # the answer is large; choice i of several prompts would have seed + i
    if one.lora != other.lora:
        return False
    return (one.params is other.params or one.params == other.params) and one.priority == other.priority and (
        (one.prompt.text is None) == (other.prompt.text is None)) and one.prompt.cache_salt == other.prompt.cache_salt


async def run(client: EngineClient, jobs: Sequence[Job], note_done: Callable[[int], object]) -> List[RequestOutput]:
    """The outputs of all jobs in their order. note_done: called with a number of prompts that are done now, in this thread.
    The first error ends all requests, and is raised."""
    outputs: List[Optional[RequestOutput]] = [None] * len(jobs)
    places = {job.number: at for at, job in enumerate(jobs)}
    client.adapters.begin_call(job.lora for job in jobs)
    batches = cut(jobs)

    async def work() -> None:
        for batch in batches:  # all workers share the iterator
            for job, output in zip(batch, await client.generate(batch)):
                outputs[places[job.number]] = output
            note_done(len(batch))

    await _at_once(work, min(REQUESTS_AT_ONCE, len(jobs)))
    return [output for output in outputs if output is not None]


async def search(client: EngineClient, jobs: Sequence[Tuple[Prompt, Optional[LoRARequest]]], params: BeamSearchParams,
                 at_once: Optional[int], note_done: Callable[[int], object]) -> List[BeamSearchOutput]:
    """A beam search for each prompt, at most so many at once. As run()."""
    if at_once is not None and at_once < 1:
        raise ValueError(f"concurrency_limit: {at_once} is below 1")
    outputs: List[Optional[BeamSearchOutput]] = [None] * len(jobs)
    client.adapters.begin_call(lora for _, lora in jobs)
    numbered = iter(enumerate(jobs))

    async def work() -> None:
        for at, (prompt, lora) in numbered:  # all workers share the iterator
            outputs[at] = await client.search_beams(prompt, params, lora)
            note_done(1)

    await _at_once(work, min(at_once or REQUESTS_AT_ONCE, len(jobs)))
    return [output for output in outputs if output is not None]


async def _at_once(work: Callable[[], Awaitable[None]], count: int) -> None:
    """Runs work() so many times at once. The first error ends all, and is raised."""
    tasks = [asyncio.ensure_future(work()) for _ in range(count)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

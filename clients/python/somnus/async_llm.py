"""An engine in this program, for asyncio: outputs come as they grow."""
import uuid
from typing import Any, AsyncIterator, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from somnus import engine, metrics, vllm_names
from somnus.engine_client import EngineClient, Job, query
from somnus.engine_process import EngineProcess
from somnus.lora import LoRARequest
from somnus.outputs import RequestOutput
from somnus.prompts import PromptType, read_prompt
from somnus.sampling_params import SamplingParams


class AsyncLLM:
    """As LLM, with coroutines. The constructor blocks until the engine serves, as vLLM's does; all other calls are for one event
    loop at a time."""

    def __init__(self, model: Any, **arguments: Any):
        self._process = engine.start(model, arguments)
        self._client = EngineClient(self._process)
        self._end = engine.end_with(self, EngineProcess.stop, self._process)

    def shutdown(self, timeout: Optional[float] = None) -> None:
        """Ends the engine; blocks until the processes have ended, and may be called again. timeout is ignored: an end takes a
        second, and is forced after that."""
        del timeout
        self._client.close()
        self._end()

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.shutdown()

    async def generate(self, prompt: PromptType, sampling_params: Optional[SamplingParams] = None,
                       request_id: Optional[str] = None, *, prompt_text: Optional[str] = None,
                       lora_request: Optional[LoRARequest] = None, tokenization_kwargs: Optional[Mapping[str, Any]] = None,
                       trace_headers: Optional[Mapping[str, str]] = None, priority: int = 0,
                       data_parallel_rank: Optional[int] = None, session_id: Optional[str] = None, kv_hints: Any = None,
                       reasoning_ended: Optional[bool] = None, reasoning_parser_kwargs: Optional[Mapping[str, Any]] = None
                       ) -> AsyncIterator[RequestOutput]:
        """Yields the output as it grows: everything so far each time, what is new (DELTA), or the end alone (FINAL_ONLY).
        The last one has `finished`. A reader that leaves the loop, or is cancelled, ends the request. prompt_text and session_id
        are ignored; ValueError for the other arguments that are not lora_request and priority."""
        del prompt_text, session_id
        vllm_names.refuse({
            "tokenization_kwargs": tokenization_kwargs, "trace_headers": trace_headers, "data_parallel_rank": data_parallel_rank,
            "kv_hints": kv_hints, "reasoning_ended": reasoning_ended, "reasoning_parser_kwargs": reasoning_parser_kwargs})
        self._check_alive()
        if not self._client.max_model_len:
            await self._client.open()
        job = Job(self._client.reserve_numbers(1), read_prompt(prompt), sampling_params, priority, lora_request)
        self._client.adapters.begin_call([lora_request])
        outputs = self._client.stream(job, request_id or uuid.uuid4().hex)
        try:
            async for output in outputs:
                yield output
        finally:
            await outputs.aclose()

    async def abort(self, request_id: Union[str, Iterable[str]], internal: bool = False) -> None:
        """These requests end with the finish_reason "abort". internal is ignored: a request has one id."""
        del internal
        await self._client.abort([request_id] if isinstance(request_id, str) else list(request_id))

    async def sleep(self, level: int = 1, mode: str = "keep", *, tags: engine.Tags = None, force: bool = True) -> Dict[str, Any]:
        """LLM.sleep()"""
        return await engine.sleep(self._client, level, mode, tags, force)

    async def wake_up(self, tags: engine.Tags = None, *, load_weights: Optional[bool] = None) -> Dict[str, Any]:
        """LLM.wake_up()"""
        return await engine.wake_up(self._client, tags, load_weights)

    async def is_sleeping(self) -> bool:
        return await engine.is_sleeping(self._client)

    async def release_kv_cache_memory(self) -> None:
        """LLM.release_kv_cache_memory()"""
        await engine.sleep(self._client, 1, "keep", ["kv_cache"], True)

    async def pause_generation(self, *, mode: str = "keep", clear_cache: bool = True) -> None:
        """Nothing is computed until resume_generation(); memory stays."""
        await self._client.operate(query("/pause", mode=mode, clear_cache=clear_cache))

    async def resume_generation(self) -> None:
        await self._client.operate("/resume")

    async def is_paused(self) -> bool:
        result: bool = (await self._client.operate("/is_paused", method="GET"))["is_paused"]
        return result

    async def update_weights(self, named_tensors: Iterable[Tuple[str, Any]], **fields: Any) -> int:
        """LLM.update_weights(), in a thread."""
        self._check_alive()
        version: int = await engine.in_thread(engine.update_weights, self._process, named_tensors, fields)
        return version

    async def collective_rpc(self, method: str, timeout: Optional[float] = None, args: Sequence[Any] = (),
                             kwargs: Optional[Mapping[str, Any]] = None) -> List[Any]:
        """LLM.collective_rpc()"""
        del timeout
        return await engine.collective_rpc(self._client, method, args, kwargs)

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        vllm_names.refuse({"reset_connector": reset_connector}, "caches do not move between engines", (False,))
        return await engine.reset_prefix_cache(self._client, reset_running_requests)

    async def get_weight_version(self) -> str:
        """LLM.get_weight_version()"""
        return await engine.get_weight_version(self._client)

    async def check_health(self) -> None:
        """EngineDeadError: the engine has ended."""
        self._check_alive()

    @property
    def is_running(self) -> bool:
        return self._process.running

    @property
    def errored(self) -> bool:
        return not self._process.running

    async def get_metrics(self) -> List[metrics.Metric]:
        return metrics.parse(await self._client.metrics_text())

    async def tokenize(self, text: str, add_special_tokens: bool = True) -> List[int]:
        return await self._client.tokenize({"prompt": text, "add_special_tokens": add_special_tokens})

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return await self._client.detokenize(token_ids)

    def __getattr__(self, name: str) -> Any:
        raise vllm_names.missing_method("AsyncLLM", name)

    def _check_alive(self) -> None:
        if not self._process.running:
            raise self._process.dead_error()

"""An engine in this program, in vLLM's words: LLM(model).generate(prompts)."""
import asyncio
import itertools
import operator
import os
import threading
import types
from typing import Any, Callable, Coroutine, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

from somnus import batches, engine, metrics, vllm_names
from somnus.engine_client import EngineClient, Job
from somnus.engine_process import EngineProcess
from somnus.errors import EngineDeadError
from somnus.loop_thread import LoopThread
from somnus.lora import LoRARequest
from somnus.outputs import (BeamSearchOutput, EmbeddingOutput, EmbeddingRequestOutput, PoolingOutput, PoolingRequestOutput,
                            RequestOutput, ScoringOutput, ScoringRequestOutput)
from somnus.progress import open_bar
from somnus.prompts import Prompt, PromptType, read_prompts
from somnus.sampling_params import MODEL_DEFAULTS, BeamSearchParams, PoolingParams, SamplingParams
from somnus.tokenizer import Tokenizer, chat_body

Prompts = Union[PromptType, Sequence[PromptType]]
Conversation = Sequence[Mapping[str, Any]]
Params = Union[SamplingParams, Sequence[SamplingParams], None]
LoRA = Union[LoRARequest, Sequence[Optional[LoRARequest]], None]
Pooling = Union[PoolingParams, Sequence[PoolingParams], None]
Priority = Union[int, Sequence[int], None]
UseTqdm = Union[bool, Callable[..., Any]]
Kwargs = Optional[Mapping[str, Any]]

T = TypeVar("T")
_EMBED_BATCH = 64
_TOKENIZED = "prompts are tokenized as the model says; give token ids for anything else"


class LLM:
    """A model that this program has to itself: one coordinator and its workers as child processes.

    model: a Hugging Face directory or a .gguf file. arguments: vLLM's engine arguments (tensor_parallel_size, dtype,
    max_model_len, gpu_memory_utilization, ...), and every flag of the coordinator with _ in the place of - (docs/flags.md).
    TypeError names unknown arguments. EngineStartError has the last lines of the engine's log, which otherwise goes to the
    logger `somnus.engine`.

    The processes end with shutdown(), at the end of a `with` block, with the last reference to this object, and with this
    program, however the program ends. Thread safe: calls from several threads share the batches. Ctrl-C within a call ends the
    call's requests, and the engine goes on. Errors of calls: ValueError for what the engine refuses, with the field's name;
    EngineDeadError.
    """

    def __init__(self, model: Any, **arguments: Any):
        self.model = os.fspath(model)
        self._lock = threading.Lock()
        self._kept: List[Job] = []  # by enqueue()
        self._process = engine.start(model, arguments)
        self._loop = LoopThread()
        self._client = EngineClient(self._process)
        self._end = engine.end_with(self, _end, self._process, self._loop, self._client)
        self._loop.run(self._client.open())

    def shutdown(self) -> None:
        """Ends the engine; may be called again. Every later call is an EngineDeadError."""
        self._end()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()

    # Text.

    def generate(self, prompts: Prompts, sampling_params: Params = None, *, use_tqdm: UseTqdm = True, lora_request: LoRA = None,
                 priority: Priority = None, tokenization_kwargs: Kwargs = None, mm_processor_kwargs: Kwargs = None
                 ) -> List[RequestOutput]:
        """The outputs of the prompts, in their order.

        prompts: one or several, each a text, token ids, or a dictionary with `prompt` or `prompt_token_ids`, and `cache_salt`.
        sampling_params: for all prompts, or one for each; None: the model's own (generation_config.json). priority: for all
        prompts, or one for each, lower first, with scheduling_policy="priority". lora_request: an adapter for all prompts, or one
        or None for each, of an engine with enable_lora=True; its directory is read when a call first names the adapter. While
        the engine sleeps the call waits for the wake-up.
        """
        _refuse_of_texts(tokenization_kwargs, mm_processor_kwargs)
        return self._generate(self._jobs(read_prompts(prompts), sampling_params, priority, lora_request), use_tqdm)

    def chat(self, messages: Union[Conversation, Sequence[Conversation]], sampling_params: Params = None,
             use_tqdm: UseTqdm = True, lora_request: LoRA = None, priority: Priority = None, chat_template: Optional[str] = None,
             chat_template_content_format: str = "auto", add_generation_prompt: bool = True, continue_final_message: bool = False,
             tools: Optional[Sequence[Mapping[str, Any]]] = None, chat_template_kwargs: Kwargs = None,
             tokenization_kwargs: Kwargs = None, mm_processor_kwargs: Kwargs = None) -> List[RequestOutput]:
        """As generate(), of one conversation or several, which become prompts by the model's chat template. Outputs have the
        text as the model writes it: tool calls and reasoning are part of the text."""
        _refuse_of_texts(tokenization_kwargs, mm_processor_kwargs)
        prompts = self._conversations(messages, chat_template, chat_template_content_format, _chat_fields(
            add_generation_prompt, continue_final_message, tools, chat_template_kwargs))
        return self._generate(self._jobs(prompts, sampling_params, priority, lora_request), use_tqdm)

    def enqueue(self, prompts: Prompts, sampling_params: Params = None, lora_request: LoRA = None, priority: Priority = None,
                use_tqdm: UseTqdm = True, tokenization_kwargs: Kwargs = None, mm_processor_kwargs: Kwargs = None) -> List[str]:
        """Keeps prompts for wait_for_completion(), and returns the ids of their requests. Arguments as of generate()."""
        del use_tqdm
        _refuse_of_texts(tokenization_kwargs, mm_processor_kwargs)
        return self._keep(self._jobs(read_prompts(prompts), sampling_params, priority, lora_request))

    def enqueue_chat(self, messages: Union[Conversation, Sequence[Conversation]], sampling_params: Params = None,
                     use_tqdm: UseTqdm = True, lora_request: LoRA = None, priority: Priority = None,
                     chat_template: Optional[str] = None, chat_template_content_format: str = "auto",
                     add_generation_prompt: bool = True, continue_final_message: bool = False,
                     tools: Optional[Sequence[Mapping[str, Any]]] = None, chat_template_kwargs: Kwargs = None,
                     tokenization_kwargs: Kwargs = None, mm_processor_kwargs: Kwargs = None) -> List[str]:
        """As enqueue(), of conversations. Arguments as of chat()."""
        del use_tqdm
        _refuse_of_texts(tokenization_kwargs, mm_processor_kwargs)
        prompts = self._conversations(messages, chat_template, chat_template_content_format, _chat_fields(
            add_generation_prompt, continue_final_message, tools, chat_template_kwargs))
        return self._keep(self._jobs(prompts, sampling_params, priority, lora_request))

    def wait_for_completion(self, output_type: Any = None, *, use_tqdm: UseTqdm = True) -> List[RequestOutput]:
        """The outputs of all prompts that enqueue() and enqueue_chat() have kept, in their order. output_type: RequestOutput, or
        types with RequestOutput among them; None: all."""
        if output_type is not None and RequestOutput not in (output_type if isinstance(output_type, tuple) else (output_type,)):
            raise TypeError(f"output_type: {output_type!r}; all outputs are of RequestOutput")
        with self._lock:
            jobs, self._kept = self._kept, []
        return self._generate(jobs, use_tqdm)

    def beam_search(self, prompts: Prompts, params: BeamSearchParams, lora_request: LoRA = None, use_tqdm: UseTqdm = False,
                    concurrency_limit: Optional[int] = None) -> List[BeamSearchOutput]:
        """The likeliest answers to each prompt that a search with params.beam_width beams finds. concurrency_limit: of searches
        under way at once (32)."""
        read = read_prompts(prompts)
        adapters = _for_each("lora_request", lora_request, len(read))
        bar = open_bar(use_tqdm, len(read))
        try:
            return self._run(batches.search(self._client, list(zip(read, adapters)), params, concurrency_limit, bar.update))
        finally:
            bar.close()

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own (generation_config.json), which generate() takes where it is given none."""
        rendered = self._run(self._client.post("/v1/completions/render", {"prompt": [[0]]}))[0]["sampling_params"]
        return SamplingParams(**{name: rendered[name] for name in MODEL_DEFAULTS if rendered.get(name) is not None})

    # Vectors.

    def embed(self, prompts: Prompts, *, use_tqdm: UseTqdm = True, normalize: bool = True, dimensions: Optional[int] = None,
              truncate_prompt_tokens: Optional[int] = None, pooling_params: Pooling = None, lora_request: LoRA = None,
              tokenization_kwargs: Kwargs = None) -> List[EmbeddingRequestOutput]:
        """A vector for each prompt: the final hidden states, pooled as pooling_type of the engine says ("last"). dimensions: of a
        model that was trained so, the first so many numbers. pooling_params: for all prompts, or one for each; its fields count
        before the other arguments."""
        _refuse_of_vectors(lora_request, tokenization_kwargs)
        read = read_prompts(prompts)
        vectors = self._vectors(read, use_tqdm, _fields_of_each(len(read), pooling_params, {
            "normalize": normalize, "dimensions": dimensions, "truncate_prompt_tokens": truncate_prompt_tokens}))
        return [EmbeddingRequestOutput(number, EmbeddingOutput(vector), prompt.token_ids)
                for prompt, (number, vector) in zip(read, vectors)]

    def encode(self, prompts: Prompts, pooling_params: Pooling = None, *, use_tqdm: UseTqdm = True,
               lora_request: LoRA = None, pooling_task: Optional[str] = None, tokenization_kwargs: Kwargs = None,
               truncate_prompt_tokens: Optional[int] = None) -> List[PoolingRequestOutput]:
        """As embed(), in vLLM's more general form. pooling_task: "embed", or None, which means the same."""
        _refuse_of_vectors(lora_request, tokenization_kwargs)
        if pooling_task not in (None, "embed"):
            raise ValueError(f"pooling_task: {pooling_task!r} is not known; 'embed' is")
        read = read_prompts(prompts)
        fields = _fields_of_each(len(read), pooling_params, {"truncate_prompt_tokens": truncate_prompt_tokens})
        return [PoolingRequestOutput(number, PoolingOutput(vector), prompt.token_ids)
                for prompt, (number, vector) in zip(read, self._vectors(read, use_tqdm, fields))]

    def score(self, data_1: Prompts, data_2: Prompts, *, use_tqdm: UseTqdm = True,
              pooling_params: Optional[PoolingParams] = None, truncate_prompt_tokens: Optional[int] = None,
              lora_request: LoRA = None, chat_template: Optional[str] = None,
              tokenization_kwargs: Kwargs = None) -> List[ScoringRequestOutput]:
        """How near texts are to each other, by their vectors: one of data_1 to each of data_2, or each to its counterpart."""
        _refuse_of_vectors(lora_request, tokenization_kwargs)
        vllm_names.refuse({"chat_template": chat_template}, "models that score pairs are not served")
        one, other = read_prompts(data_1), read_prompts(data_2)
        if len(one) not in (1, len(other)):
            raise ValueError(f"data_1: {len(one)} for {len(other)} of data_2")
        given = {} if pooling_params is None else pooling_params.to_json()
        fields = {"truncate_prompt_tokens": truncate_prompt_tokens, **given, "normalize": True}
        found = self._vectors([*one, *other], use_tqdm, [fields] * (len(one) + len(other)))
        vectors = [vector for _, vector in found]
        lefts = (vectors[:len(one)] * len(other))[:len(other)]
        return [ScoringRequestOutput(number, ScoringOutput(sum(map(operator.mul, left, right))), prompt.token_ids)
                for prompt, left, (number, right) in zip(other, lefts, found[len(one):])]

    # Sleep and weights.

    def sleep(self, level: int = 1, mode: str = "keep", *, tags: engine.Tags = None, force: bool = True) -> Dict[str, Any]:
        """Gives memory back to the machine; returns when all ranks have done so, with the bytes and the seconds of each
        (docs/api.md, /sleep).

        level: 1: weights are kept in host memory; 2: weights are discarded, and read again or updated after the wake-up;
        0: a pause. mode: what becomes of calls under way in other threads: "keep", "wait" or "abort". tags: of "weights",
        "kv_cache", "workspace"; None: all. force: level 2 also discards weights that update_weights() has brought, as with vLLM.
        """
        return self._run(engine.sleep(self._client, level, mode, tags, force))

    def wake_up(self, tags: engine.Tags = None, *, load_weights: Optional[bool] = None) -> Dict[str, Any]:
        """Maps the memory of the tags again (None: all) and brings back what was in it. load_weights=False: weights that were
        discarded are not read, because a reload or an update comes next."""
        return self._run(engine.wake_up(self._client, tags, load_weights))

    def is_sleeping(self) -> bool:
        return self._run(engine.is_sleeping(self._client))

    def update_weights(self, named_tensors: Iterable[Tuple[str, Any]], **fields: Any) -> int:
        """Replaces weights in place: pairs of a name, as in the checkpoint, and a whole tensor, as model.state_dict().items().
        Returns the new version. fields: of Client.update_weights (shared_memory=True is fastest). Needs grpcio
        (pip install 'somnus[grpc]')."""
        self._check_alive()
        return engine.update_weights(self._process, named_tensors, fields)

    def collective_rpc(self, method: str, timeout: Optional[float] = None, args: Sequence[Any] = (),
                       kwargs: Kwargs = None) -> List[Any]:
        """One of the engine's own methods on every rank: "reload_weights" (`path`), "get_status", "sleep", "wake_up",
        "reset_prefix_cache". Returns a value for each rank. timeout is ignored: every call has its own."""
        del timeout
        return self._run(engine.collective_rpc(self._client, method, args, kwargs))

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """No later prompt finds what was computed before."""
        vllm_names.refuse({"reset_connector": reset_connector}, "caches do not move between engines", (False,))
        return self._run(engine.reset_prefix_cache(self._client, reset_running_requests))

    def release_kv_cache_memory(self) -> None:
        """sleep(tags=["kv_cache"]): the weights stay. Requests that other threads have open go on after wake_up()."""
        self._run(engine.sleep(self._client, 1, "keep", ["kv_cache"], True))

    # Facts about the engine.

    def get_metrics(self) -> List[metrics.Metric]:
        """The metrics of a server's GET /metrics, as Counter, Gauge and Histogram."""
        return metrics.parse(self._run(self._client.metrics_text()))

    def get_world_size(self, include_dp: bool = True) -> int:
        """The number of workers: of all replicas, or of one."""
        return self._run(engine.get_world_size(self._client, include_dp))

    def get_weight_version(self) -> str:
        """Grows by one with each update, unless update_weights() or a reload says a number."""
        return self._run(engine.get_weight_version(self._client))

    def get_tokenizer(self, lora_request: Optional[LoRARequest] = None) -> Tokenizer:
        """The model's own, which its adapters have, too."""
        del lora_request
        return Tokenizer(lambda body: self._run(self._client.tokenize(body)), lambda ids: self._run(self._client.detokenize(ids)),
                         lambda: self._run(self._client.get("/tokenizer_info")))

    @property
    def max_model_len(self) -> int:
        return self._client.max_model_len

    @property
    def llm_engine(self) -> "_Engine":
        """The parts that vLLM's examples take: model_config.max_model_len, get_tokenizer(), engine_core.shutdown()."""
        return _Engine(self)

    def __getattr__(self, name: str) -> Any:
        raise vllm_names.missing_method("LLM", name)

    # Parts of the calls above.

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_alive()
        except EngineDeadError:
            work.close()
            raise
        return self._loop.run(work)

    def _check_alive(self) -> None:
        if not self._process.is_owner:
            raise RuntimeError("the engine belongs to the process that has started it, not to one that was forked from it")
        if not self._process.running:
            raise self._process.dead_error()

    def _jobs(self, prompts: Sequence[Prompt], params: Params, priority: Priority, lora_request: LoRA) -> List[Job]:
        each = _for_each("sampling_params", params, len(prompts))
        priorities = _for_each("priority", 0 if priority is None else priority, len(prompts))
        adapters = _for_each("lora_request", lora_request, len(prompts))
        numbers = itertools.count(self._client.reserve_numbers(len(prompts)))
        return [Job(next(numbers), *job) for job in zip(prompts, each, priorities, adapters)]

    def _conversations(self, messages: Union[Conversation, Sequence[Conversation]], chat_template: Optional[str],
                       content_format: str, fields: Mapping[str, Any]) -> List[Prompt]:
        """The prompts that the chat template makes. fields: of /tokenize."""
        if chat_template is not None:
            raise ValueError("chat_template: give it to LLM(..., chat_template=...)")
        vllm_names.refuse({"chat_template_content_format": content_format}, "the template tells which content it takes", ("auto",))
        conversations: List[Any] = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        return self._run(_rendered(self._client, [chat_body(one, **fields) for one in conversations]))

    def _keep(self, jobs: Sequence[Job]) -> List[str]:
        with self._lock:
            self._kept += jobs
        return [str(job.number) for job in jobs]

    def _generate(self, jobs: Sequence[Job], use_tqdm: UseTqdm) -> List[RequestOutput]:
        bar = open_bar(use_tqdm, len(jobs))
        try:
            return self._run(batches.run(self._client, jobs, bar.update))
        finally:
            bar.close()

    def _vectors(self, prompts: Sequence[Prompt], use_tqdm: UseTqdm, fields: Sequence[Mapping[str, Any]]
                 ) -> List[Tuple[str, List[float]]]:
        """fields: of the body, for each prompt; those that are None are left out."""
        bar = open_bar(use_tqdm, len(prompts))
        first = self._client.reserve_numbers(len(prompts))
        vectors: List[List[float]] = []
        jobs = [(prompt, {**one, "cache_salt": prompt.cache_salt}) for prompt, one in zip(prompts, fields)]
        try:
            for begin in range(0, len(jobs), _EMBED_BATCH):
                for (_, shared), run in itertools.groupby(jobs[begin:begin + _EMBED_BATCH],
                                                          lambda job: (job[0].text is None, job[1])):
                    batch = list(run)
                    body = {name: value for name, value in shared.items() if value is not None}
                    reply = self._run(self._client.post("/v1/embeddings", {**body, "input": [job[0].value for job in batch]}))
                    vectors += [one["embedding"] for one in reply["data"]]
                    bar.update(len(batch))
        finally:
            bar.close()
        return [(str(first + at), vector) for at, vector in enumerate(vectors)]


class _Engine:
    """The parts of an LLM under the names that they have within vLLM's."""

    def __init__(self, llm: LLM):
        self.get_tokenizer, self.collective_rpc, self.reset_prefix_cache = (
            llm.get_tokenizer, llm.collective_rpc, llm.reset_prefix_cache)
        self.model_config = types.SimpleNamespace(max_model_len=llm.max_model_len, model=llm.model)
        self.engine_core = types.SimpleNamespace(shutdown=llm.shutdown)


def _end(process: EngineProcess, loop: LoopThread, client: EngineClient) -> None:
    if process.is_owner:
        loop.close(client.close)
        process.stop()


def _chat_fields(add_generation_prompt: bool, continue_final_message: bool, tools: Optional[Sequence[Mapping[str, Any]]],
                 chat_template_kwargs: Kwargs) -> Dict[str, Any]:
    return {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message or None,
            "tools": list(tools) if tools else None,
            "chat_template_kwargs": dict(chat_template_kwargs) if chat_template_kwargs else None}


def _refuse_of_texts(tokenization_kwargs: Any, mm_processor_kwargs: Any) -> None:
    vllm_names.refuse({"tokenization_kwargs": tokenization_kwargs}, _TOKENIZED)
    vllm_names.refuse({"mm_processor_kwargs": mm_processor_kwargs}, "there are no images")


def _refuse_of_vectors(lora_request: Any, tokenization_kwargs: Any) -> None:
    vllm_names.refuse({"lora_request": lora_request}, "vectors are of the model itself")
    vllm_names.refuse({"tokenization_kwargs": tokenization_kwargs}, _TOKENIZED)


def _fields_of_each(count: int, params: Pooling, fields: Mapping[str, Any]) -> List[Dict[str, Any]]:
    return [{**fields, **({} if one is None else one.to_json())} for one in _for_each("pooling_params", params, count)]


def _for_each(name: str, value: Any, count: int) -> List[Any]:
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name}: {len(value)} for {count} prompts")
    return list(value)


async def _rendered(client: EngineClient, bodies: Sequence[Mapping[str, Any]]) -> List[Prompt]:
    """Conversations as the text and the tokens of prompts."""
    ids = await asyncio.gather(*(client.tokenize(body) for body in bodies))
    texts = await asyncio.gather(*(client.detokenize(one) for one in ids))
    return [Prompt(token_ids=one, shown=text) for one, text in zip(ids, texts)]

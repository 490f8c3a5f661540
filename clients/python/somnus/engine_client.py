"""The calls of a running engine, over its HTTP routes (docs/api.md), for one event loop."""
import asyncio
import dataclasses
import json
import threading
import urllib.parse
from typing import Any, AsyncGenerator, AsyncIterator, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence

from somnus.engine_process import EngineProcess
from somnus.errors import EngineDeadError
from somnus.http_client import HttpClient, HttpError
from somnus.lora import Adapters, LoRARequest
from somnus.outputs import BeamSearchOutput, BeamSearchSequence, CompletionOutput, Logprob, PositionLogprobs, RequestOutput
from somnus.prompts import Prompt
from somnus.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from somnus.tokenizer import special_ids

_TOKEN_ID = "token_id:"
_MAX_CONNECTIONS = 512
_AGAIN_S = 0.05  # until a request is sent again for which the queue had no room
_MAX_TOKEN_TEXTS = 1 << 20
_OTHER_ERRORS = {404: LookupError, 501: NotImplementedError}


@dataclasses.dataclass
class Job:
    """One prompt of a batch. `params` None: the model's own defaults."""

    number: int  # of the request among those of this engine
    prompt: Prompt
    params: Optional[SamplingParams]
    priority: int = 0
    lora: Optional[LoRARequest] = None

    @property
    def num_sequences(self) -> int:
        return 1 if self.params is None else self.params.num_sequences

    @property
    def num_logprobs(self) -> Optional[int]:
        return None if self.params is None else self.params.logprobs


def query(path: str, **fields: Any) -> str:
    """A path with parameters; those that are None are left out."""
    pairs: List[Any] = []
    for name, value in fields.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is not None:
                pairs.append((name, str(one).lower() if isinstance(one, bool) else one))
    return f"{path}?{urllib.parse.urlencode(pairs)}" if pairs else path


class EngineClient:
    """Not thread safe but for reserve_numbers(): of one event loop at a time. Errors: ValueError for what the server refuses
    (the message has the field's name), TimeoutError, EngineDeadError, LookupError (404), RuntimeError for the rest."""

    def __init__(self, process: EngineProcess):
        self._process = process
        self._public = HttpClient(process.port, process.key, _MAX_CONNECTIONS)
        self._admin = HttpClient(process.admin_port, process.admin_key, _MAX_CONNECTIONS)
        self.adapters = Adapters(self.operate)
        self._token_texts: Dict[int, str] = {}
        self._special_ids: Optional[FrozenSet[int]] = None  # not asked yet
        self._lock, self._next_number = threading.Lock(), 0
        self._under_way = 0  # requests for text
        self.max_model_len = 0
        self.model_name = ""

    async def open(self) -> None:
        """Asks what is served."""
        card = (await self.get("/v1/models"))["data"][0]
        self.max_model_len, self.model_name = card["max_model_len"], card["id"]

    def close(self) -> None:
        self._public.close()
        self._admin.close()

    def reserve_numbers(self, count: int) -> int:
        """The first of so many numbers for requests. Thread safe."""
        with self._lock:
            first, self._next_number = self._next_number, self._next_number + count
        return first

    # Plain calls.

    async def get(self, path: str) -> Any:
        return json.loads(await self._call(self._public, "GET", path))

    async def post(self, path: str, body: Any) -> Any:
        return json.loads(await self._call(self._public, "POST", path, body))

    async def operate(self, path: str, body: Any = None, method: str = "POST") -> Any:
        """A call of the operators' listener."""
        return json.loads(await self._call(self._admin, method, path, body))

    async def metrics_text(self) -> str:
        return (await self._call(self._public, "GET", "/metrics")).decode()

    async def tokenize(self, body: Mapping[str, Any]) -> List[int]:
        tokens: List[int] = (await self.post("/tokenize", body))["tokens"]
        return tokens

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        text: str = (await self.post("/detokenize", {"tokens": list(token_ids)}))["prompt"]
        return text

    # Text.

    async def generate(self, jobs: Sequence[Job]) -> List[RequestOutput]:
        """The outputs of jobs that can be one request: prompts of one kind, the same parameters, salt, priority and adapter."""
        body = self._body(jobs)
        async with self.adapters.use(jobs[0].lora):
            reply = await self._when_there_is_room(body)
        choices = reply["choices"]
        await self._learn_token_texts(choices)
        per_prompt = len(choices) // len(jobs)
        cached = reply["usage"].get("prompt_tokens_details") or {}
        outputs = [self._output(job, choices[at * per_prompt:(at + 1) * per_prompt]) for at, job in enumerate(jobs)]
        if len(jobs) == 1:
            outputs[0].num_cached_tokens = cached.get("cached_tokens")
        return outputs

    async def stream(self, job: Job, request_id: str) -> AsyncGenerator[RequestOutput, None]:
        """The output as it grows, in the manner of the parameters' output_kind. A reader that stops reading ends the request."""
        body = {**self._body([job]), "stream": True, "stream_options": {"include_usage": True}, "request_id": request_id}
        growing = _GrowingOutput(job, request_id)
        kind = RequestOutputKind.CUMULATIVE if job.params is None else job.params.output_kind
        async with self.adapters.use(job.lora) as let_go:
            async for event in self._events(body):
                let_go()  # the reader may pause for ever, and others need the adapter's name
                if event.get("usage"):
                    growing.note_usage(event["usage"])
                await self._learn_token_texts(event["choices"])
                shown = growing.add(event["choices"], lambda choice: self._logprobs(job.num_logprobs, choice))
                if shown and kind is not RequestOutputKind.FINAL_ONLY and not growing.finished:
                    yield growing.take(kind)
        if not growing.finished:
            raise EngineDeadError("the stream has ended before its last token")
        yield growing.take(kind)

    async def search_beams(self, prompt: Prompt, params: BeamSearchParams, lora: Optional[LoRARequest]) -> BeamSearchOutput:
        """The answers of a beam search."""
        body = {"prompt": [prompt.value], "return_token_ids": True, "return_tokens_as_token_ids": True, **params.to_json(),
                **_fields_of(prompt, lora)}
        async with self.adapters.use(lora):
            choices = (await self._when_there_is_room(body))["choices"]
        await self._learn_token_texts(choices)
        ids = choices[0]["prompt_token_ids"]
        original = {"prompt_token_ids": ids, **({} if prompt.text is None else {"prompt": prompt.text})}
        sequences = []
        for choice in choices:
            ended = choice["finish_reason"] == "stop" and not params.include_stop_str_in_output
            tokens = ids + (choice["token_ids"][:-1] if ended else choice["token_ids"])
            sequences.append(BeamSearchSequence(
                original, tokens, self._logprobs(body["logprobs"], choice) or [], lora, _sum_of(choice) or 0.0,
                await self._text_of(tokens, params.skip_special_tokens), choice["finish_reason"], choice["stop_reason"]))
        return BeamSearchOutput(sequences)

    async def abort(self, request_ids: Optional[Sequence[str]] = None) -> None:
        """Ends these requests, or all."""
        named = {} if request_ids is None else {"request_ids": [f"cmpl-{one}" for one in request_ids]}
        await self.operate("/abort_requests", named)

    # Parts of the calls above.

    async def _when_there_is_room(self, body: Any) -> Any:
        while True:
            self._under_way += 1
            try:
                return await self.post("/v1/completions", body)
            except _QueueFull:
                if self._under_way == 1:  # there is nothing whose end would make room
                    raise
            finally:
                self._under_way -= 1
            await asyncio.sleep(_AGAIN_S)

    async def _events(self, body: Any) -> AsyncIterator[Any]:
        while True:
            self._under_way += 1
            try:
                async for event in self._public.events("/v1/completions", body):
                    if "error" in event:
                        raise _as_python(HttpError(event["error"].get("code") or 500, event["error"]["message"],
                                                   event["error"].get("param"), None))
                    yield event
                return
            except HttpError as error:
                if error.status != 429 or self._under_way == 1:
                    raise _as_python(error) from None
            except EngineDeadError as error:
                raise self._dead() from error
            finally:
                self._under_way -= 1
            await asyncio.sleep(_AGAIN_S)

    async def _call(self, client: HttpClient, method: str, path: str, body: Any = None) -> bytes:
        try:
            return await client.request(method, path, body)
        except HttpError as error:
            raise _as_python(error) from None
        except EngineDeadError as error:
            raise self._dead() from error

    def _dead(self) -> EngineDeadError:
        self._process.wait_end(1)  # a connection breaks a moment before the process has ended
        return self._process.dead_error()

    def _body(self, jobs: Sequence[Job]) -> Dict[str, Any]:
        first = jobs[0]
        body: Dict[str, Any] = {"prompt": [job.prompt.value for job in jobs], "return_token_ids": True}
        if first.params is not None:
            body.update(first.params.to_json(self.max_model_len))
            body["return_tokens_as_token_ids"] = True
        if first.priority:
            body["priority"] = first.priority
        return {**body, **_fields_of(first.prompt, first.lora)}

    async def _text_of(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        if skip_special_tokens:
            special = self._special_ids
            if special is None:
                special = self._special_ids = special_ids(await self.get("/tokenizer_info"))
            tokens = [one for one in tokens if one not in special]
        return await self.detokenize(tokens)

    def _output(self, job: Job, choices: Sequence[Any]) -> RequestOutput:
        with_text = job.params is None or job.params.detokenize
        outputs = []
        for index, choice in enumerate(choices):
            logprobs = self._logprobs(job.num_logprobs, choice)
            outputs.append(CompletionOutput(
                index=index, text=choice["text"] if with_text else "", token_ids=choice["token_ids"], logprobs=logprobs,
                cumulative_logprob=_sum_of(choice), finish_reason=choice["finish_reason"], stop_reason=choice["stop_reason"],
                lora_request=job.lora))
        return RequestOutput(
            request_id=str(job.number), prompt=job.prompt.text or job.prompt.shown,
            prompt_token_ids=choices[0]["prompt_token_ids"], outputs=outputs, finished=True,
            prompt_logprobs=_prompt_logprobs(choices[0].get("prompt_logprobs")), lora_request=job.lora)

    def _logprobs(self, most: Optional[int], choice: Any) -> Optional[List[PositionLogprobs]]:
        """Of a choice of a request that has asked for so many alternatives."""
        found = choice.get("logprobs")
        if not found or most is None:
            return None
        positions: List[PositionLogprobs] = []
        for token, logprob, alternatives in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"]):
            ranked = sorted((alternatives or {}).items(), key=lambda one: -one[1])
            ranks: Dict[int, Optional[int]] = {_id_of(name): rank for rank, (name, _) in enumerate(ranked, 1)}
            chosen = _id_of(token)
            if len(ranked) > most:  # the chosen token is there beside the likeliest ones
                ranks[chosen] = None
            position = {chosen: Logprob(logprob, ranks.get(chosen), self._token_texts.get(chosen))}
            for name, value in ranked:
                one = _id_of(name)
                if one != chosen:
                    position[one] = Logprob(value, ranks[one], self._token_texts.get(one))
            positions.append(position)
        return positions

    async def _learn_token_texts(self, choices: Sequence[Any]) -> None:
        """The texts of all tokens that log-probabilities name, by one call each, once in an engine's life."""
        missing = {token for choice in choices for token in _ids_of_logprobs(choice)} - self._token_texts.keys()
        if len(self._token_texts) + len(missing) > _MAX_TOKEN_TEXTS:
            self._token_texts.clear()
        texts = await asyncio.gather(*(self.detokenize([token]) for token in missing))
        self._token_texts.update(zip(missing, texts))


class _GrowingOutput:
    """The RequestOutput of a stream."""

    def __init__(self, job: Job, request_id: str):
        self._with_text = job.params is None or job.params.detokenize
        self._all = RequestOutput(request_id, job.prompt.text, list(job.prompt.token_ids or []), [], False, lora_request=job.lora)
        count = 1 if job.params is None else job.params.n
        self._all.outputs = [CompletionOutput(index, "", [], lora_request=job.lora) for index in range(count)]
        self._new = [dataclasses.replace(one) for one in self._all.outputs]

    @property
    def finished(self) -> bool:
        return all(one.finished() for one in self._all.outputs)

    def note_usage(self, usage: Any) -> None:
        self._all.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")

    def add(self, choices: Sequence[Any], logprobs_of: Any) -> bool:
        """Whether there is anything to show."""
        shown = False
        for choice in choices:
            if choice.get("prompt_token_ids"):
                self._all.prompt_token_ids = choice["prompt_token_ids"]
            index, total = choice["index"], _sum_of(choice)
            for one in (self._all.outputs[index], self._new[index]):
                one.text += choice["text"] if self._with_text else ""
                one.token_ids = one.token_ids + (choice["token_ids"] or [])
                if total is not None:
                    one.logprobs = (one.logprobs or []) + (logprobs_of(choice) or [])
                    one.cumulative_logprob = (one.cumulative_logprob or 0.0) + total
                one.finish_reason = choice["finish_reason"] or one.finish_reason
                one.stop_reason = choice["stop_reason"] if choice["stop_reason"] is not None else one.stop_reason
            shown = shown or bool(choice["token_ids"]) or choice["finish_reason"] is not None
        return shown

    def take(self, kind: RequestOutputKind) -> RequestOutput:
        """A copy of everything so far, or of what is new since the last one."""
        delta = kind is RequestOutputKind.DELTA
        source = self._new if delta else self._all.outputs
        outputs = [dataclasses.replace(one) for one in source if not delta or one.token_ids or one.text or one.finished()]
        if delta:
            self._new = [CompletionOutput(one.index, "", [], lora_request=one.lora_request) for one in self._new]
        return dataclasses.replace(self._all, outputs=outputs, finished=self.finished)


class _QueueFull(RuntimeError):
    """The engine's queue has no room; the same request may be sent again."""


def _as_python(error: HttpError) -> Exception:
    message = error.message
    if error.status == 400 or error.status == 413:
        return ValueError(message)
    if error.status == 429:
        return _QueueFull(message)
    if error.status == 504:
        return TimeoutError(message)
    return _OTHER_ERRORS.get(error.status, RuntimeError)(message)


def _fields_of(prompt: Prompt, lora: Optional[LoRARequest]) -> Dict[str, Any]:
    salt = {} if prompt.cache_salt is None else {"cache_salt": prompt.cache_salt}
    return salt if lora is None else {**salt, "model": lora.lora_name}


def _id_of(token: str) -> int:
    return int(token[len(_TOKEN_ID):])


def _ids_of_logprobs(choice: Any) -> Iterator[int]:
    found = choice.get("logprobs")
    if found:
        yield from map(_id_of, found["tokens"])
        for alternatives in found["top_logprobs"]:
            yield from map(_id_of, alternatives or {})


def _sum_of(choice: Any) -> Optional[float]:
    found = choice.get("logprobs")
    return sum(found["token_logprobs"]) if found else None


def _prompt_logprobs(found: Optional[Sequence[Any]]) -> Optional[List[Optional[PositionLogprobs]]]:
    if found is None:
        return None
    return [None if one is None else {int(token): Logprob(**fields) for token, fields in one.items()} for one in found]

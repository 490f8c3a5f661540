"""One class: a client of a server's two gRPC listeners."""
import contextlib
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import grpc

from somnus import updates
from somnus.v1 import control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc, prefixes_pb2, prefixes_pb2_grpc

MODES = {"keep": control_pb2.SLEEP_MODE_KEEP, "wait": control_pb2.SLEEP_MODE_WAIT, "abort": control_pb2.SLEEP_MODE_ABORT}

# A text, or token ids.
Prompt = Union[str, Sequence[int]]


class Completion(NamedTuple):
    """One choice. weights_version: of the weights that computed its last token."""

    text: str
    token_ids: Tuple[int, ...]
    finish_reason: str
    weights_version: int


def mode_of(word: str) -> int:
    if word not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {word!r}")
    mode: int = MODES[word]
    return mode


def channel_to(address: str, certificate: Optional[bytes]) -> Any:
    if certificate is None:
        return grpc.insecure_channel(address)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(certificate))


def put_prompt(request: Any, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)


def token_of(key: Optional[str]) -> List[Tuple[str, str]]:
    return [] if key is None else [("authorization", f"Bearer {key}")]


class Client:
    """Generates, and operates the engine. Thread safe. Every call blocks until the server's reply, which means that all
    ranks have done it, and raises grpc.RpcError with the server's status; `timeout` is in seconds, None: none.

    address: of InferenceService, "host:port". control_address: of ControlService. certificate: bytes in PEM of the
    authority that has signed the servers' certificates; None: no TLS. Keys are those of --api-key and --admin-api-key.
    model, of any call: which is meant, by its name; may be left out where one is served.
    """

    def __init__(self, address: str = "127.0.0.1:50051", control_address: str = "127.0.0.1:50054", *,
                 api_key: Optional[str] = None, admin_api_key: Optional[str] = None, certificate: Optional[bytes] = None,
                 timeout: Optional[float] = None):
        self._channels = [channel_to(address, certificate), channel_to(control_address, certificate)]
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channels[0])
        self._prefixes = prefixes_pb2_grpc.PrefixServiceStub(self._channels[0])
        self._control = control_pb2_grpc.ControlServiceStub(self._channels[1])
        # Of both the messages are bytes already.
        self._update = self._channels[1].stream_unary(
            "/somnus.v1.ControlService/UpdateWeights",
            response_deserializer=control_pb2.UpdateWeightsResponse.FromString)
        self._direct_update = self._channels[1].stream_stream(
            "/somnus.v1.ControlService/DirectUpdateWeights",
            response_deserializer=control_pb2.DirectUpdateWeightsResponse.FromString)
        self._inference_options: Dict[str, Any] = {"metadata": token_of(api_key), "timeout": timeout}
        self._control_options: Dict[str, Any] = {"metadata": token_of(admin_api_key), "timeout": timeout}

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def stream(self, prompt: Prompt, *, model: str = "", priority: int = 0, cache_salt: str = "", user: str = "",
               ttft_target_s: Optional[float] = None, **sampling: Any) -> Iterator[Any]:
        """Yields GenerateResponses as they come. prompt: text, or token ids. sampling: fields of SamplingParams, the
        others of GenerateRequest (proto/inference.proto)."""
        request = inference_pb2.GenerateRequest(
            model=model, priority=priority, cache_salt=cache_salt, user=user, ttft_target_s=ttft_target_s,
            sampling=inference_pb2.SamplingParams(**sampling))
        put_prompt(request, prompt)
        responses: Iterator[Any] = self._inference.Generate(request, **self._inference_options)
        return responses

    def generate(self, prompt: Prompt, **fields: Any) -> List[Completion]:
        """Returns a Completion for each choice, in their order. Arguments as of stream()."""
        choices: Dict[int, Completion] = {}
        for response in self.stream(prompt, **fields):
            for delta in response.choices:
                text, ids, finish_reason, version = choices.get(delta.index, Completion("", (), "", 0))
                choices[delta.index] = Completion(text + delta.text, ids + tuple(delta.token_ids),
                                                  delta.finish_reason or finish_reason, response.weights_version or version)
        return [choices[index] for index in sorted(choices)]

    def pin_prefix(self, prompt: Prompt, *, cache_salt: str = "", priority: int = 0, model: str = "") -> Any:
        """Computes the prompt and keeps its full blocks in the prefix cache. Returns a PinnedPrefix
        (proto/prefixes.proto), whose id unpin_prefix() takes."""
        request = prefixes_pb2.PinPrefixRequest(model=model, cache_salt=cache_salt, priority=priority)
        put_prompt(request, prompt)
        return self._prefixes.PinPrefix(request, **self._inference_options)

    def unpin_prefix(self, prefix_id: str, *, model: str = "") -> None:
        self._prefixes.UnpinPrefix(prefixes_pb2.UnpinPrefixRequest(id=prefix_id, model=model), **self._inference_options)

    def prefixes(self, *, model: str = "") -> Sequence[Any]:
        """Returns a PinnedPrefix of each."""
        reply = self._prefixes.ListPrefixes(prefixes_pb2.ListPrefixesRequest(model=model), **self._inference_options)
        found: Sequence[Any] = reply.prefixes
        return found

    def status(self, *, model: str = "") -> Any:
        """Returns a GetStatusResponse, without a model that of the first."""
        return self._control.GetStatus(control_pb2.GetStatusRequest(model=model), **self._control_options)

    def models(self) -> Sequence[Any]:
        """Returns a ModelStatus of each model."""
        found: Sequence[Any] = self._control.ListModelStatus(control_pb2.ListModelStatusRequest(), **self._control_options).models
        return found

    def sleep(self, level: int = 1, *, tags: Sequence[str] = (), mode: str = "keep", force: bool = False, model: str = "") -> Any:
        """Returns a SleepResponse. level: 0 a pause, 1 weights are kept, 2 all is discarded. tags: of "weights",
        "kv_cache", "workspace"; none: all. force: level 2 discards also weights that an update has brought and no file
        has, as the client does who sends the next ones."""
        request = control_pb2.SleepRequest(level=level, tags=tags, mode=mode_of(mode), force=force, model=model)
        return self._control.Sleep(request, **self._control_options)

    def wake_up(self, tags: Sequence[str] = (), *, load_weights: Optional[bool] = None, model: str = "") -> Any:
        """Returns a WakeUpResponse. load_weights=False: weights that were discarded are not read again, because
        update_weights() comes next."""
        request = control_pb2.WakeUpRequest(tags=tags, load_weights=load_weights, model=model)
        return self._control.WakeUp(request, **self._control_options)

    def pause(self, mode: str = "keep", *, clear_cache: Optional[bool] = None, model: str = "") -> None:
        request = control_pb2.PauseRequest(mode=mode_of(mode), clear_cache=clear_cache, model=model)
        self._control.Pause(request, **self._control_options)

    def resume(self, *, model: str = "") -> None:
        self._control.Resume(control_pb2.ResumeRequest(model=model), **self._control_options)

    def abort_call(self, *, model: str = "") -> None:
        """Ends the sleep, the wake-up or the change of the weights that is under way, whoever has called for it."""
        self._control.AbortCall(control_pb2.AbortCallRequest(model=model), **self._control_options)

    def reset_prefix_cache(self, *, reset_running_requests: bool = False, model: str = "") -> None:
        """No later request adopts a block that was computed before."""
        request = control_pb2.ResetPrefixCacheRequest(reset_running_requests=reset_running_requests, model=model)
        self._control.ResetPrefixCache(request, **self._control_options)

    def reload_weights(self, path: str = "", *, mode: str = "wait", weights_version: Optional[int] = None,
                       weights_label: str = "", model: str = "") -> int:
        """Reads a checkpoint of the same architecture on every rank. Returns the version that the weights have now.

        weights_label: the name that clients of the HTTP API get to see instead of the version (return_weight_versions)."""
        request = control_pb2.ReloadWeightsRequest(path=path, mode=mode_of(mode), weights_version=weights_version,
                                                   weights_label=weights_label, model=model)
        version: int = self._control.ReloadWeights(request, **self._control_options).weights_version
        return version

    def update_weights(self, named_tensors: Iterable[Tuple[str, Any]], *, mode: str = "wait",
                       weights_version: Optional[int] = None, weights_label: str = "", direct: bool = True,
                       shared_memory: bool = False, cuda_ipc: bool = False, model: str = "") -> int:
        """Replaces weights. Returns the version that the weights have now.

        named_tensors: pairs of a name, as in a Hugging Face checkpoint, and a whole, unsharded tensor
        (tensors.read_tensor), for example model.state_dict().items(). They are read one at a time, as they are sent, the
        first one before anything is sent. From then on the old weights are gone: if the update fails, the server serves
        nothing until a reload or a whole update has succeeded.
        direct: they go to the workers themselves; through the server, and a warning is logged, where not all of these can
        be reached. False: through the server.
        shared_memory: the workers run on this host, and read the tensors from memory that they share with this process,
        which takes as much of it as all tensors until the update has ended.
        cuda_ipc: the tensors are PyTorch's on a GPU of this host, as the workers are, which copy them from there. They
        are kept until the update has ended.
        weights_label: as of reload_weights().
        """
        begin = control_pb2.UpdateWeightsRequest.Begin(mode=mode_of(mode), weights_version=weights_version,
                                                       weights_label=weights_label, model=model)
        with contextlib.ExitStack() as kept, contextlib.closing(updates.Segments()) as segments:
            def chunks_of(name: str, tensor: Any) -> Iterator[updates.Chunk]:
                if cuda_ipc:
                    return updates.exported(name, tensor, kept)
                return updates.shared(name, tensor, segments) if shared_memory else updates.cut(name, tensor)
            chunks = (chunk for name, tensor in named_tensors for chunk in chunks_of(name, tensor))
            update = updates.Update(begin, chunks, direct and not (shared_memory or cuda_ipc))
            send = self._direct_update if update.direct else self._update.future
            version: int = update.run(send(update.messages(), **self._control_options)).weights_version
            return version

"""One class: a client of a server's two gRPC listeners."""
import collections
import contextlib

import grpc

from somnus import updates
from somnus.v1 import control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc, prefixes_pb2, prefixes_pb2_grpc

MODES = {"keep": control_pb2.SLEEP_MODE_KEEP, "wait": control_pb2.SLEEP_MODE_WAIT, "abort": control_pb2.SLEEP_MODE_ABORT}

Completion = collections.namedtuple("Completion", "text token_ids finish_reason weights_version")
Completion.__doc__ = """One choice. weights_version: of the weights that computed its last token."""


def mode_of(word):
    if word not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {word!r}")
    return MODES[word]


def channel_to(address, certificate):
    if certificate is None:
        return grpc.insecure_channel(address)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(certificate))


def put_prompt(request, prompt):
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)


def token_of(key):
    return [] if key is None else [("authorization", f"Bearer {key}")]


class Client:
    """Generates, and operates the engine. Thread safe. Every call blocks until the server's reply, which means that all
    ranks have done it, and raises grpc.RpcError with the server's status; `timeout` is in seconds, None: none.

    address: of InferenceService, "host:port". control_address: of ControlService. certificate: bytes in PEM of the
    authority that has signed the servers' certificates; None: no TLS. Keys are those of --api-key and --admin-api-key.
    model, of any call: which is meant, by its name; may be left out where one is served.
    """

    def __init__(self, address="127.0.0.1:50051", control_address="127.0.0.1:50054", *, api_key=None, admin_api_key=None,
                 certificate=None, timeout=None):
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
        self._inference_options = {"metadata": token_of(api_key), "timeout": timeout}
        self._control_options = {"metadata": token_of(admin_api_key), "timeout": timeout}

    def close(self):
        for channel in self._channels:
            channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def stream(self, prompt, *, model="", priority=0, cache_salt="", user="", ttft_target_s=None, **sampling):
        """Yields GenerateResponses as they come. prompt: text, or token ids. sampling: fields of SamplingParams, the
        others of GenerateRequest (proto/inference.proto)."""
        request = inference_pb2.GenerateRequest(
            model=model, priority=priority, cache_salt=cache_salt, user=user, ttft_target_s=ttft_target_s,
            sampling=inference_pb2.SamplingParams(**sampling))
        put_prompt(request, prompt)
        return self._inference.Generate(request, **self._inference_options)

    def generate(self, prompt, **fields):
        """Returns a Completion for each choice, in their order. Arguments as of stream()."""
        choices = {}
        for response in self.stream(prompt, **fields):
            for delta in response.choices:
                text, ids, finish_reason, version = choices.get(delta.index, ("", (), "", 0))
                choices[delta.index] = (text + delta.text, ids + tuple(delta.token_ids),
                                        delta.finish_reason or finish_reason, response.weights_version or version)
        return [Completion(*choices[index]) for index in sorted(choices)]

    def pin_prefix(self, prompt, *, cache_salt="", priority=0, model=""):
        """Computes the prompt and keeps its full blocks in the prefix cache. Returns a PinnedPrefix
        (proto/prefixes.proto), whose id unpin_prefix() takes."""
        request = prefixes_pb2.PinPrefixRequest(model=model, cache_salt=cache_salt, priority=priority)
        put_prompt(request, prompt)
        return self._prefixes.PinPrefix(request, **self._inference_options)

    def unpin_prefix(self, prefix_id, *, model=""):
        self._prefixes.UnpinPrefix(prefixes_pb2.UnpinPrefixRequest(id=prefix_id, model=model), **self._inference_options)

    def prefixes(self, *, model=""):
        """Returns a PinnedPrefix of each."""
        return self._prefixes.ListPrefixes(prefixes_pb2.ListPrefixesRequest(model=model), **self._inference_options).prefixes

    def status(self, *, model=""):
        """Returns a GetStatusResponse, without a model that of the first."""
        return self._control.GetStatus(control_pb2.GetStatusRequest(model=model), **self._control_options)

    def models(self):
        """Returns a ModelStatus of each model."""
        return self._control.ListModelStatus(control_pb2.ListModelStatusRequest(), **self._control_options).models

    def sleep(self, level=1, *, tags=(), mode="keep", force=False, model=""):
        """Returns a SleepResponse. level: 0 a pause, 1 weights are kept, 2 all is discarded. tags: of "weights",
        "kv_cache", "workspace"; none: all. force: level 2 discards also weights that an update has brought and no file
        has, as the client does who sends the next ones."""
        request = control_pb2.SleepRequest(level=level, tags=tags, mode=mode_of(mode), force=force, model=model)
        return self._control.Sleep(request, **self._control_options)

    def wake_up(self, tags=(), *, load_weights=None, model=""):
        """Returns a WakeUpResponse. load_weights=False: weights that were discarded are not read again, because
        update_weights() comes next."""
        request = control_pb2.WakeUpRequest(tags=tags, load_weights=load_weights, model=model)
        return self._control.WakeUp(request, **self._control_options)

    def pause(self, mode="keep", *, clear_cache=None, model=""):
        request = control_pb2.PauseRequest(mode=mode_of(mode), clear_cache=clear_cache, model=model)
        self._control.Pause(request, **self._control_options)

    def resume(self, *, model=""):
        self._control.Resume(control_pb2.ResumeRequest(model=model), **self._control_options)

    def abort_call(self, *, model=""):
        """Ends the sleep, the wake-up or the change of the weights that is under way, whoever has called for it."""
        self._control.AbortCall(control_pb2.AbortCallRequest(model=model), **self._control_options)

    def reset_prefix_cache(self, *, reset_running_requests=False, model=""):
        """No later request adopts a block that was computed before."""
        request = control_pb2.ResetPrefixCacheRequest(reset_running_requests=reset_running_requests, model=model)
        self._control.ResetPrefixCache(request, **self._control_options)

    def reload_weights(self, path="", *, mode="wait", weights_version=None, model=""):
        """Reads a checkpoint of the same architecture on every rank. Returns the version that the weights have now."""
        request = control_pb2.ReloadWeightsRequest(path=path, mode=mode_of(mode), weights_version=weights_version, model=model)
        return self._control.ReloadWeights(request, **self._control_options).weights_version

    def update_weights(self, named_tensors, *, mode="wait", weights_version=None, direct=True, shared_memory=False,
                       cuda_ipc=False, model=""):
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
        """
        begin = control_pb2.UpdateWeightsRequest.Begin(mode=mode_of(mode), weights_version=weights_version, model=model)
        with contextlib.ExitStack() as kept, contextlib.closing(updates.Segments()) as segments:
            def chunks_of(name, tensor):
                if cuda_ipc:
                    return updates.exported(name, tensor, kept)
                return updates.shared(name, tensor, segments) if shared_memory else updates.cut(name, tensor)
            chunks = (chunk for name, tensor in named_tensors for chunk in chunks_of(name, tensor))
            update = updates.Update(begin, chunks, direct and not (shared_memory or cuda_ipc))
            send = self._direct_update if update.direct else self._update.future
            return update.run(send(update.messages(), **self._control_options)).weights_version

"""One class: a client of a server's two gRPC listeners."""
import collections
import contextlib
import multiprocessing.shared_memory
import secrets

import grpc

from somnus import tensors
from somnus.v1 import control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc, weights_pb2

# Of one message. Servers take 4 MiB.
CHUNK_BYTES = 2 << 20
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


def token_of(key):
    return [] if key is None else [("authorization", f"Bearer {key}")]


class Client:
    """Generates, and operates the engine. Thread safe. Every call blocks until the server's reply, which means that all
    ranks have done it, and raises grpc.RpcError with the server's status; `timeout` is in seconds, None: none.

    address: of InferenceService, "host:port". control_address: of ControlService. certificate: bytes in PEM of the
    authority that has signed the servers' certificates; None: no TLS. Keys are those of --api-key and --admin-api-key.
    """

    def __init__(self, address="127.0.0.1:50051", control_address="127.0.0.1:50054", *, api_key=None, admin_api_key=None,
                 certificate=None, timeout=None):
        self._channels = [channel_to(address, certificate), channel_to(control_address, certificate)]
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channels[0])
        self._control = control_pb2_grpc.ControlServiceStub(self._channels[1])
        self._inference_options = {"metadata": token_of(api_key), "timeout": timeout}
        self._control_options = {"metadata": token_of(admin_api_key), "timeout": timeout}

    def close(self):
        for channel in self._channels:
            channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def stream(self, prompt, *, model="", **sampling):
        """Yields GenerateResponses as they come. prompt: text, or token ids. sampling: fields of SamplingParams
        (proto/inference.proto)."""
        request = inference_pb2.GenerateRequest(model=model, sampling=inference_pb2.SamplingParams(**sampling))
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.token_ids.ids.extend(prompt)
        return self._inference.Generate(request, **self._inference_options)

    def generate(self, prompt, *, model="", **sampling):
        """Returns a Completion for each choice, in their order. Arguments as of stream()."""
        choices = {}
        for response in self.stream(prompt, model=model, **sampling):
            for delta in response.choices:
                text, ids, finish_reason, version = choices.get(delta.index, ("", (), "", 0))
                choices[delta.index] = (text + delta.text, ids + tuple(delta.token_ids),
                                        delta.finish_reason or finish_reason, response.weights_version or version)
        return [Completion(*choices[index]) for index in sorted(choices)]

    def status(self):
        """Returns a GetStatusResponse."""
        return self._control.GetStatus(control_pb2.GetStatusRequest(), **self._control_options)

    def sleep(self, level=1, *, tags=(), mode="keep"):
        """Returns a SleepResponse. level: 0 a pause, 1 weights are kept, 2 all is discarded. tags: of "weights",
        "kv_cache", "workspace"; none: all."""
        request = control_pb2.SleepRequest(level=level, tags=tags, mode=mode_of(mode))
        return self._control.Sleep(request, **self._control_options)

    def wake_up(self, tags=(), *, load_weights=None):
        """Returns a WakeUpResponse. load_weights=False: weights that were discarded are not read again, because
        update_weights() comes next."""
        request = control_pb2.WakeUpRequest(tags=tags, load_weights=load_weights)
        return self._control.WakeUp(request, **self._control_options)

    def pause(self, mode="keep", *, clear_cache=None):
        self._control.Pause(control_pb2.PauseRequest(mode=mode_of(mode), clear_cache=clear_cache), **self._control_options)

    def resume(self):
        self._control.Resume(control_pb2.ResumeRequest(), **self._control_options)

    def reload_weights(self, path="", *, mode="wait", weights_version=None):
        """Reads a checkpoint of the same architecture on every rank. Returns the version that the weights have now."""
        request = control_pb2.ReloadWeightsRequest(path=path, mode=mode_of(mode), weights_version=weights_version)
        return self._control.ReloadWeights(request, **self._control_options).weights_version

    def update_weights(self, named_tensors, *, mode="wait", weights_version=None, shared_memory=False):
        """Replaces weights. Returns the version that they have now.

        named_tensors: pairs of a name, as in a Hugging Face checkpoint, and a whole, unsharded tensor
        (tensors.read_tensor), for example model.state_dict().items(). They are read one at a time, as they are sent, the
        first one before anything is sent. From then on the old weights are gone: if the update fails, the server serves
        nothing until a reload or a whole update has succeeded.
        shared_memory: the workers run on this host, and read the tensors from memory that they share with this process,
        which takes as much of it as all tensors until the update has ended.
        """
        begin = control_pb2.UpdateWeightsRequest.Begin(mode=mode_of(mode), weights_version=weights_version)
        with contextlib.ExitStack() as segments:
            chunks = (chunk for name, tensor in named_tensors
                      for chunk in (shared(name, tensor, segments) if shared_memory else cut(name, tensor)))
            update = Update(begin, next(chunks, None), chunks)
            try:
                return self._control.UpdateWeights(update.messages(), **self._control_options).weights_version
            except grpc.RpcError:
                if update.error is not None:
                    raise update.error from None
                raise


class Update:
    """The messages of an update. error: what its tensors have raised, which gRPC would only log."""

    def __init__(self, begin, first, others):
        self.begin, self.first, self.others, self.error = begin, first, others, None

    def messages(self):
        request = control_pb2.UpdateWeightsRequest
        yield request(begin=self.begin)
        if self.first is not None:
            yield request(chunk=self.first)
        try:
            for chunk in self.others:
                yield request(chunk=chunk)
        except Exception as error:  # pylint: disable=broad-except
            self.error = error
            raise
        yield request(finish=request.Finish())


def read(name, tensor):
    try:
        return tensors.read_tensor(tensor)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error


def cut(name, tensor):
    """The tensor's bytes in messages; the first has what is known of the whole."""
    tensor = read(name, tensor)
    head = {"name": name, "dtype": tensor.dtype, "shape": tensor.shape}
    for begin in range(0, max(len(tensor.data), 1), CHUNK_BYTES):
        yield weights_pb2.WeightChunk(data=bytes(tensor.data[begin:begin + CHUNK_BYTES]), **head)
        head = {}


def shared(name, tensor, segments):
    """The tensor in a segment of shared memory, which `segments` removes."""
    tensor = read(name, tensor)
    segment = multiprocessing.shared_memory.SharedMemory(f"somnus-tensor-{secrets.token_hex(8)}", create=True,
                                                         size=max(len(tensor.data), 1))
    segments.callback(segment.unlink)
    segments.callback(segment.close)
    segment.buf[:len(tensor.data)] = tensor.data
    place = weights_pb2.SharedMemory(name=f"/{segment.name}", offset=0, bytes=len(tensor.data))
    yield weights_pb2.WeightChunk(name=name, dtype=tensor.dtype, shape=tensor.shape, shared_memory=place)

"""Updates of the weights: what goes over which wire."""
import concurrent.futures
import contextlib
import logging
import multiprocessing.shared_memory
import queue
import secrets
import threading
import time
from typing import Any, Dict, Generator, Iterator, List, Optional

import grpc

from somnus import cuda_memory, tensors
from somnus.v1 import control_pb2, weights_pb2

# The bytes of a message. Servers take 4 MiB; smaller messages stay in the processors' caches from one copy to the next.
CHUNK_BYTES = 512 << 10
# Messages that wait for a worker, beside the one that is being sent.
QUEUED_MESSAGES = 4
# A worker that is not there by then is not reached.
CONNECT_S = 5
PROGRESS_S = 1
# Fields' numbers in protobuf's wire format, of type LEN: WeightChunk.data, WorkerUpdateWeightsRequest.chunk and
# UpdateWeightsRequest.chunk.
DATA, WORKERS_CHUNK, SERVERS_CHUNK = (number << 3 | 2 for number in (4, 3, 2))


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class Chunk:
    """A WeightChunk. data: what `head` lacks of it, a memoryview of bytes; None: nothing. fields: those of `head`."""

    def __init__(self, data: Optional[memoryview] = None, **head: Any):
        self.fields = head
        self.head: bytes = weights_pb2.WeightChunk(**head).SerializeToString()
        self.data = data

    def message(self, field: int) -> bytes:
        """The bytes of a message that has nothing but this chunk, made in one copy, where protobuf makes four."""
        if self.data is None:
            return b"".join((bytes([field]), varint(len(self.head)), self.head))
        data_head = bytes([DATA]) + varint(len(self.data))
        size = len(self.head) + len(data_head) + len(self.data)
        return b"".join((bytes([field]), varint(size), self.head, data_head, self.data))


def read(name: str, tensor: Any) -> tensors.Tensor:
    try:
        return tensors.read_tensor(tensor)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error


def cut(name: str, tensor: Any) -> Iterator[Chunk]:
    """The tensor's bytes in chunks; the first has what is known of the whole."""
    whole = read(name, tensor)
    head: Dict[str, Any] = {"name": name, "dtype": whole.dtype, "shape": whole.shape}
    for begin in range(0, max(len(whole.data), 1), CHUNK_BYTES):
        yield Chunk(whole.data[begin:begin + CHUNK_BYTES], **head)
        head = {}


class Segments:
    """Segments of shared memory, which close() removes. gRPC's thread may ask for another one when its update has failed:
    none is made after that."""

    def __init__(self) -> None:
        self.lock, self.closed = threading.Lock(), False
        self.segments: List[multiprocessing.shared_memory.SharedMemory] = []

    def hold(self, data: memoryview) -> str:
        """A new segment's name. CancelledError: it is too late."""
        with self.lock:
            if self.closed:
                raise concurrent.futures.CancelledError
            segment = multiprocessing.shared_memory.SharedMemory(f"somnus-tensor-{secrets.token_hex(8)}", create=True,
                                                                 size=max(len(data), 1))
            self.segments.append(segment)
            buffer: Any = segment.buf  # None only once the segment is closed
            buffer[:len(data)] = data
            return f"/{segment.name}"

    def close(self) -> None:
        with self.lock:
            self.closed = True
            for segment in self.segments:
                segment.close()
                segment.unlink()


def shared(name: str, tensor: Any, segments: Segments) -> Iterator[Chunk]:
    """The tensor in a segment of shared memory of `segments`."""
    whole = read(name, tensor)
    place = weights_pb2.SharedMemory(name=segments.hold(whole.data), offset=0, bytes=len(whole.data))
    yield Chunk(name=name, dtype=whole.dtype, shape=whole.shape, shared_memory=place)


def exported(name: str, tensor: Any, kept: "contextlib.ExitStack[Any]") -> Iterator[Chunk]:
    """A tensor of PyTorch on a GPU, by a handle of its memory. `kept` keeps it alive."""
    import torch
    if not tensor.is_cuda:
        raise TypeError(f"{name}: it is not on a GPU")
    tensor = tensor.detach().contiguous()
    torch.cuda.synchronize(tensor.device)  # what computes it has ended; gives this thread a CUDA context, too
    kept.callback(lambda: tensor)
    try:
        dtype = tensors.dtype_of(str(tensor.dtype).removeprefix("torch."))
        handle, offset = cuda_memory.export(tensor.data_ptr())
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error
    place = weights_pb2.CudaMemory(handle=handle, offset=offset, bytes=tensor.numel() * tensor.element_size())
    yield Chunk(name=name, dtype=dtype, shape=tensor.shape, cuda_memory=place)


class WorkerStream:
    """The stream to a worker's update port. The stream begins once connect() has succeeded."""

    def __init__(self, port: Any, token: str):
        self.port, self.token = port, token
        options = [("grpc.enable_http_proxy", 0), ("grpc.ssl_target_name_override", "somnus-update-port")]
        credentials = (grpc.ssl_channel_credentials(port.certificate.encode()) if port.certificate else
                       grpc.local_channel_credentials(grpc.LocalConnectionType.UDS))
        self.channel = grpc.secure_channel(port.address, credentials, options)
        self.states: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self.channel.subscribe(self.states.put, try_to_connect=True)
        self.call: Any = None
        self.messages: "queue.Queue[Optional[bytes]]" = queue.Queue(QUEUED_MESSAGES)

    def connect(self, deadline: float) -> bool:
        """False: nobody is there."""
        state = None
        while state not in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
            try:
                state = self.states.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                break
        if state != grpc.ChannelConnectivity.READY:
            return False
        method = self.channel.stream_unary("/somnus.v1.UpdatePortService/UpdateWeights",
                                           response_deserializer=weights_pb2.WorkerUpdateWeightsResponse.FromString)
        self.call = method.future(iter(self.messages.get, None), metadata=(("somnus-update-token", self.token),))
        first = weights_pb2.WorkerUpdateWeightsRequest(group_epoch=self.port.group_epoch, update_id=self.port.update_id)
        self.send(first.SerializeToString())
        return True

    def send(self, message: Optional[bytes]) -> None:
        """Blocks while the worker takes no more; None ends the stream. RpcError: its stream has ended."""
        while not self.call.done():
            try:
                self.messages.put(message, timeout=0.1)
                return
            except queue.Full:
                pass
        self.call.result()  # raises its error
        raise RuntimeError(f"{self.port.address} has ended the update early")

    def close(self) -> None:
        if self.call is not None:
            self.call.cancel()
        # Ends the thread that waits for messages.
        while True:
            try:
                self.messages.put_nowait(None)
                break
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self.messages.get_nowait()
        self.channel.close()


class Update:
    """An update as the messages of one call. error: what its tensors, or a worker, have raised, which gRPC would only log.
    chunks: an iterator, whose first one is made at once. direct: the call is DirectUpdateWeights."""

    def __init__(self, begin: Any, chunks: Iterator[Chunk], direct: bool):
        self.begin, self.first, self.others, self.direct = begin, next(chunks, None), chunks, direct
        if self.first is not None:  # one that the model does not have is refused while the old weights are there
            fields = self.first.fields
            begin.tensors.add(name=fields["name"], dtype=fields["dtype"], shape=fields["shape"])
        self.error: Optional[Exception] = None
        self.ports: "concurrent.futures.Future[Any]" = concurrent.futures.Future()
        self.streams: List[WorkerStream] = []

    def run(self, call: Any) -> Any:
        """Returns the reply. call: ControlService's method, already begun with messages()."""
        try:
            if not self.direct:
                return call.result()
            self.ports.set_result(next(call).ports)
            return next(call).done
        except grpc.RpcError:
            if self.error is not None:
                raise self.error from None
            raise
        finally:
            self.ports.cancel()
            call.cancel()
            for stream in self.streams:
                stream.close()

    def messages(self) -> Iterator[bytes]:
        request = control_pb2.UpdateWeightsRequest
        yield request(begin=self.begin).SerializeToString()
        try:
            finish = request.Finish()
            if self.direct and self.reach_workers(self.ports.result()):
                finish.received.CopyFrom((yield from self.send_to_workers()))
            else:
                for chunk in self.chunks():
                    yield chunk.message(SERVERS_CHUNK)
        except concurrent.futures.CancelledError:  # the server has refused the update
            return
        except Exception as error:  # pylint: disable=broad-except
            self.error = error
            raise
        yield request(finish=finish).SerializeToString()

    def chunks(self) -> Iterator[Chunk]:
        if self.first is not None:
            yield self.first
        yield from self.others

    def reach_workers(self, ports: Any) -> bool:
        deadline = time.monotonic() + CONNECT_S
        self.streams = [WorkerStream(port, ports.token) for port in ports.ports]
        away = [stream.port.address for stream in self.streams if not stream.connect(deadline)]
        if self.streams and not away:
            return True
        reason = f"{away[0]} is out of reach" if away else "not every worker has a port for them"
        logging.getLogger("somnus").warning("the tensors go through the server: %s", reason)
        return False

    def send_to_workers(self) -> Generator[bytes, None, Any]:
        """Yields messages that tell the server that it goes on. Returns what all workers say."""
        request = control_pb2.UpdateWeightsRequest
        told, sent = time.monotonic(), 0
        for chunk in self.chunks():
            message = chunk.message(WORKERS_CHUNK)
            for stream in self.streams:
                stream.send(message)
            sent += len(message)
            if time.monotonic() - told > PROGRESS_S:
                told = time.monotonic()
                yield request(progress=request.Progress(num_bytes=sent)).SerializeToString()
        for stream in self.streams:
            stream.send(None)
        return [stream.call.result() for stream in self.streams][0]

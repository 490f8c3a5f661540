"""A served cluster whose weights tests replace, a second checkpoint, and updates message by message."""
import os
import queue
import signal
import unittest

from cluster.harness import Cluster, expected, grpc, stubs, tiny, wait_until
from cluster.harness.other_weights import second_checkpoint, tensors_of

MODEL = "llama-uneven"
PROMPTS = [case["prompt"] for case in expected(MODEL) if not case["ambiguous"]]
DEADLINE_S = 60
PART_BYTES = 10_000  # of a chunk, so that every large tensor comes in parts


def generate_stubs():
    """For setUpModule. Returns control_pb2."""
    stubs.generate("transition", "weights", "control")
    global pb, rpc, weights_pb, weights_rpc
    from proto import control_pb2 as pb, control_pb2_grpc as rpc, weights_pb2 as weights_pb, weights_pb2_grpc as weights_rpc
    return pb


def chunks_of(folder, wanted=lambda name: True):
    for name, shape, data in tensors_of(folder):
        for at in range(0, len(data), PART_BYTES) if wanted(name) else ():
            chunk = weights_pb.WeightChunk(data=data[at:at + PART_BYTES])
            if at == 0:
                chunk.name, chunk.dtype = name, weights_pb.WEIGHT_DTYPE_FLOAT32
                chunk.shape.extend(shape)
            yield chunk


class RelayedUpdate:
    """A stream whose messages come when the test wants. `call` is the reply's future."""

    def __init__(self, control, *messages, timeout=DEADLINE_S):
        self._requests = queue.SimpleQueue()
        self.send(*messages)
        self.call = control.UpdateWeights.future(iter(self._requests.get, None), timeout=timeout)

    def send(self, *messages):
        for message in messages:
            self._requests.put(message)

    def finish(self):
        """The reply."""
        self.send(pb.UpdateWeightsRequest(finish=pb.UpdateWeightsRequest.Finish()), None)
        return self.call.result()


class DirectUpdate:
    """An update that has begun. Use as a context manager; leaving the context gives up an unfinished update."""

    def __init__(self, control):
        self._requests = queue.SimpleQueue()
        self._requests.put(pb.UpdateWeightsRequest(begin=pb.UpdateWeightsRequest.Begin()))
        self.call = control.DirectUpdateWeights(iter(self._requests.get, None), timeout=DEADLINE_S)
        ports = next(self.call).ports
        self.ports, self.token = ports.ports, ports.token

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._requests.put(None)
        self.call.cancel()

    def send(self, rank, chunks, token=None, **fields):
        """All chunks in one stream to one rank. Returns the rank's reply."""
        port = self.ports[rank]
        head = {"group_epoch": port.group_epoch, "update_id": port.update_id, **fields}

        def requests():
            yield weights_pb.WorkerUpdateWeightsRequest(**head)
            for chunk in chunks:
                yield weights_pb.WorkerUpdateWeightsRequest(chunk=chunk)
        with grpc.secure_channel(port.address, grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)) as channel:
            return weights_rpc.UpdatePortServiceStub(channel).UpdateWeights(
                requests(), timeout=DEADLINE_S, metadata=[("somnus-update-token", self.token if token is None else token)])

    def finish(self, received):
        self._requests.put(pb.UpdateWeightsRequest(finish=pb.UpdateWeightsRequest.Finish(received=received)))
        return next(self.call).done


class ServedWeights(unittest.TestCase):
    """Base of cases; each begins with the first checkpoint, awake."""

    @classmethod
    def setUpClass(cls):
        cls.other = second_checkpoint(cls, tiny(MODEL))
        with Cluster(cls.other, "--dtype=float32", workers=2) as cluster:
            cls.other_tokens = [cluster.tokens(prompt, ignore_eos=True) for prompt in PROMPTS]
        cls.cluster = Cluster(tiny(MODEL), "--dtype=float32", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.first_tokens = [cls.cluster.tokens(prompt, ignore_eos=True) for prompt in PROMPTS]
        cls.channel = grpc.insecure_channel(f"127.0.0.1:{cls.cluster.control_port}")
        cls.addClassCleanup(cls.channel.close)
        cls.control = rpc.ControlServiceStub(cls.channel)

    def setUp(self):
        wait_until(lambda: self.status().state != pb.ENGINE_STATE_RECOVERING, 60, "recovered")
        # Stale weights can only be replaced by other weights, and weights that sleep cannot be reloaded.
        self.control.Sleep(pb.SleepRequest(level=2, force=True), timeout=DEADLINE_S)
        self.control.WakeUp(pb.WakeUpRequest(load_weights=False), timeout=DEADLINE_S)
        self.reload(tiny(MODEL))
        self.assertEqual(self.tokens(), self.first_tokens)

    def status(self):
        return self.control.GetStatus(pb.GetStatusRequest(), timeout=DEADLINE_S)

    def reload(self, path="", **fields):
        return self.control.ReloadWeights(pb.ReloadWeightsRequest(path=path, **fields), timeout=DEADLINE_S).weights_version

    def tokens(self):
        return [self.cluster.tokens(prompt, ignore_eos=True) for prompt in PROMPTS]

    def admin(self, target):
        return self.cluster.request("POST", target, port=self.cluster.admin_port)

    def chunks(self, folder, wanted=lambda name: True):
        yield pb.UpdateWeightsRequest(begin=pb.UpdateWeightsRequest.Begin())
        for chunk in chunks_of(folder, wanted):
            yield pb.UpdateWeightsRequest(chunk=chunk)

    def update(self, messages, finishes=True):
        def stream():
            yield from messages
            if finishes:
                yield pb.UpdateWeightsRequest(finish=pb.UpdateWeightsRequest.Finish())
        return self.control.UpdateWeights(stream(), timeout=DEADLINE_S)

    def assert_code(self, code, call, *args):
        with self.assertRaises(grpc.RpcError) as caught:
            call(*args)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        return caught.exception.details()

    def assert_stale(self):
        status = self.status()
        self.assertEqual((status.state, status.weights_version, status.weights_source), (pb.ENGINE_STATE_ASLEEP, 0, ""))
        health = self.cluster.request("GET", "/health")
        self.assertEqual(health.status, 503)
        self.assertIn("stale", health.text)
        self.assertIsNone(self.cluster.request("GET", "/server_info").json["weight_version"])
        self.assert_code(grpc.StatusCode.FAILED_PRECONDITION, lambda: self.control.WakeUp(pb.WakeUpRequest(), timeout=DEADLINE_S))

    def kill_a_worker(self):
        epoch = self.status().group_epoch
        os.kill(self.cluster.worker_pids()[1], signal.SIGKILL)
        wait_until(lambda: self.status().group_epoch > epoch and self.status().state != pb.ENGINE_STATE_RECOVERING, 60, "recovered")

"""The Python client's tensors: PyTorch's, NumPy's and other objects with a buffer, and GPU memory that is given to the workers.

PyTorch and a GPU have stand-ins here (harness/torch_stand_in.py). NumPy itself is asked where NumPy is installed, and has a
stand-in, too.
"""
import os
import unittest

from cluster.harness import Cluster, tiny
from cluster.harness.other_weights import second_checkpoint
from cluster.harness.python_client import RLHF_STEP, InstalledClient

PROMPT = list(range(3, 40))
HARNESS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "harness")


def setUpModule():
    global client
    client = InstalledClient()
    unittest.addModuleCleanup(client.__exit__)


# For all scripts: argv[1] is the harness's folder. `Array` offers the functions that the client asks of an array of NumPy's.
PRELUDE = """
import array, contextlib, gc, json, os, runpy, struct, sys, types, weakref, grpc
sys.path.insert(0, sys.argv[1])
import torch_stand_in as torch
sys.modules["torch"] = torch
from somnus import Client, cuda_memory, tensors, updates
from somnus.v1 import weights_pb2
try:
    import numpy
except ImportError:
    numpy = None

class Array:
    def __init__(self, tensor, byteorder="="):
        self.tensor, self.shape = tensor, tensor.shape
        self.dtype = types.SimpleNamespace(name=tensor.dtype.name, byteorder=byteorder)

    def reshape(self, size):
        return Array(self.tensor.reshape(size))

    def view(self, kind):
        return self.tensor.view(getattr(torch, kind)).numpy()

def floats(count, form="f"):
    return bytearray(struct.pack(f"<{count}{form}", *(number / 4 for number in range(count))))

def wire(tensor):
    read = tensors.read_tensor(tensor)
    return [weights_pb2.WeightDType.Name(read.dtype), list(read.shape), bytes(read.data).hex()]

def refused(call, *arguments):
    try:
        call(*arguments)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"

def print_json(value):
    print(json.dumps(value))
"""

READ = PRELUDE + """
seen = {}
square = torch.Tensor(floats(6), torch.float32, (2, 3))
for kind, make in (("torch", lambda tensor: tensor), ("array", Array)):
    seen[kind] = {
        "plain": wire(make(square)),
        "transposed": wire(make(square.t())),
        "half": wire(make(torch.Tensor(floats(4, "e"), torch.float16, (4,)))),
        "brain": wire(make(torch.Tensor(floats(2), torch.bfloat16, (2, 2)))),
        "scalar": wire(make(torch.Tensor(floats(1), torch.float32, ()))),
        "none": wire(make(torch.Tensor(bytearray(), torch.float32, (0, 3)))),
        "double": refused(tensors.read_tensor, make(torch.Tensor(floats(2, "d"), torch.float64, (2,)))),
    }
seen["torch"]["of a training"] = wire(torch.Tensor(floats(6), torch.float32, (3, 2), requires_grad=True))
seen["torch"]["of a GPU"] = wire(torch.Tensor(floats(6), torch.float32, (2, 3), (1, 2), device="cuda:0"))
seen["array"]["big-endian"] = refused(tensors.read_tensor, Array(square, ">"))
view = memoryview(floats(6)).cast("f", (2, 3))
seen["buffer"] = {
    "plain": wire(view),
    "flat": wire(array.array("f", [0, 0.25, 0.5])),
    "gaps": refused(tensors.read_tensor, memoryview(array.array("f", range(6)))[::2]),
    "double": refused(tensors.read_tensor, array.array("d", [1.0])),
    "integers": refused(tensors.read_tensor, array.array("i", [1])),
    "bytes": wire((floats(6), "float32", (2, 3))),
    "wrong": refused(tensors.read_tensor, (floats(6), "float32", (2, 2))),
}
if numpy is not None:
    matrix = numpy.arange(6, dtype="<f4").reshape(2, 3) / 4
    seen["numpy"] = {
        "plain": wire(matrix), "transposed": wire(matrix.T), "columns": wire(matrix[:, ::2]),
        "half": wire(numpy.arange(4, dtype="<f2") / 4), "scalar": wire(numpy.zeros((), "<f4")),
        "none": wire(numpy.zeros((0, 3), "<f4")),
        "double": refused(tensors.read_tensor, numpy.zeros(2)),
        "big-endian": refused(tensors.read_tensor, matrix.astype(">f4")),
    }
print_json(seen)
"""

# A chunk is shown as received by a worker.
EXPORT = PRELUDE + """
driver, asked = torch.Driver(), []
cuda_memory.ctypes.CDLL = lambda name: asked.append(name) or driver
memory = floats(64)
tensor = torch.Tensor(memory, torch.float32, (8, 8), device="cuda:1")
address = tensor.data_ptr()
driver.allocations = {address - 4096: (4096, True), address: (len(memory), True)}
seen = {"first byte": None, "last byte": None}
for name, offset in (("first byte", 0), ("last byte", len(memory) - 1)):
    handle, place = cuda_memory.export(address + offset)
    seen[name] = [handle == torch.handle_of(address), len(handle), place]
seen["before it"] = [cuda_memory.export(address - 1)[0] == torch.handle_of(address - 4096), cuda_memory.export(address - 1)[1]]
seen["behind it"] = refused(cuda_memory.export, address + len(memory))
driver.allocations[address] = (len(memory), False)
seen["expandable"] = refused(cuda_memory.export, address)
driver.allocations = {address - 12: (len(memory) + 12, True)}

with contextlib.ExitStack() as kept:
    chunk, = updates.exported("a.weight", tensor, kept)
    sent = weights_pb2.WeightChunk.FromString(chunk.head)
    place = sent.cuda_memory
    seen["chunk"] = [sent.name, sent.dtype == weights_pb2.WEIGHT_DTYPE_FLOAT32, list(sent.shape), chunk.data is None,
                     place.handle == torch.handle_of(address - 12), place.offset, place.bytes]
seen["synchronized"] = list(torch.cuda.synchronized)

# A copy in order is made of one that is not, and lives until the update has ended.
copies = []
class Watched(torch.Tensor):
    def contiguous(self):
        copy = super().contiguous()
        copies.append(weakref.ref(copy))
        driver.allocations[copy.data_ptr()] = (len(copy.memory), True)
        return copy
    def detach(self):
        return self
kept = contextlib.ExitStack()
with kept:
    chunk, = updates.exported("b", Watched(memory, torch.float32, (8, 8), (1, 8), device="cuda:1"), kept)
    gc.collect()
    copy = copies[0]()
    seen["copy"] = [copy is not None, copy.memory == memory, bytes(copy.memory[4:8]) == bytes(memory[32:36])]
    place = weights_pb2.WeightChunk.FromString(chunk.head).cuda_memory
    seen["copy"].append(place.handle == torch.handle_of(copy.data_ptr()))
    del copy
    gc.collect()
    seen["copy"].append(copies[0]() is not None)
gc.collect()
seen["copy"].append(copies[0]() is None)

def first(*arguments):
    return next(updates.exported(*arguments, kept))
seen["refused"] = [
    refused(first, "c", torch.Tensor(memory, torch.float32, (64,))),
    refused(first, "d", torch.Tensor(memory, torch.float64, (32,), device="cuda:1")),
    refused(first, "e", torch.Tensor(floats(4), torch.float32, (4,), device="cuda:1")),
]
seen["library"] = sorted(set(asked))
print_json(seen)
"""

# argv: ..., rlhf_step.py, a checkpoint, the kind of tensors, the way.
UPDATE = PRELUDE + """
read_tensors = runpy.run_path(sys.argv[2])["read_tensors"]

def by_columns(data, dtype, shape):
    # The same numbers, column after column in memory.
    tensor = torch.Tensor(bytearray(data), dtype, shape)
    return tensor if len(shape) != 2 else torch.Tensor(tensor.t().contiguous().memory, dtype, shape, (1, shape[0]))

def widened(data, dtype):
    # Of bfloat16 float32 has the upper half.
    return bytearray(data) if dtype == "float32" else bytearray(
        byte for at in range(0, len(data), 2) for byte in (0, 0, data[at], data[at + 1]))

def make(kind, data, dtype, shape):
    if kind == "torch":
        tensor = by_columns(data, getattr(torch, dtype), shape)
        tensor.requires_grad = True
        return tensor
    if kind == "array":
        return Array(by_columns(data, getattr(torch, dtype), shape))
    if kind == "numpy":
        return numpy.asfortranarray(numpy.frombuffer(widened(data, dtype), "<f4").reshape(shape))
    if kind == "buffer":
        return memoryview(widened(data, dtype)).cast("f", tuple(shape))
    # On a GPU, which the stand-in's driver knows.
    tensor = torch.Tensor(bytearray(data), getattr(torch, dtype), shape, device="cuda:0")
    driver.allocations[tensor.data_ptr()] = (len(tensor.memory), True)
    return tensor

kind, way = sys.argv[4:]
driver = torch.Driver()
cuda_memory.ctypes.CDLL = lambda name: driver
named = ((name, make(kind, *tensor)) for name, tensor in read_tensors(sys.argv[3]))
with Client(os.environ["GRPC"], os.environ["CONTROL"], timeout=60) as client:
    try:
        print_json(client.update_weights(named, direct=way == "direct", shared_memory=way == "shared", cuda_ipc=way == "cuda_ipc"))
    except grpc.RpcError as error:
        print_json([error.code().name, error.details()])
"""


def run(script, cluster, *arguments):
    return client.run(cluster, "-c", script, HARNESS, *arguments)


class NoCluster:
    """For scripts that ask no server."""

    grpc_port = control_port = 0

    @staticmethod
    def log():
        return ""


class Tensors(unittest.TestCase):
    FLOATS = [b"\0\0\0\0", b"\0\0\x80\x3e", b"\0\0\0\x3f", b"\0\0\x40\x3f", b"\0\0\x80\x3f", b"\0\0\xa0\x3f"]  # 0, 1/4, ...

    def hex(self, *order):
        return b"".join(self.FLOATS[index] for index in order).hex()

    def test_what_of_a_tensor_goes_over_the_wire(self):
        seen = run(READ, NoCluster)
        f32, f16, bf16 = (f"WEIGHT_DTYPE_{name}" for name in ("FLOAT32", "FLOAT16", "BFLOAT16"))
        plain, transposed = [f32, [2, 3], self.hex(0, 1, 2, 3, 4, 5)], [f32, [3, 2], self.hex(0, 3, 1, 4, 2, 5)]
        half = [f16, [4], bytes((0, 0, 0, 0x34, 0, 0x38, 0, 0x3a)).hex()]
        double = "TypeError: its type is float64; float32, bfloat16 and float16 can be sent"
        for kind in ("torch", "array"):
            self.assertEqual({name: seen[kind][name] for name in ("plain", "transposed", "half", "brain", "scalar", "none", "double")}, {
                "plain": plain, "transposed": transposed, "half": half, "brain": [bf16, [2, 2], self.hex(0, 1)],
                "scalar": [f32, [], self.hex(0)], "none": [f32, [0, 3], ""], "double": double}, kind)
        self.assertEqual(seen["torch"]["of a training"], [f32, [3, 2], plain[2]])
        self.assertEqual(seen["torch"]["of a GPU"], [f32, [2, 3], self.hex(0, 2, 4, 1, 3, 5)])
        self.assertEqual(seen["array"]["big-endian"], "TypeError: its numbers are big-endian")
        self.assertEqual(seen["buffer"], {
            "plain": plain, "bytes": plain, "flat": [f32, [3], self.hex(0, 1, 2)],
            "gaps": "ValueError: its memory is not contiguous and row-major",
            "double": "TypeError: its type is d; float32, bfloat16 and float16 can be sent",
            "integers": "TypeError: its type is i; float32, bfloat16 and float16 can be sent",
            "wrong": "ValueError: 24 bytes are not a tensor of shape (2, 2)"})
        if "numpy" in seen:
            self.assertEqual(seen["numpy"], {
                "plain": plain, "transposed": transposed, "columns": [f32, [2, 2], self.hex(0, 2, 3, 5)], "half": half,
                "scalar": [f32, [], self.hex(0)], "none": [f32, [0, 3], ""], "double": double,
                "big-endian": "TypeError: its numbers are big-endian"})

    def test_memory_of_a_gpu(self):
        seen = run(EXPORT, NoCluster)
        size, no = 256, "ValueError: its memory cannot be given to other processes:"
        self.assertEqual((seen["first byte"], seen["last byte"], seen["before it"]), ([True, 64, 0], [True, 64, size - 1], [True, 4095]))
        self.assertEqual(seen["behind it"], f"{no} cuMemGetAddressRange_v2 returned 1")
        self.assertEqual(seen["expandable"], f"{no} cuIpcGetMemHandle returned 801")
        self.assertEqual(seen["chunk"], ["a.weight", True, [8, 8], True, True, 12, size])
        self.assertEqual(seen["synchronized"], ["cuda:1"])
        self.assertEqual(seen["copy"], [True, False, True, True, True, True])
        self.assertEqual(seen["refused"], [
            "TypeError: c: it is not on a GPU",
            "TypeError: d: its type is float64; float32, bfloat16 and float16 can be sent",
            "ValueError: e: its memory cannot be given to other processes: cuMemGetAddressRange_v2 returned 1"])
        self.assertEqual(seen["library"], ["libcuda.so.1"])


class Updates(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.other = second_checkpoint(cls, tiny("qwen3"))
        with Cluster(cls.other, "--dtype=float32", workers=2) as cluster:
            cls.other_tokens = cluster.tokens(PROMPT, max_tokens=8)

    def test_an_update_from_each_kind_of_tensor(self):
        kinds = [("torch", "direct"), ("array", "shared"), ("buffer", "server"), ("torch", "shared"), ("array", "direct")]
        try:
            import numpy  # noqa: F401 pylint: disable=unused-import
            kinds += [("numpy", "direct"), ("numpy", "shared"), ("numpy", "server")]
        except ImportError:
            pass
        with Cluster(tiny("qwen3"), "--dtype=float32", workers=2) as cluster:
            first = cluster.tokens(PROMPT, max_tokens=8)
            self.assertNotEqual(first, self.other_tokens)
            for number, (kind, way) in enumerate(kinds):
                folder, wanted = (self.other, self.other_tokens) if number % 2 == 0 else (tiny("qwen3"), first)
                with self.subTest(kind=kind, way=way):
                    self.assertEqual(run(UPDATE, cluster, RLHF_STEP, folder, kind, way), number + 2)
                    self.assertEqual(cluster.tokens(PROMPT, max_tokens=8), wanted)
            self.assertEqual([name for name in os.listdir("/dev/shm") if name.startswith("somnus-tensor-")], [])
            self.assertEqual(cluster.stop(), 0)

    def test_workers_without_a_gpu_take_no_memory_of_one(self):
        with Cluster(tiny("qwen3"), "--dtype=float32", workers=2) as cluster:
            tokens = cluster.tokens(PROMPT, max_tokens=8)
            code, details = run(UPDATE, cluster, RLHF_STEP, self.other, "cuda", "cuda_ipc")
            self.assertEqual(code, "INVALID_ARGUMENT", details)
            self.assertIn("only a rank on a GPU can open", details)
            self.assertEqual(cluster.status()["weights_version"], "0")
            cluster.cli("reload-weights")
            self.assertEqual(cluster.tokens(PROMPT, max_tokens=8), tokens)
            self.assertEqual(cluster.stop(), 0)


if __name__ == "__main__":
    unittest.main()

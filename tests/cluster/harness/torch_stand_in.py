"""As much of PyTorch as clients/python asks for, over memory of this process: for machines without PyTorch, and without a GPU.

The stand-in refuses what PyTorch refuses, so that a client which forgets a step fails here, too.
"""
import ctypes
import itertools
import math


class DType:
    def __init__(self, name, size):
        self.name, self.size = name, size

    def __str__(self):
        return f"torch.{self.name}"


uint8, float16, bfloat16, float32, float64 = (DType(name, size) for name, size in (
    ("uint8", 1), ("float16", 2), ("bfloat16", 2), ("float32", 4), ("float64", 8)))


def row_major(shape):
    return tuple(math.prod(shape[axis + 1:]) for axis in range(len(shape)))


class Tensor:
    """memory: of the process, a bytearray. shape, strides: in elements."""

    def __init__(self, memory, dtype, shape, strides=None, device="cpu", requires_grad=False):
        self.memory, self.dtype, self.shape, self.device = memory, dtype, tuple(shape), device
        self.strides = row_major(self.shape) if strides is None else tuple(strides)
        self.requires_grad = requires_grad

    @property
    def is_cuda(self):
        return self.device != "cpu"

    def _like(self, **changes):
        fields = {name: getattr(self, name) for name in ("memory", "dtype", "shape", "strides", "device", "requires_grad")}
        return Tensor(**{**fields, **changes})

    def t(self):
        return self._like(shape=self.shape[::-1], strides=self.strides[::-1])

    def detach(self):
        return self._like(requires_grad=False)

    def cpu(self):
        return self if not self.is_cuda else self._like(device="cpu", memory=bytearray(self.memory))

    def is_contiguous(self):
        return self.strides == row_major(self.shape)

    def contiguous(self):
        if self.is_contiguous():
            return self
        size, memory = self.dtype.size, bytearray()
        for index in itertools.product(*map(range, self.shape)):
            at = size * sum(i * stride for i, stride in zip(index, self.strides))
            memory += self.memory[at:at + size]
        return self._like(memory=memory, strides=None)

    def reshape(self, *shape):
        if shape != (-1,):
            raise NotImplementedError
        return self.contiguous()._like(shape=(self.numel(),), strides=(1,))

    def view(self, dtype):
        if not self.shape:
            raise RuntimeError("self.dim() cannot be 0 to view a tensor as one of another element size")
        if not self.is_contiguous():
            raise RuntimeError("self.stride(-1) must be 1 to view a tensor as one of another element size")
        shape = (*self.shape[:-1], self.shape[-1] * self.dtype.size // dtype.size)
        return self._like(dtype=dtype, shape=shape, strides=None)

    def numpy(self):
        """The tensor's memory, as an object with a buffer."""
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on a tensor that requires grad")
        if self.is_cuda:
            raise TypeError("can't convert a tensor of a GPU to numpy")
        if self.dtype is not uint8 or not self.is_contiguous():
            raise TypeError(f"{self.dtype}: only bytes in their order are asked for here")
        return memoryview(self.memory)[:self.numel()]

    def numel(self):
        return math.prod(self.shape)

    def element_size(self):
        return self.dtype.size

    def data_ptr(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory)) if self.memory else 0


class cuda:  # pylint: disable=invalid-name
    synchronized = []  # devices

    @classmethod
    def synchronize(cls, device):
        cls.synchronized.append(device)


class Driver:
    """libcuda.so.1, over allocations of this process. Code 1 is invalid value, 801 not supported."""

    def __init__(self):
        self.allocations = {}  # address -> (bytes, whether the memory can be exported)
        self.cuMemGetAddressRange_v2 = self._function(
            "cuMemGetAddressRange_v2", self._range, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_size_t), ctypes.c_uint64)
        self.cuIpcGetMemHandle = self._function(
            "cuIpcGetMemHandle", self._handle, ctypes.POINTER(ctypes.c_char * 64), ctypes.c_uint64)

    @staticmethod
    def _function(name, function, *types):
        made = ctypes.CFUNCTYPE(ctypes.c_int, *types)(function)
        made.__name__ = name
        return made

    def _range(self, base, size, address):
        for begin, (count, _) in self.allocations.items():
            if begin <= address < begin + count:
                base[0], size[0] = begin, count
                return 0
        return 1

    def _handle(self, handle, address):
        if address not in self.allocations:
            return 1
        if not self.allocations[address][1]:
            return 801
        ctypes.memmove(handle, handle_of(address), 64)
        return 0


def handle_of(address):
    """A handle of Driver, with zeros in the middle and at the end, as handles of CUDA have."""
    return b"h\0" + address.to_bytes(8, "little") + bytes(54)

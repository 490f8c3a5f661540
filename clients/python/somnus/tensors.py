"""The parts of a tensor that go over the wire: type, shape and bytes. Neither PyTorch nor NumPy is needed: tensors of
both are known by what they offer."""
import math
from typing import Any, Dict, Sequence

from somnus.v1 import weights_pb2

FLOAT32 = weights_pb2.WEIGHT_DTYPE_FLOAT32
BFLOAT16 = weights_pb2.WEIGHT_DTYPE_BFLOAT16
FLOAT16 = weights_pb2.WEIGHT_DTYPE_FLOAT16
BYTES: Dict[int, int] = {FLOAT32: 4, BFLOAT16: 2, FLOAT16: 2}
# By the names of PyTorch and NumPy, and by the format characters of Python's buffers.
DTYPES: Dict[str, int] = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16, "f": FLOAT32, "e": FLOAT16}


class Tensor:
    """dtype: a WeightDType. shape: a tuple of ints. data: a memoryview of bytes, row-major, little-endian; it keeps the
    memory alive."""

    def __init__(self, dtype: int, shape: Sequence[int], data: memoryview):
        self.dtype, self.shape, self.data = dtype, tuple(int(size) for size in shape), data
        if len(data) != math.prod(self.shape) * BYTES[dtype]:
            raise ValueError(f"{len(data)} bytes are not a tensor of shape {self.shape}")


def dtype_of(name: str) -> int:
    if name not in DTYPES:
        raise TypeError(f"its type is {name}; float32, bfloat16 and float16 can be sent")
    return DTYPES[name]


def bytes_of(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError("its memory is not contiguous and row-major")
    return view.cast("B")


def read_torch(tensor: Any) -> Tensor:
    import torch
    tensor = tensor.detach().cpu().contiguous()
    dtype = dtype_of(str(tensor.dtype).removeprefix("torch."))
    # NumPy, through which PyTorch gives its memory away, has no bfloat16.
    return Tensor(dtype, tensor.shape, bytes_of(tensor.reshape(-1).view(torch.uint8).numpy()))


def read_tensor(tensor: Any) -> Tensor:
    """tensor: one of PyTorch, an array of NumPy (also with the bfloat16 of ml_dtypes), (bytes, "bfloat16", shape), or
    whatever else has a buffer of floats. TypeError, ValueError: it cannot be sent."""
    if isinstance(tensor, tuple):
        data, dtype, shape = tensor
        return Tensor(dtype_of(dtype), shape, bytes_of(data))
    if hasattr(tensor, "detach"):
        return read_torch(tensor)
    if hasattr(tensor, "dtype"):
        if tensor.dtype.byteorder == ">":  # which its name does not say
            raise TypeError("its numbers are big-endian")
        dtype = dtype_of(tensor.dtype.name)
        return Tensor(dtype, tensor.shape, bytes_of(tensor.reshape(-1).view("uint8")))
    view = memoryview(tensor)
    return Tensor(dtype_of(view.format), view.shape or (), bytes_of(view))

"""Memory of this process on a GPU, for other processes of the host: CUDA's IPC handles. Needs the driver's library alone."""
import ctypes
from typing import Tuple


def export(address: int) -> Tuple[bytes, int]:
    """Returns the handle of the allocation that the address is in, as bytes, and the address's offset there. The calling thread
    has to have a CUDA context. ValueError: the driver exports no such memory, for example that of expandable segments."""
    driver = ctypes.CDLL("libcuda.so.1")
    base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), (ctypes.c_char * 64)()
    for call, arguments in ((driver.cuMemGetAddressRange_v2, (ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))),
                            (driver.cuIpcGetMemHandle, (ctypes.byref(handle), base))):
        error = call(*arguments)
        if error != 0:
            raise ValueError(f"its memory cannot be given to other processes: {call.__name__} returned {error}")
    return handle.raw, address - base.value

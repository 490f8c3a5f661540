"""Puts a PyTorch program's CUDA memory to sleep. UNVERIFIED: it has not run on a GPU.

    bazel build --config=cuda //allocator/examples:libsomnus_torch.so
    SOMNUS_TORCH=bazel-bin/allocator/examples/libsomnus_torch.so python allocator/examples/torch_sleep.py

What is allocated within use_tag("weights") can be released and comes back at the same addresses, so that tensors and
captured CUDA graphs stay valid.
"""
import contextlib
import ctypes
import os

DISCARD, BACKUP = 0, 1


class SleepingMemory:
    """One device's memory; needs PyTorch 2.5 or later for MemPool."""

    def __init__(self, library, device=0):
        import torch

        self.torch, self.device = torch, device
        self.library = ctypes.CDLL(library)
        self.library.somnus_torch_allocator.restype = ctypes.c_void_p
        self.library.somnus_last_error.restype = ctypes.c_char_p
        allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "somnus_torch_malloc", "somnus_torch_free")
        self.make_pool = lambda: torch.cuda.MemPool(allocator.allocator())
        self.pools = {}

    def _check(self, code):
        if code != 0:
            raise RuntimeError(self.library.somnus_last_error().decode())

    def _allocator(self):
        return ctypes.c_void_p(self.library.somnus_torch_allocator(self.device))

    @contextlib.contextmanager
    def use_tag(self, tag):
        """Tensors that are made within get this tag: each has a pool of its own, so that PyTorch mixes none."""
        pool = self.pools.setdefault(tag, self.make_pool())
        self.library.somnus_push_tag(tag.encode())
        try:
            with self.torch.cuda.use_mem_pool(pool):
                yield
        finally:
            self.library.somnus_pop_tag()

    def sleep(self, modes):
        """modes: {"weights": BACKUP, "kv_cache": DISCARD}."""
        self.torch.cuda.synchronize(self.device)
        tags = (ctypes.c_char_p * len(modes))(*[tag.encode() for tag in modes])
        values = (ctypes.c_int32 * len(modes))(*modes.values())
        self._check(self.library.somnus_sleep(self._allocator(), tags, values, ctypes.c_size_t(len(modes))))

    def wake(self, *names):
        """Of all tags without names."""
        tags = (ctypes.c_char_p * len(names))(*[name.encode() for name in names])
        self._check(self.library.somnus_wake(self._allocator(), tags, ctypes.c_size_t(len(names))))


def main():
    import torch

    memory = SleepingMemory(os.environ["SOMNUS_TORCH"])
    with memory.use_tag("weights"):
        weights = torch.arange(1 << 26, device="cuda", dtype=torch.float32)
    with memory.use_tag("kv_cache"):
        cache = torch.zeros(1 << 26, device="cuda")
    address, total = weights.data_ptr(), float(weights.sum())
    free = torch.cuda.mem_get_info()[0]
    memory.sleep({"weights": BACKUP, "kv_cache": DISCARD})
    print("freed", torch.cuda.mem_get_info()[0] - free)
    memory.wake("weights")
    assert weights.data_ptr() == address and float(weights.sum()) == total
    memory.wake()
    cache.zero_()
    print("the weights are back at the same address")


if __name__ == "__main__":
    main()

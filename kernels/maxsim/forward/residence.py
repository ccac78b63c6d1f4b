"""Whether a tensor of the device is really host memory, which kernels read over the bus."""

import ctypes
from functools import cache, lru_cache

__all__ = ["in_host_memory"]

_MEMORY_TYPE, _HOST = 2, 1  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_HOST


@lru_cache(maxsize=1024)
def in_host_memory(address: int) -> bool:
    """Asked once an address: one that has become memory of the other kind costs time, and nothing else."""
    kind = ctypes.c_uint(0)
    failed = _driver().cuPointerGetAttribute(ctypes.byref(kind), _MEMORY_TYPE, ctypes.c_uint64(address))
    return not failed and kind.value == _HOST


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")

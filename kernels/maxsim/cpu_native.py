"""The compiled CPU kernel, where it was built and the processor has AVX2, FMA and F16C.

`_avx2.c` is plain C without Python in it, called through ctypes, which lets go of the interpreter
lock for the whole call. It is built with the package if there is a compiler; without it the
PyTorch kernel of `cpu_chunk` gives the same scores within rounding, at less than half the speed.
"""

import ctypes
import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from maxsim import cpu_pool
from maxsim.cpu_work import Documents, Floats, Ints, Work

__all__ = ["available", "execute"]

_DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
# Products of one query row and one token that are worth waking another thread for: some 50 µs of work.
_PAIRS_PER_THREAD = 1 << 15


def available() -> bool:
    """Whether the kernel was built and this processor can run it."""
    return _library() is not None


def execute(documents: Documents, works: Sequence[Work]) -> None:
    """Score all works. Every thread goes through all of them and takes documents until none is left."""
    lengths = [documents.lengths[work.chosen] for work in works]
    calls = [_call(documents, work, of_work) for work, of_work in zip(works, lengths, strict=True)]
    pairs = sum(work.block.lanes * int(of_work.sum()) for work, of_work in zip(works, lengths, strict=True))
    scratch_floats = max((work.block.lanes for work in works), default=0) * (documents.tokens.shape[1] + 2)

    def help_out() -> None:
        scratch = np.empty(scratch_floats, np.float32)
        for call in calls:
            call(scratch)

    cpu_pool.together(help_out, most=1 + pairs // _PAIRS_PER_THREAD)


def _call(documents: Documents, work: Work, lengths: Ints) -> Callable[[Floats], None]:
    """What a thread calls, with its own scratch, to take part in a work on documents of these lengths."""
    library = _library()
    assert library is not None, "dispatch chooses this kernel only where it is available"
    tokens, index, queries = documents.tokens, documents.index, work.block.matrix
    starts = documents.starts[work.chosen]
    columns, out = np.ascontiguousarray(work.columns), work.out
    query_lengths = np.array(work.block.lengths, np.int64)
    next_document = np.zeros(1, np.int64)

    def call(scratch: Floats) -> None:
        library.maxsim_score(
            tokens.data_ptr(),
            tokens.stride(0) * tokens.element_size(),
            tokens.stride(1),
            _DTYPES[tokens.dtype],
            tokens.shape[1],
            queries.data_ptr(),
            query_lengths.ctypes.data,
            len(query_lengths),
            starts.ctypes.data,
            lengths.ctypes.data,
            len(starts),
            documents.step,
            None if index is None else index.ctypes.data,
            out.ctypes.data,
            out.strides[0] // out.itemsize,
            columns.ctypes.data,
            next_document.ctypes.data,
            scratch.ctypes.data,
        )

    return call


_pointer, _integer = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS: list[Any] = [
    *(_pointer, _integer, _integer, ctypes.c_int, _integer),  # table
    *(_pointer, _pointer, _integer),  # queries
    *(_pointer, _pointer, _integer, _integer, _pointer),  # documents
    *(_pointer, _integer, _pointer),  # scores
    *(_pointer, _pointer),  # next_document, scratch
]


@functools.cache
def _library() -> ctypes.CDLL | None:
    found = importlib.util.find_spec("maxsim._avx2")
    if found is None or found.origin is None:
        return None
    library = ctypes.CDLL(found.origin)
    if not library.maxsim_supported():
        return None
    library.maxsim_score.argtypes = _ARGUMENTS
    library.maxsim_score.restype = None
    return library

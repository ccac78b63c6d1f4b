"""The compiled CPU kernel, where it was built and the processor has AVX2, FMA and F16C.

`_avx2.c` is plain C without Python in it, called through ctypes, which lets go of the interpreter
lock for the whole call. It is built with the package if there is a compiler; without it the
PyTorch kernel of `cpu_chunk` gives the same scores within rounding, at about half the speed.
"""

import ctypes
import functools
import importlib.util

import numpy as np
import torch

from maxsim.cpu_chunk import Documents, Floats, Ints, QueryBlock, table_rows

__all__ = ["available", "score_block"]

_DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}


def available() -> bool:
    """Whether the kernel was built and this processor can run it."""
    return _library() is not None


def score_block(block: QueryBlock, documents: Documents, chosen: Ints) -> Floats:
    """Scores [queries, documents] of a block with the chosen documents, each with a token or more."""
    library = _library()
    assert library is not None, "dispatch chooses this kernel only where it is available"
    tokens, index, step = documents.tokens, documents.index, documents.step
    starts, lengths = documents.starts[chosen], documents.lengths[chosen]
    if tokens.stride(1) != 1:
        # The kernel wants a row's elements side by side: this unit's rows, no more, are copied.
        tokens = tokens.index_select(0, table_rows(documents, chosen))
        index, step, starts = None, 1, lengths.cumsum() - lengths
    query_lengths = np.asarray(block.lengths, np.int64)
    scores = np.empty((len(block.lengths), len(chosen)), np.float32)
    lanes = len(block.matrix)
    maxima = np.empty(2 * lanes, np.float32)
    library.maxsim_score(
        _pointer(tokens.data_ptr()),
        _int(tokens.stride(0) * tokens.element_size()),
        ctypes.c_int(_DTYPES[tokens.dtype]),
        _int(tokens.shape[1]),
        _pointer(block.by_column.data_ptr()),
        _int(lanes),
        _pointer(query_lengths.ctypes.data),
        _int(len(query_lengths)),
        _pointer(starts.ctypes.data),
        _pointer(lengths.ctypes.data),
        _int(len(chosen)),
        _int(step),
        _pointer(None if index is None else index.ctypes.data),
        _pointer(maxima.ctypes.data),
        _pointer(scores.ctypes.data),
    )
    return scores


_pointer, _int = ctypes.c_void_p, ctypes.c_int64


@functools.cache
def _library() -> ctypes.CDLL | None:
    found = importlib.util.find_spec("maxsim._avx2")
    if found is None or found.origin is None:
        return None
    library = ctypes.CDLL(found.origin)
    if not library.maxsim_supported():
        return None
    library.maxsim_score.restype = None
    return library

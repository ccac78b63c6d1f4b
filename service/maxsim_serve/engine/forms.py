"""What becomes of a query for a launch: its dtype, and the rows that it is counted as."""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Rounding", "query_dtype", "shared_rows"]

Rounding = Callable[[NDArray[np.generic], torch.dtype], torch.dtype]
"""The dtype that a query takes for documents of another."""

# Queries of up to so many rows share a launch or a graph; a longer one fills the tensor cores by itself.
_SHARED_ROWS = (32, 64)
_LARGEST_FLOAT16 = 65504.0


def query_dtype(query: NDArray[np.generic], stored: torch.dtype, keep_float32: bool) -> torch.dtype:
    """What a float16 or float32 query is rounded to for documents of a dtype; one that float16 cannot hold is
    kept."""
    if keep_float32 or stored is torch.float32:
        return torch.float32
    if stored is torch.float16 and query.itemsize != 2:
        rows = query.reshape(-1)
        # A sum of squares bounds every value, and takes one pass.
        if not rows.dot(rows) <= _LARGEST_FLOAT16**2 and np.abs(rows).max(initial=0.0) > _LARGEST_FLOAT16:
            return torch.float32
    return stored


@cache
def shared_rows(rows: int) -> int | None:
    """The most rows of the queries that one of so many shares with; None if it goes by itself."""
    few, most = _SHARED_ROWS
    return few if rows <= few else most if rows <= most else None

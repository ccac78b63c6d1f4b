"""What the CPU backend hands to a kernel: blocks of queries, and the documents each is to meet."""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from maxsim.rows import Rows

__all__ = ["LANES", "Documents", "Floats", "Ints", "QueryBlock", "Work", "padded"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

# Kernels take query rows in groups of this many, the last one filled up with zero rows.
LANES = 16


@dataclass(frozen=True, eq=False)
class QueryBlock:
    """Queries scored together.

    matrix  [ΣLq, d] float32, contiguous: the rows of the queries one after the other
    lengths rows of each query
    """

    matrix: Tensor
    lengths: tuple[int, ...]

    @property
    def lanes(self) -> int:
        """Rows, filled up to a multiple of 16."""
        return padded(len(self.matrix))

    @functools.cached_property
    def padded_matrix(self) -> Tensor:
        """The matrix [lanes, d], with zero rows at the end."""
        return torch.nn.functional.pad(self.matrix, (0, 0, 0, self.lanes - len(self.matrix)))


class Documents:
    """The document side in numpy: what every thread reads."""

    def __init__(self, documents: Rows) -> None:
        self.tokens = documents.tokens.detach()
        self.starts: Ints = documents.starts.numpy()
        self.lengths: Ints = documents.lengths.numpy()
        self.step = documents.step
        self.index: Ints | None = None if documents.index is None else documents.index.numpy()


@dataclass(frozen=True, eq=False)
class Work:
    """A block of queries to be scored with the chosen documents, each of one token or more.

    chosen  [n] documents
    out     [queries, columns] where the scores go: those of chosen[i] into column columns[i]
    """

    block: QueryBlock
    chosen: Ints
    out: Floats
    columns: Ints


def padded(rows: int) -> int:
    """The next multiple of 16, at least 16."""
    return max(-(-rows // LANES), 1) * LANES

"""One thread's work in PyTorch: a block of queries against a range of documents, chunk by chunk.

The documents' active tokens form one stream; it is cut into chunks of equal size, wherever
documents end, so that a very long document needs no more memory than a short one. Per chunk:

    gather the rows          [n, d]
    convert to float32       [n, d]    exact for float16 and bfloat16
    Q · chunkᵀ               [Lq, n]   float32; half-precision products are many times slower
    maximum per document     [Lq, documents]

and at the end the maxima are added, row by row.

The bits of a score do not depend on its company. MKL computes an element of a product alike at any
position of any product, except for very thin ones, so both sides are padded to multiples of 16
rows. Maxima are exact in any order. The sum runs over the query's own rows in their order, in
float64, elementwise over documents, and is rounded to float32 once.
"""

import functools
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from maxsim.rows import Rows

__all__ = ["Documents", "QueryBlock", "padded_rows", "score_block", "similarities", "table_rows"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

THIN = 16
CHUNK_TOKENS = 4096
# A chunk's products stay near the cache: fewer tokens for very long queries.
PRODUCT_ELEMENTS = 1 << 20

_local = threading.local()


@dataclass(frozen=True, eq=False)
class QueryBlock:
    """Queries scored together.

    matrix  [ΣLq padded to a multiple of 16, d] float32, the rows of the queries one after the other
    lengths rows of each query
    """

    matrix: Tensor
    lengths: tuple[int, ...]

    @functools.cached_property
    def by_column(self) -> Tensor:
        """The matrix in groups of 16 rows, each column's 16 values side by side: [rows / 16, d, 16]."""
        return self.matrix.view(-1, THIN, self.matrix.shape[1]).transpose(1, 2).contiguous()


class Documents:
    """The document side in numpy: what every thread reads."""

    def __init__(self, documents: Rows) -> None:
        self.tokens = documents.tokens.detach()
        self.starts: Ints = documents.starts.numpy()
        self.lengths: Ints = documents.lengths.numpy()
        self.step = documents.step
        self.index: Ints | None = None if documents.index is None else documents.index.numpy()


def padded_rows(count: int) -> int:
    """The next multiple of 16, at least 16."""
    return max(-(-count // THIN), 1) * THIN


def score_block(block: QueryBlock, documents: Documents, chosen: Ints) -> Floats:
    """Scores [queries, documents] of a block with the chosen documents, each with a token or more."""
    maxima = _maxima(block, documents, chosen)
    scores = np.zeros((len(block.lengths), len(chosen)))
    row = 0
    # Overflow and ∞ − ∞ mean what they mean in the definition.
    with np.errstate(over="ignore", invalid="ignore"):
        for total, length in zip(scores, block.lengths, strict=True):
            for maximum in maxima[row : row + length]:
                total += maximum
            row += length
        return scores.astype(np.float32)


def similarities(block: QueryBlock, documents: Documents, chosen: Ints) -> Floats:
    """Inner products [ΣLq, tokens] of a block with all tokens of the chosen documents, one row of tokens."""
    return _products(block.matrix, documents.tokens, table_rows(documents, chosen))[
        : sum(block.lengths)
    ].copy()


def _maxima(block: QueryBlock, documents: Documents, chosen: Ints) -> Floats:
    """For each query row and document the largest inner product, [ΣLq, documents]."""
    query_rows = sum(block.lengths)
    ends = documents.lengths[chosen].cumsum()
    begins = ends - documents.lengths[chosen]
    rows = table_rows(documents, chosen)
    size = min(CHUNK_TOKENS, max(PRODUCT_ELEMENTS // len(block.matrix) // THIN, THIN) * THIN)
    # The documents from firsts[c] up to lasts[c] have a token in chunk c, perhaps not all of theirs.
    cuts = np.arange(0, int(ends[-1]), size)
    firsts = np.searchsorted(ends, cuts, side="right").tolist()
    lasts = np.searchsorted(begins, cuts + size, side="left").tolist()
    maxima = np.full((query_rows, len(chosen)), -np.inf, np.float32)
    for cut, first, last in zip(cuts.tolist(), firsts, lasts, strict=True):
        products = _products(block.matrix, documents.tokens, rows[cut : cut + size])
        within = begins[first:last] - cut
        within[0] = max(within[0], 0)
        target = maxima[:, first:last]
        np.maximum(target, np.maximum.reduceat(products[:query_rows], within, axis=1), out=target)
    return maxima


def table_rows(documents: Documents, chosen: Ints) -> Tensor:
    """The table rows of the chosen documents' tokens, one document after the other, int64."""
    lengths = documents.lengths[chosen]
    step = 1 if documents.index is not None else documents.step
    rows = np.repeat(documents.starts[chosen] - step * (lengths.cumsum() - lengths), lengths)
    rows += step * np.arange(len(rows))
    return torch.from_numpy(rows if documents.index is None else documents.index[rows])


def _products(matrix: Tensor, tokens: Tensor, rows: Tensor) -> Floats:
    """Inner products [Lq, n] of matrix [Lq, d] float32 with some token rows, in this thread's scratch."""
    count, dim = len(rows), tokens.shape[1]
    chunk = _scratch("chunk", padded_rows(count), dim, torch.float32)
    if tokens.dtype == torch.float32:
        torch.index_select(tokens, 0, rows, out=chunk[:count])
    else:
        gathered = _scratch("gathered", count, dim, tokens.dtype)
        chunk[:count].copy_(torch.index_select(tokens, 0, rows, out=gathered))
    # Stale numbers in the padding would be harmless, stale denormals slow.
    chunk[count:].zero_()
    products = _scratch("products", len(matrix), len(chunk), torch.float32)
    torch.mm(matrix, chunk.T, out=products)
    return products.numpy()[:, :count]


def _scratch(purpose: str, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """An uninitialized [rows, columns] tensor of this thread's own, valid until its next use."""
    buffers: dict[Any, Tensor] = _local.__dict__
    key = (purpose, dtype)
    if key not in buffers or buffers[key].numel() < rows * columns:
        buffers[key] = torch.empty(rows * columns, dtype=dtype)
    return buffers[key][: rows * columns].view(rows, columns)

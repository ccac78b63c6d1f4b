"""One thread's work in PyTorch: a block of queries against a range of documents, chunk by chunk.

The documents' active tokens form one stream; it is cut into chunks of equal size, wherever
documents end, so that a very long document needs no more memory than a short one. Per chunk:

    gather the rows          [n, d]
    convert to float32       [n, d]    exact for float16 and bfloat16
    Q · chunkᵀ               [Lq, n]   float32; half-precision products are many times slower
    maximum per document     [Lq, documents]

and at the end the maxima are added, row by row.

The bits of a score do not depend on its company. MKL computes an element of a product alike at any
position of any product, except for very thin and very wide ones: so both sides are padded to multiples
of 16 rows, and taken a strip of columns at a time. Maxima are exact in any order. The sum runs over the
query's own rows in their order, in float64, elementwise over documents, and is rounded to float32 once.
"""

import threading
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maxsim import cpu_pool
from maxsim.cpu_work import LANES, Documents, Floats, Ints, QueryBlock, Work, padded

__all__ = ["execute", "similarities"]

CHUNK_TOKENS = 4096
# Wider products may be summed in another order in another shape of matrix (seen with AVX-512 at 1,024).
EXACT_DIM = 512
# A chunk's products stay near the cache: fewer tokens for very long queries.
PRODUCT_ELEMENTS = 1 << 20
# Units small enough that threads end together, large enough that handing one over costs little.
UNIT_TOKENS = 4096, 65536
UNITS_PER_THREAD = 4

_local = threading.local()


def execute(documents: Documents, works: Sequence[Work]) -> None:
    """Score all works, each cut into units of about equal tokens."""
    lengths = [documents.lengths[work.chosen] for work in works]
    tokens = sum(int(of_work.sum()) for of_work in lengths)
    least, most = UNIT_TOKENS
    target = min(max(-(-tokens // (cpu_pool.threads() * UNITS_PER_THREAD)), least), most)
    cpu_pool.run(
        [
            partial(_fill, documents, work, begin, end)
            for work, of_work in zip(works, lengths, strict=True)
            for begin, end in _cuts(of_work, target)
        ]
    )


def _cuts(lengths: Ints, tokens: int) -> list[tuple[int, int]]:
    """Cut documents of these lengths, in their order, into ranges of about this many tokens."""
    ends = lengths.cumsum()
    cuts = np.searchsorted(ends, np.arange(tokens, int(ends[-1]), tokens)).tolist() if len(ends) else []
    return [(begin, end) for begin, end in pairwise([0, *cuts, len(lengths)]) if begin < end]


def _fill(documents: Documents, work: Work, begin: int, end: int) -> None:
    """Write the scores of one range of a work's documents."""
    work.out[:, work.columns[begin:end]] = _score_block(work.block, documents, work.chosen[begin:end])


def _score_block(block: QueryBlock, documents: Documents, chosen: Ints) -> Floats:
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
    return _products(block.padded_matrix, documents.tokens, _table_rows(documents, chosen))[
        : sum(block.lengths)
    ].copy()


def _maxima(block: QueryBlock, documents: Documents, chosen: Ints) -> Floats:
    """For each query row and document the largest inner product, [ΣLq, documents]."""
    query_rows = sum(block.lengths)
    ends = documents.lengths[chosen].cumsum()
    begins = ends - documents.lengths[chosen]
    rows = _table_rows(documents, chosen)
    size = min(CHUNK_TOKENS, max(PRODUCT_ELEMENTS // block.lanes // LANES, LANES) * LANES)
    # The documents from firsts[c] up to lasts[c] have a token in chunk c, perhaps not all of theirs.
    cuts = np.arange(0, int(ends[-1]), size)
    firsts = np.searchsorted(ends, cuts, side="right").tolist()
    lasts = np.searchsorted(begins, cuts + size, side="left").tolist()
    maxima = np.full((query_rows, len(chosen)), -np.inf, np.float32)
    for cut, first, last in zip(cuts.tolist(), firsts, lasts, strict=True):
        products = _products(block.padded_matrix, documents.tokens, rows[cut : cut + size])
        within = begins[first:last] - cut
        within[0] = max(within[0], 0)
        target = maxima[:, first:last]
        np.maximum(target, np.maximum.reduceat(products[:query_rows], within, axis=1), out=target)
    return maxima


def _table_rows(documents: Documents, chosen: Ints) -> Tensor:
    """The table rows of the chosen documents' tokens, one document after the other, int64."""
    lengths = documents.lengths[chosen]
    step = 1 if documents.index is not None else documents.step
    rows = np.repeat(documents.starts[chosen] - step * (lengths.cumsum() - lengths), lengths)
    rows += step * np.arange(len(rows))
    return torch.from_numpy(rows if documents.index is None else documents.index[rows])


def _products(matrix: Tensor, tokens: Tensor, rows: Tensor) -> Floats:
    """Inner products [Lq, n] of matrix [Lq, d] float32 with some token rows, in this thread's scratch."""
    count, dim = len(rows), tokens.shape[1]
    chunk = _scratch("chunk", padded(count), dim, torch.float32)
    if tokens.dtype == torch.float32:
        torch.index_select(tokens, 0, rows, out=chunk[:count])
    else:
        gathered = _scratch("gathered", count, dim, tokens.dtype)
        chunk[:count].copy_(torch.index_select(tokens, 0, rows, out=gathered))
    # Stale numbers in the padding would be harmless, stale denormals slow.
    chunk[count:].zero_()
    products = _scratch("products", len(matrix), len(chunk), torch.float32)
    torch.mm(matrix[:, :EXACT_DIM], chunk[:, :EXACT_DIM].T, out=products)
    for first in range(EXACT_DIM, dim, EXACT_DIM):
        products += matrix[:, first : first + EXACT_DIM] @ chunk[:, first : first + EXACT_DIM].T
    return products.numpy()[:, :count]


def _scratch(purpose: str, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """An uninitialized [rows, columns] tensor of this thread's own, valid until its next use."""
    buffers: dict[Any, Tensor] = _local.__dict__
    key = (purpose, dtype)
    if key not in buffers or buffers[key].numel() < rows * columns:
        buffers[key] = torch.empty(rows * columns, dtype=dtype)
    return buffers[key][: rows * columns].view(rows, columns)

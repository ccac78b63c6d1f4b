"""The fast CPU backend: exact float32 scores from packed float16, bfloat16 or float32 rows.

Here the work is cut into units, (block of queries, range of documents) of about equal tokens,
for `cpu_pool` to spread over threads. Two kernels compute a unit: `cpu_native`, compiled, and
`cpu_chunk`, in PyTorch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from maxsim import cpu_chunk, cpu_native, cpu_pool
from maxsim.cpu_chunk import Documents, Floats, Ints, QueryBlock, padded_rows
from maxsim.rows import Rows

__all__ = ["CpuBackend", "compiled", "plain"]

# A converted chunk of documents serves all rows of a block.
BLOCK_ROWS = 256
# Units small enough that threads end together, large enough that handing one over costs little.
UNIT_TOKENS = 4096, 65536
UNITS_PER_THREAD = 4


@dataclass(frozen=True)
class CpuBackend:
    """Every operator, on top of one kernel for a unit of work.

    score_block (block, documents, chosen) → float32 [queries of the block, chosen documents]
    """

    score_block: Callable[[QueryBlock, Documents, Ints], Floats]

    def score_rows(self, queries: Rows, documents: Rows) -> Tensor:
        """Every pair → float32 [Nq, Nd]."""
        scores = np.full((len(queries), len(documents)), -np.inf, np.float32)
        read = Documents(documents)
        chosen = np.flatnonzero(read.lengths > 0)
        units: list[Callable[[], None]] = []
        blocks = list(_blocks(queries))
        target = _unit_tokens(int(read.lengths.sum()) * len(blocks))
        for first, block in blocks:
            out = scores[first : first + len(block.lengths)]
            units += [
                partial(self._fill, out, part, block, read, part) for part in _ranges(read, chosen, target)
            ]
        cpu_pool.run(units)
        scores[queries.lengths.numpy() == 0] = 0
        return torch.from_numpy(scores)

    def score_pairs_rows(
        self, queries: Rows, documents: Rows, query_index: Tensor, document_index: Tensor
    ) -> Tensor:
        """Listed pairs → float32 [P]."""
        scores = np.full((1, len(query_index)), -np.inf, np.float32)
        read = Documents(documents)
        asked, wanted = query_index.numpy(), document_index.numpy()
        lengths = read.lengths[wanted]
        target = _unit_tokens(int(lengths.sum()))
        order = np.argsort(asked, kind="stable")
        order = order[lengths[order] > 0]
        units: list[Callable[[], None]] = []
        for pairs in np.split(order, np.flatnonzero(np.diff(asked[order])) + 1) if len(order) else []:
            block = _block(queries, int(asked[pairs[0]]), int(asked[pairs[0]]) + 1)
            done = 0
            for part in _ranges(read, wanted[pairs], target):
                units.append(partial(self._fill, scores, pairs[done : done + len(part)], block, read, part))
                done += len(part)
        cpu_pool.run(units)
        scores[0, queries.lengths.numpy()[asked] == 0] = 0
        return torch.from_numpy(scores[0])

    def explain(self, query: Tensor, document: Tensor) -> tuple[Tensor, Tensor]:
        """query [Lq, d], document [Ld, d] → (winning token int64 [Lq], its similarity float32 [Lq])."""
        tokens = np.full(len(query), -1)
        best = np.full(len(query), -np.inf, np.float32)
        block = QueryBlock(_matrix(query), (len(query),))
        read = Documents(
            Rows(document, torch.zeros(1, dtype=torch.int64), torch.tensor([len(document)]), 1, None)
        )

        def unit() -> None:
            products = cpu_chunk.similarities(block, read, np.zeros(1, np.int64))
            tokens[:] = products.argmax(axis=1)
            best[:] = products.max(axis=1)

        if len(document):
            cpu_pool.run([unit])
        return torch.from_numpy(tokens), torch.from_numpy(best)

    def _fill(
        self, out: Floats, columns: Ints, block: QueryBlock, documents: Documents, chosen: Ints
    ) -> None:
        """Write one unit's scores into its own columns of `out` [queries, columns]."""
        out[:, columns] = self.score_block(block, documents, chosen)


compiled = CpuBackend(cpu_native.score_block)
plain = CpuBackend(cpu_chunk.score_block)


def _blocks(queries: Rows) -> Iterator[tuple[int, QueryBlock]]:
    """Queries in blocks of up to BLOCK_ROWS rows, or of one longer query, each with its first query."""
    lengths = queries.lengths.tolist()
    first = 0
    while first < len(lengths):
        last, rows = first + 1, lengths[first]
        while last < len(lengths) and rows + lengths[last] <= BLOCK_ROWS:
            rows += lengths[last]
            last += 1
        yield first, _block(queries, first, last)
        first = last


def _block(queries: Rows, first: int, last: int) -> QueryBlock:
    rows, _ = queries.of(torch.arange(first, last))
    matrix = _matrix(queries.tokens.index_select(0, rows))
    return QueryBlock(matrix, tuple(queries.lengths[first:last].tolist()))


def _matrix(query: Tensor) -> Tensor:
    """Query rows [L, d] in float32, padded with zero rows to a multiple of 16."""
    matrix = torch.zeros(padded_rows(len(query)), query.shape[1])
    matrix[: len(query)] = query.detach()
    return matrix


def _unit_tokens(tokens: int) -> int:
    """Tokens to aim at in a unit when all units together have this many."""
    least, most = UNIT_TOKENS
    return min(max(-(-tokens // (cpu_pool.threads() * UNITS_PER_THREAD)), least), most)


def _ranges(documents: Documents, chosen: Ints, tokens: int) -> list[Ints]:
    """Cut the chosen documents, in their order, into ranges of about this many tokens."""
    ends = documents.lengths[chosen].cumsum()
    if not len(ends):
        return []
    cuts = np.arange(tokens, int(ends[-1]), tokens)
    return [part for part in np.split(chosen, np.unique(np.searchsorted(ends, cuts))) if len(part)]

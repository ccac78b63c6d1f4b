"""The fast CPU backend: exact float32 scores from packed float16, bfloat16 or float32 rows.

Here queries are gathered into blocks, each with the documents it is to meet. Two kernels score them:
`cpu_native`, compiled, and `cpu_chunk`, in PyTorch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from maxsim import cpu_chunk, cpu_native, cpu_pool
from maxsim.cpu_work import Documents, Ints, QueryBlock, Work
from maxsim.rows import Rows, Side

__all__ = ["CpuBackend", "compiled", "plain"]

# A converted chunk of documents serves all rows of a block.
BLOCK_ROWS = 256


@dataclass(frozen=True)
class CpuBackend:
    """Every operator, on top of one kernel.

    execute(documents, works) writes the scores of all works, on as many threads as it sees fit.
    """

    execute: Callable[[Documents, Sequence[Work]], None]

    def all_pairs(self, left: Side, right: Side) -> Tensor:
        """Every pair → float32 [Nq, Nd]."""
        queries, documents = left.rows(), right.rows()
        scores = np.full((len(queries), len(documents)), -np.inf, np.float32)
        read = Documents(documents)
        chosen = np.flatnonzero(read.lengths)
        self.execute(
            read,
            [
                Work(block, chosen, scores[first : first + len(block.lengths)], chosen)
                for first, block in _blocks(queries)
            ],
        )
        scores[_empty(queries)] = 0
        return torch.from_numpy(scores)

    def listed_pairs(self, left: Side, right: Side, query_index: Tensor, document_index: Tensor) -> Tensor:
        """Listed pairs → float32 [P]."""
        queries, documents = left.rows(), right.rows()
        scores = np.full((1, len(query_index)), -np.inf, np.float32)
        read = Documents(documents)
        asked, wanted = query_index.numpy(), document_index.numpy()
        self.execute(
            read,
            [
                Work(_block(queries, query, query + 1), wanted[pairs], scores, pairs)
                for query, pairs in _by_query(asked, np.flatnonzero(read.lengths[wanted]))
            ],
        )
        empty = _empty(queries)
        if len(empty):
            scores[0, np.isin(asked, empty)] = 0
        return torch.from_numpy(scores[0])

    def explain(self, query: Tensor, document: Tensor) -> tuple[Tensor, Tensor]:
        """query [Lq, d], document [Ld, d] → (winning token int64 [Lq], its similarity float32 [Lq])."""
        tokens = np.full(len(query), -1)
        best = np.full(len(query), -np.inf, np.float32)
        block = QueryBlock(_float32(query.detach()), (len(query),))
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


compiled = CpuBackend(cpu_native.execute)
plain = CpuBackend(cpu_chunk.execute)


def _empty(queries: Rows) -> Ints:
    """The queries without an active row: their score is 0, whatever the document."""
    return np.flatnonzero(queries.lengths.numpy() == 0)


def _by_query(asked: Ints, pairs: Ints) -> Iterator[tuple[int, Ints]]:
    """The pairs in groups of one query each, as (query, pairs); pairs keep their order within a group."""
    if not len(pairs):
        return
    asked = asked[pairs]
    if (asked[1:] < asked[:-1]).any():
        order = np.argsort(asked, kind="stable")
        asked, pairs = asked[order], pairs[order]
    cuts = [0, *(np.flatnonzero(asked[1:] != asked[:-1]) + 1).tolist(), len(pairs)]
    for begin, end in pairwise(cuts):
        yield int(asked[begin]), pairs[begin:end]


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
    matrices = [queries.matrix(item).detach() for item in range(first, last)]
    matrix = matrices[0] if len(matrices) == 1 else torch.cat(matrices)
    return QueryBlock(_float32(matrix), tuple(map(len, matrices)))


def _float32(rows: Tensor) -> Tensor:
    """The same rows, exactly, in float32 and contiguous."""
    return rows.to(torch.float32).contiguous()

"""The scoring cases of `maxsim bench forward`, each made from fresh random numbers."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from maxsim.bench.work import Form, Work, lengths_like_passages, packed, unit

__all__ = ["CASES", "PAPER_SHAPES", "Case", "chosen"]

Generator = torch.Generator

# Query rows and document tokens of the Flash-MaxSim paper's forward table.
PAPER_SHAPES = ((32, 300), (32, 1024), (128, 1024), (512, 1024), (1024, 1024))

STORE_PASSAGES = 200_000


@dataclass(frozen=True)
class Case:
    """One row of the table.

    name      rows × tokens, and what else tells it apart
    make      fresh inputs from a generator, on its device
    essential whether --quick runs it
    naive     whether PyTorch's own ways are timed too
    split     whether it is timed without splitting documents too
    """

    name: str
    make: Callable[[Generator], Work]
    essential: bool = False
    naive: bool = False
    split: bool = False


def chosen(name_part: str | None, quick: bool) -> list[Case]:
    """The cases whose name contains name_part, and are essential where quick."""
    return [case for case in CASES if (name_part or "") in case.name and (case.essential or not quick)]


def _dense(
    rows: int,
    tokens: int,
    documents: int = 1000,
    queries: int = 1,
    dim: int = 128,
    dtype: torch.dtype = torch.float16,
) -> Callable[[Generator], Work]:
    def make(generator: Generator) -> Work:
        lengths = torch.full((documents,), tokens, device=generator.device)
        return Work(
            unit((queries, rows, dim), dtype, generator), packed(lengths, dim, dtype, generator), "dense"
        )

    return make


def _ragged(
    rows: int, lengths: Callable[[Generator], Tensor], form: Form = "packed"
) -> Callable[[Generator], Work]:
    def make(generator: Generator) -> Work:
        documents = packed(lengths(generator), 128, torch.float16, generator)
        return Work(unit((1, rows, 128), torch.float16, generator), documents, form)

    return make


def _by_ids(requests: int, candidates: int) -> Callable[[Generator], Work]:
    """So many requests of 32 rows, each with its own random candidates out of one store."""

    def make(generator: Generator) -> Work:
        device = generator.device
        lengths = lengths_like_passages(STORE_PASSAGES, generator)
        store = packed(lengths, 128, torch.float16, generator)
        queries = unit((requests, 32, 128), torch.float16, generator)
        ids = [
            torch.randperm(STORE_PASSAGES, generator=generator, device=device)[:candidates]
            for _ in range(requests)
        ]
        query_index = torch.arange(requests, device=device).repeat_interleave(candidates)
        return Work(queries, store, "pairs", (query_index, torch.cat(ids)))

    return make


def _passages(count: int) -> Callable[[Generator], Tensor]:
    return lambda generator: lengths_like_passages(count, generator)


def _highly_ragged(generator: Generator) -> Tensor:
    """20,000 lengths: 9 % of 512 tokens, the rest uniform from 16 to 64."""
    short = torch.randint(16, 65, (20_000,), generator=generator, device=generator.device)
    long = torch.rand(20_000, generator=generator, device=generator.device) < 0.09
    return short.masked_fill(long, 512)


def _filled(percent: int) -> Callable[[Generator], Tensor]:
    """1,000 uniform lengths that fill so much of 1024 on average; one document has all 1024."""
    shortest, longest = (1, 1024 * percent // 50) if percent <= 50 else (1024 * percent // 50 - 1024, 1024)

    def lengths(generator: Generator) -> Tensor:
        drawn = torch.randint(shortest, longest + 1, (1000,), generator=generator, device=generator.device)
        drawn[0] = 1024
        return drawn

    return lengths


CASES = (
    *(
        Case(f"{rows}x{tokens}", _dense(rows, tokens), essential=True, naive=True)
        for rows, tokens in PAPER_SHAPES
    ),
    Case("100 candidates 32x128", _dense(32, 128, documents=100), essential=True),
    Case("by id, 1,000 of 200,000 passages", _by_ids(1, 1000), essential=True),
    Case("by id, 20,000 of 200,000 passages", _by_ids(1, 20_000)),
    Case("64 requests x 100 by id", _by_ids(64, 100), essential=True),
    Case("packed, 1,000 passages", _ragged(32, _passages(1000)), essential=True),
    Case("packed, 20,000 passages", _ragged(32, _passages(20_000)), essential=True),
    Case("packed, 20,000 highly ragged", _ragged(32, _highly_ragged), essential=True),
    *(
        Case(f"{form}, {percent} % of 32x1024", _ragged(32, _filled(percent), form))
        for percent in (25, 50, 75)
        for form in ("padded", "packed")
    ),
    Case("128 queries, 32x300 B128", _dense(32, 300, documents=128, queries=128), essential=True),
    Case("16 queries, 32x300", _dense(32, 300, queries=16)),
    Case("64 queries, 1024x1024 B64", _dense(1024, 1024, documents=64, queries=64), essential=True),
    Case("long, 32x8192 B8", _dense(32, 8192, documents=8), split=True),
    Case("long, 1024x8192 B8", _dense(1024, 8192, documents=8), split=True),
    *(
        Case(f"{name}, {rows}x{tokens}", _dense(rows, tokens, dtype=dtype))
        for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32))
        for rows, tokens in ((32, 300), (32, 1024), (512, 1024))
    ),
    *(Case(f"d{dim}, 32x300", _dense(32, 300, dim=dim)) for dim in (64, 96, 256, 320, 768, 1024)),
)

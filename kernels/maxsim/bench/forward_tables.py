"""The tables beside the timings: odd document lengths, peak memory, numerical error."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import maxsim
from maxsim import Ragged
from maxsim.bench import exact, naive
from maxsim.bench.ceilings import Ceilings
from maxsim.bench.contest import TOLERANCE, WrongScores
from maxsim.bench.gpu_timing import GpuClock
from maxsim.bench.work import unit

__all__ = ["MEMORY_DOCUMENTS", "memory", "numerics", "odd_lengths"]

MEMORY_DOCUMENTS = (10_000, 25_000, 50_000, 100_000)
ODD_LENGTHS = (1000, *range(1001, 1050, 2), 1024, 1050)
NUMERIC_SHAPES = ((32, 300), (32, 1024), (128, 1024), (1024, 1024))
DRAWS = 3
GB = 1e9


def odd_lengths(clock: GpuClock, ceilings: Ceilings, generator: torch.Generator) -> list[dict[str, Any]]:
    """1000 documents of every odd length from 1001 to 1049, and three even ones; 32 and 1024 query rows.

    A kernel whose tiles fit only some lengths would show steps in ns_per_token, one that is made for a length
    would show compilations.
    """
    tokens = unit((1000 * max(ODD_LENGTHS), 128), torch.float16, generator)
    table = []
    for rows in (32, 1024):
        query = unit((rows, 128), torch.float16, generator)
        for length in sorted(ODD_LENGTHS):
            documents = tokens[: 1000 * length].view(1000, length, 128)
            compiled_before = maxsim.compilations()
            ms = clock.cold_ms(partial(maxsim.score, query, documents))
            moved_bytes = documents.numel() * 2 + query.numel() * 2 + 4000
            limit_ms = ceilings.limit_ms(moved_bytes, 2 * rows * documents.numel(), "float16")
            table.append(
                {
                    "rows": rows,
                    "tokens": length,
                    "ours_ms": ms,
                    "share_of_limit": limit_ms / ms,
                    "ns_per_token": ms * 1e6 / (1000 * length),
                    "compilations": maxsim.compilations() - compiled_before,
                }
            )
    return table


def memory(
    ceilings: Ceilings,
    generator: torch.Generator,
    counts: tuple[int, ...],
    rows: int = 1024,
    length: int = 1024,
) -> list[dict[str, Any]]:
    """What scoring takes beside its inputs, for so many ColPali documents; PyTorch's naive form beside it.

    Raises WrongScores when the last documents, which lie beyond 2³¹ elements, are not scored right.
    """
    documents = unit((max(counts), length, 128), torch.float16, generator)
    query = unit((rows, 128), torch.float16, generator)
    table = []
    for count in counts:
        some = documents[:count]
        maxsim.score(query, some)
        ours_bytes, ours_ms, scores = _peak(partial(maxsim.score, query, some))
        last = Ragged(
            some[-8:].reshape(-1, 128), torch.arange(9, device=some.device, dtype=torch.int64) * length
        )
        error = exact.relative_error(scores[0, -8:], exact.scores(query[None], last)[0])
        if not error <= TOLERANCE:
            raise WrongScores(f"memory: the last of {count:,} documents are off by {error:.1e}")
        naive_bytes, naive_ms, naive_error = None, None, None
        try:
            naive_bytes, naive_ms, _ = _peak(partial(naive.half, query, some))
        except torch.OutOfMemoryError:
            naive_error = "out of memory"
        torch.cuda.empty_cache()
        documents_bytes = some.numel() * 2
        table.append(
            {
                "documents": count,
                "documents_bytes": documents_bytes,
                "ours_peak_bytes": ours_bytes,
                "ours_share_of_documents": ours_bytes / documents_bytes,
                "ours_ms": ours_ms,
                "limit_ms": ceilings.limit_ms(documents_bytes, 2 * rows * some.numel(), "float16"),
                "naive_peak_bytes": naive_bytes,
                "naive_ms": naive_ms,
                "naive_error": naive_error,
                "naive_similarity_bytes": 2 * rows * count * length,
            }
        )
    return table


def numerics(generator: torch.Generator) -> list[dict[str, Any]]:
    """Errors against float64 on fresh draws of 1000 documents, ours and the naive form in half precision."""
    table = []
    for dtype in (torch.float16, torch.bfloat16):
        for rows, length in NUMERIC_SHAPES:
            draws = [_errors(rows, length, dtype, generator) for _ in range(DRAWS)]
            table.append(
                {
                    "dtype": str(dtype).removeprefix("torch."),
                    "rows": rows,
                    "tokens": length,
                    "draws": DRAWS,
                    **{name: max(draw[name] for draw in draws) for name in ("ours_error", "naive_error")},
                    **{name: min(draw[name] for draw in draws) for name in ("ours_top20", "naive_top20")},
                }
            )
    return table


def _errors(rows: int, length: int, dtype: torch.dtype, generator: torch.Generator) -> dict[str, float]:
    """One draw: the largest relative error and the agreement of the 20 best, of both."""
    query = unit((rows, 128), dtype, generator)
    documents = unit((1000, length, 128), dtype, generator)
    offsets = torch.arange(1001, device=query.device) * length
    wanted = exact.scores(query[None], Ragged(documents.view(-1, 128), offsets))[0]
    ours, theirs = maxsim.score(query, documents)[0], naive.half(query, documents)
    return {
        "ours_error": exact.relative_error(ours, wanted),
        "naive_error": exact.relative_error(theirs, wanted),
        "ours_top20": exact.top_agreement(ours, wanted),
        "naive_top20": exact.top_agreement(theirs, wanted),
    }


def _peak(call: Callable[[], Tensor]) -> tuple[int, float, Tensor]:
    """(bytes taken at the most beside what was held before, milliseconds of this one call, its answer)."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    answer = call()
    stop.record()
    stop.synchronize()
    return torch.cuda.max_memory_allocated() - before, start.elapsed_time(stop), answer

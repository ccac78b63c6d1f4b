"""The out-of-core scan on this GPU, beside what the bus can do at the most, measured in the same run.

The corpus is one slab of random passages, again and again: every copy of a document ties with all others, so
that the whole answer, not a sample of it, is compared with `score` and `top_k` before anything is timed.
"""

import argparse
import json
import mmap
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import maxsim
from maxsim.bench.contest import WrongScores
from maxsim.bench.gpu_timing import events_ms
from maxsim.bench.machine import versions
from maxsim.blocks import BLOCK_BYTES

__all__ = ["configure", "measure"]

DIM, QUERY_ROWS, K = 128, 32, 100
ROW_BYTES = 2 * DIM
SLAB_BYTES = 256 << 20  # pinned in pieces, as the service's store is
SLAB_ROWS = SLAB_BYTES // ROW_BYTES
SHORTEST, LONGEST = 60, 180
RUNS = 5
COPIED_BYTES = 16 << 30


class Corpus(NamedTuple):
    """tokens float16 [T, 128] in pinned host memory, all slabs like `slab`, which is on the device."""

    tokens: Tensor
    slab: maxsim.Ragged

    def documents(self, slabs: int, shuffled: bool) -> maxsim.Spans:
        """Those of the first so many slabs, as they lie or in random order."""
        starts, lengths = self.slab.starts.cpu(), self.slab.lengths.cpu()
        starts = (starts + SLAB_ROWS * torch.arange(slabs)[:, None]).view(-1)
        lengths = lengths.repeat(slabs)
        order = torch.randperm(len(starts)) if shuffled else torch.arange(len(starts))
        return maxsim.Spans(self.tokens[: slabs * SLAB_ROWS], starts[order], lengths[order])

    def wanted(self, query: Tensor, documents: maxsim.Spans) -> maxsim.TopK:
        """The answer for these documents, from the scores of one slab."""
        scores = maxsim.score(query, self.slab)[0]
        begins = self.slab.starts.cpu()
        which = torch.searchsorted(begins, documents.starts % SLAB_ROWS, right=True) - 1
        return maxsim.top_k(scores[which.to(scores.device)], K)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `maxsim bench stream`."""
    parser.add_argument("--gib", type=int, default=16, help="size of the corpus in GiB of host memory")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.set_defaults(run=_command)


def _command(arguments: argparse.Namespace) -> int:
    rows = list(measure(arguments.gib))
    for row in rows:
        limit = "" if row["limit"] is None else f"  (limit {row['limit']:,.2f})"
        print(f"{row['case']:<48} {row['value']:>16,.2f} {row['unit']}{limit}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({**versions(), "rows": rows}, indent=1) + "\n")
    return 0


def measure(gib: int) -> Iterator[dict[str, Any]]:
    """Rows of `case`, `value`, `unit`, `limit`, as they are measured, for a corpus of at least one GiB."""
    slabs = max(4, (gib << 30) // SLAB_BYTES)
    with _corpus(slabs) as corpus:
        yield from _rows(corpus, slabs)


def _rows(corpus: Corpus, slabs: int) -> Iterator[dict[str, Any]]:
    """`case`, `value`, `unit`, `limit`, one after the other."""
    query = torch.nn.functional.normalize(torch.randn(QUERY_ROWS, DIM, device="cuda"), dim=-1).half()
    copy_gb_per_s = _copy_gb_per_s(corpus.tokens)
    yield _row("pinned copy, 128 MiB at a time", copy_gb_per_s, "GB/s")
    for size, shuffled in ((slabs // 4, False), (slabs, False), (slabs, True)):
        documents = corpus.documents(size, shuffled)
        name = f"{size * SLAB_BYTES / 1e9:.1f} GB{', documents in random order' if shuffled else ''}"
        taken_s, peak_bytes = _stream(corpus, query, documents)
        gb_per_s = size * SLAB_BYTES / taken_s / 1e9
        yield _row(f"{name}: stream", gb_per_s, "GB/s", copy_gb_per_s)
        yield _row(f"{name}: share of the copy", 100 * gb_per_s / copy_gb_per_s, "%", 100.0)
        yield _row(f"{name}: documents", len(documents) / taken_s, "1/s")
        yield _row(f"{name}: device memory", peak_bytes / 2**20, "MiB")


def _row(case: str, value: float, unit: str, limit: float | None = None) -> dict[str, Any]:
    return {"case": case, "value": value, "unit": unit, "limit": limit}


def _stream(corpus: Corpus, query: Tensor, documents: maxsim.Spans) -> tuple[float, int]:
    """→ (median seconds from the call to the answer, most bytes of the device that a call took).

    Raises WrongScores where the answer is not that of `score` and `top_k`.
    """
    wanted = corpus.wanted(query, documents)
    taken_s, peak_bytes = [], 0
    for _ in range(RUNS):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before_bytes = torch.cuda.memory_allocated()
        started = time.perf_counter()
        found = maxsim.stream(query, documents, K, slab_bytes=SLAB_BYTES)
        torch.cuda.synchronize()
        taken_s.append(time.perf_counter() - started)
        peak_bytes = max(peak_bytes, torch.cuda.max_memory_allocated() - before_bytes)
        if not all(map(torch.equal, found, wanted)):
            raise WrongScores("stream: not what score and top_k find")
    return statistics.median(taken_s), peak_bytes


def _copy_gb_per_s(tokens: Tensor) -> float:
    """Nothing but copies, the best of some runs: what `stream` could reach at the most."""
    source = tokens.view(-1).view(torch.uint8)[:COPIED_BYTES]
    target = torch.empty(BLOCK_BYTES, dtype=torch.uint8, device="cuda")

    def copy() -> None:
        for piece in source.split(BLOCK_BYTES):
            target[: len(piece)].copy_(piece, non_blocking=True)

    return len(source) / min(events_ms(copy) for _ in range(RUNS)) / 1e6


@contextmanager
def _corpus(slabs: int) -> Iterator[Corpus]:
    """The corpus, pinned inside."""
    offsets = _offsets().cuda()
    rows = torch.nn.functional.normalize(torch.randn(SLAB_ROWS, DIM, device="cuda"), dim=-1).half()
    # Whole pages: what is registered must not share one.
    tokens = torch.frombuffer(mmap.mmap(-1, slabs * SLAB_BYTES), dtype=torch.float16).view(-1, DIM)
    runtime, pinned = torch.cuda.cudart(), []
    try:
        for slab in tokens.split(SLAB_ROWS):
            torch.cuda.check_error(int(runtime.cudaHostRegister(slab.data_ptr(), SLAB_BYTES, 0)))
            pinned.append(slab.data_ptr())
            slab.copy_(rows, non_blocking=True)
        torch.cuda.synchronize()
        yield Corpus(tokens, maxsim.Ragged(rows, offsets))
    finally:
        torch.cuda.synchronize()
        for address in pinned:
            runtime.cudaHostUnregister(address)


def _offsets() -> Tensor:
    """Of passages that fill one slab, int64 [N + 1]."""
    ends = torch.randint(SHORTEST, LONGEST + 1, (SLAB_ROWS // SHORTEST,)).cumsum(0)
    ends = ends[ends <= SLAB_ROWS - SHORTEST]
    return torch.cat([ends.new_zeros(1), ends, ends.new_full((1,), SLAB_ROWS)])

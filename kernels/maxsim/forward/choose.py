"""The frozen table: what is scored → kernel, configuration, number of segments, and the reason.

Nothing is tried out at run time. The figures behind the table are in docs/benchmarks/h200-forward.md.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maxsim.forward.configs import Config, configs
from maxsim.forward.launch import INTERPRETED
from maxsim.forward.residence import in_host_memory
from maxsim.forward.rowsum import BLOCK_ROWS
from maxsim.forward.segments import even_rounds, one_each, several_chunks_each, several_each
from maxsim.rows import MOST_REMEMBERED, Layout, Side

__all__ = [
    "Choice",
    "aligned",
    "choose",
    "compute_dtype",
    "hopper_or_newer",
    "processors",
    "runs_on",
    "summed",
    "without_splitting",
]

SHORT_ROWS = 64
# A document may be split where a program for each leaves the chip idle.
SPLIT_BELOW_PROGRAMS_PER_SM = 2
# Of scattered documents, looked up one after the other, plain loads have more under way than the copy engine.
SCATTERED_PROGRAMS_PER_SM = 31
# Documents are uneven where the longest, of at least so many tokens, has so many times the mean, and that is
# no less than so many. A long one begun last must not be waited for; short ones leave a tile empty.
UNEVEN_LONGEST, UNEVEN_OVER_MEAN, UNEVEN_MEAN = 512, 1.5, 192
# A table of query rows is scored whole; a store in which queries are a few spans is not.
MAX_UNUSED_ROWS = 65_536
# The copy engine is told rows in 32 bits.
MAX_COPIED_ROWS = 1 << 31

_splitting = True


@dataclass(frozen=True, eq=False, slots=True)
class Choice:
    """What runs. Compared by identity: launches are remembered by it.

    segments parts of a document
    chunked  a query may have more rows than a tile
    straight rows of both sides are read 16 bytes at a time, and begin at multiples of so many
    """

    name: str
    reason: str
    config: Config
    segments: int = 1
    chunked: bool = False
    straight: bool = False


class _Where(NamedTuple):
    """What a choice depends on beside the layouts and the number of pairs.

    over_bus  the documents lie in host memory; looked at on Hopper alone
    splitting a document may be cut into segments
    straight  rows of both sides are read 16 bytes at a time
    """

    processors: int
    hopper: bool
    over_bus: bool
    splitting: bool
    straight: bool


def choose(left: Side, right: Side, pairs: int | None = None) -> Choice:
    """The plan for all pairs of two sides, or for a work list of `pairs`."""
    device, documents = right.layout.device, right.tokens.data_ptr()
    hopper = _hopper(device)
    return _choose(
        left.layout,
        right.layout,
        pairs,
        (left.tokens.data_ptr() | documents) % 16 == 0,
        processors(device),
        hopper,
        hopper and in_host_memory(documents),
        _splitting,
    )


@lru_cache(MOST_REMEMBERED)
def _choose(left: Layout, right: Layout, pairs: int | None, at_multiples: bool, *where: Any) -> Choice:
    """`at_multiples`: the first rows of both sides are at multiples of 16 bytes."""
    straight = at_multiples and aligned(left) and aligned(right)
    return _chosen(left, right, pairs, _Where._make((*where, straight)))


def _chosen(left: Layout, right: Layout, pairs: int | None, where: _Where) -> Choice:
    table = configs(right.dim, compute_dtype(left, right))
    columns = left.items * right.items if pairs is None else pairs
    rows = left.longest
    if left.items > 1 and pairs is None and _scored_whole(left):
        reason = "several queries: a document tile is read once"
        return _many_rows(table, left, right, where, right.items, "multi-query", reason)
    if (
        rows is not None
        and rows > SHORT_ROWS
        and (left.items == 1 or pairs is not None)
        and _scored_whole(left)
    ):
        reason = "many query rows: bound by arithmetic"
        return _many_rows(table, left, right, where, columns, "long-query", reason, pairs)
    if rows is None or rows > SHORT_ROWS:
        reason = f"query rows unknown or scattered: taken {SHORT_ROWS} at a time"
        return Choice("short-query", reason, table["short-64"], chunked=True, straight=where.straight)
    return _few_rows(table, left, right, where, columns, pairs)


def _few_rows(
    table: dict[str, Config], left: Layout, right: Layout, where: _Where, columns: int, pairs: int | None
) -> Choice:
    size = "32" if left.longest is not None and left.longest <= 32 else "64"
    listed_or_one = left.items == 1 or pairs is not None
    copied = (
        size == "32"
        and "hopper-32" in table
        and listed_or_one
        and left.step == 1
        and (pairs is None or pairs < SCATTERED_PROGRAMS_PER_SM * where.processors)
        and _copy_engine_reads(left, right, where)
        # Over the bus, too, plain loads have more under way: 51 GB/s, where the copy engine reads 45.
        and not where.over_bus
    )
    config = table[f"hopper-{size}" if copied else f"short-{size}"]
    if columns >= SPLIT_BELOW_PROGRAMS_PER_SM * where.processors:
        if copied and _uneven(right):
            reason = "few query rows, documents of very different lengths: four warps to each"
            return _short("short-query", reason, table["hopper-long"], where)
        return _short("short-query", "few query rows: bound by reading the documents", config, where)
    longest = _splittable(columns, right, where) if listed_or_one else None
    if longest is not None:
        cut = one_each if copied else several_each
        segments = cut(columns, longest, where.processors)
        if segments > 1:
            reason = "few long documents: segments of them fill the chip"
            config = table["hopper-long"] if copied else config
            return _short("split-document", reason, config, where, segments)
    # One wave of programs: the sooner each is done the better, however many more it could be.
    config = table.get("hopper-few" if copied else f"few-{size}", config)
    return _short("short-query", "few query rows, few documents: four warps to each", config, where)


def _short(name: str, reason: str, config: Config, where: _Where, segments: int = 1) -> Choice:
    if config.kernel == "short_hopper":
        name, reason = f"{name}-hopper", f"{reason}; copy engine"
    return Choice(name, reason, config, segments, straight=where.straight)


def _many_rows(
    table: dict[str, Config],
    left: Layout,
    right: Layout,
    where: _Where,
    columns: int,
    name: str,
    reason: str,
    pairs: int | None = None,
) -> Choice:
    rows = left.table_rows if left.listed else left.items * left.length
    if (
        (left.items == 1 or pairs is None)
        and "hopper-128" in table
        and _copy_engine_reads(left, right, where)
    ):
        # The smaller chunk where it leaves less of itself empty.
        small = "hopper-256" not in table or (rows - 1) % 256 < 128
        config = table["hopper-128" if small else "hopper-256"]
        groups = max(where.processors // max(-(-rows // config.query_rows), 1), 1)
        longest = _splittable(columns, right, where)
        finished = not summed(left)
        segments = 1 if longest is None else even_rounds(columns, longest, groups, config, finished)
        name, reason = f"{name}-hopper", f"{reason}; copy engine and wgmma"
        return Choice(name, reason, config, segments, straight=where.straight)
    config = table["long-wide" if where.hopper and "long-wide" in table else "long"]
    chunks = max(-(-rows // config.query_rows), 1)
    longest = _splittable(columns, right, where)
    segments = 1 if longest is None else several_chunks_each(columns, longest, where.processors, chunks)
    return Choice(name, reason, config, segments, straight=where.straight)


def _splittable(columns: int, right: Layout, where: _Where) -> int | None:
    """The tokens of the longest document, if it may be cut into segments."""
    return right.longest if where.splitting and columns else None


def _uneven(right: Layout) -> bool:
    """Whether some documents may be far longer than most. Of a few spans of a larger table nobody knows."""
    if right.longest is None or right.longest < UNEVEN_LONGEST:
        return False
    mean = right.table_rows / right.items
    return right.masked or (right.listed and mean >= UNEVEN_MEAN and UNEVEN_OVER_MEAN * mean <= right.longest)


def summed(left: Layout) -> bool:
    """Whether the Hopper kernel adds up a query's rows itself: whole blocks of 64 rows, or 32 rows in all."""
    if left.listed or left.masked:
        return False
    return left.items == 1 or left.length == BLOCK_ROWS // 2 or left.length % BLOCK_ROWS == 0


def _scored_whole(left: Layout) -> bool:
    """Whether all rows of the query side's table may be scored as they lie there."""
    if not left.listed:
        return left.step == 1 and (left.items == 1 or left.item_step == left.length)
    needed = 0 if left.longest is None else left.items * left.longest
    return left.table_rows <= max(2 * needed, MAX_UNUSED_ROWS)


def compute_dtype(query: Tensor | Layout, document: Tensor | Layout) -> torch.dtype:
    """Both sides' half precision where they share one, which the tensor cores multiply exactly, else float32.

    Triton's interpreter gets bfloat16 products wrong, and computes in float32 there.
    """
    if query.dtype != document.dtype or (query.dtype == torch.bfloat16 and INTERPRETED):
        return torch.float32
    return query.dtype


def aligned(layout: Layout) -> bool:
    """Whether rows begin at multiples of 16 bytes where the first does, and can be read so many at a time."""
    return layout.column_stride == 1 and layout.row_stride % 8 == 0


def runs_on(config: Config, device: torch.device) -> bool:
    """Whether a device has what this configuration needs."""
    return _hopper(device) or not (
        config.kernel in ("hopper", "short_hopper") or config.key.startswith("long-wide")
    )


def _copy_engine_reads(left: Layout, right: Layout, where: _Where) -> bool:
    return where.hopper and where.straight and right.step == 1 and _copied(left) and _copied(right)


def _copied(side: Layout) -> bool:
    return 0 < side.table_rows < MAX_COPIED_ROWS and side.row_stride > 0


@contextmanager
def without_splitting() -> Iterator[None]:
    """For benches: choose as if a document could not be cut into segments."""
    global _splitting
    _splitting = False
    try:
        yield
    finally:
        _splitting = True


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@cache
def hopper_or_newer(device: torch.device) -> bool:
    """Whether a device has bulk copies and dependent launches."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


@cache
def _hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9

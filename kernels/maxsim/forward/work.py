"""A choice for two layouts → all that is to be done: what memory lies between launches, and the launches.

Worked out once for the same shapes and remembered; a call brings its tensors.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from maxsim.forward import prepare
from maxsim.forward.choose import Choice, summed
from maxsim.forward.launch import Launch
from maxsim.forward.rowsum import BLOCK_ROWS
from maxsim.rows import MOST_REMEMBERED, Layout

__all__ = ["Work", "prepared"]

# Row maxima held at a time; more documents are taken in batches.
MAXIMA_BYTES = 16 << 20


class Work(NamedTuple):
    """All columns, which are documents or the pairs of a work list, in batches of `batch`.

    scratch  so many numbers of this dtype lie between a batch's launches; None: there is one launch
    whole    launches of a batch, in order
    rest     those of the last where it has fewer columns
    """

    scratch: int | None
    dtype: torch.dtype
    batch: int
    whole: tuple[Launch, ...]
    rest: tuple[Launch, ...] = ()


@cache
def _for_hopper() -> Any:
    """Imported where there is a GPU for it."""
    from maxsim.forward import prepare_hopper

    return prepare_hopper


@lru_cache(MOST_REMEMBERED)
def prepared(choice: Choice, left: Layout, right: Layout, listed: bool, columns: int) -> Work:
    """`listed`: columns are the pairs of a work list."""
    if choice.config.kernel in ("short_query", "short_hopper"):
        return _short(choice, left, right, listed, columns)
    return _long(choice, left, right, listed, columns)


def _short(choice: Choice, left: Layout, right: Layout, listed: bool, columns: int) -> Work:
    config, segments = choice.config, choice.segments
    pairs = columns if listed else left.items * columns
    if config.kernel == "short_hopper":
        launch = _for_hopper().short_query(choice, left, right, listed, pairs)
    else:
        launch = prepare.short_query(choice, left, right, listed, pairs)
    if segments == 1:
        return Work(None, torch.float32, columns, (launch,))
    # Without a list there is one query, or nothing would have been split: a column is a document.
    rows = config.query_rows
    finish = prepare.finish(left, right, listed, pairs, columns, segments, rows, False)
    return Work(pairs * segments * rows, torch.float32, columns, (launch, finish))


def _long(choice: Choice, left: Layout, right: Layout, listed: bool, columns: int) -> Work:
    # A work list of several queries has cells of its own query's rows; else all rows lie as in the table.
    packed = not listed or left.items == 1
    if left.listed:
        rows = left.table_rows if packed else left.longest or 0
    else:
        rows = left.items * left.length if packed else left.length
    hopper, segments = choice.config.kernel == "hopper", choice.segments
    if hopper and segments == 1 and summed(left):
        return _summed(choice, left, right, listed, columns, rows)

    def launches(batch: int) -> tuple[Launch, ...]:
        finish = prepare.finish(left, right, listed, batch, columns, segments, rows, packed)
        if rows == 0:
            return (finish,)
        if hopper:
            maxima = _for_hopper().long_query(choice, left, right, listed, batch, columns, rows, 0, rows)
        else:
            maxima = prepare.long_query(choice, left, right, listed, batch, rows, packed)
        return maxima, finish

    return _in_batches(columns, segments * rows, torch.float32, launches)


def _summed(choice: Choice, left: Layout, right: Layout, listed: bool, columns: int, rows: int) -> Work:
    """The Hopper kernel adds up blocks of rows; where a query has several, they are added up after it."""
    queries, length = left.items, left.length
    sum_rows = min(length, BLOCK_ROWS) if queries > 1 else BLOCK_ROWS
    blocks = -(-length // sum_rows)
    if not listed and (blocks == 1 or (queries == 1 and rows <= choice.config.query_rows)):
        stride = 0 if queries == 1 else 1
        launch = _for_hopper().long_query(
            choice, left, right, False, columns, columns, rows, sum_rows, stride
        )
        return Work(None, torch.float32, columns, (launch,))
    # Strides of 0 and 1 would say that no sums are wanted.
    stride = max(blocks * queries, 2)

    def launches(batch: int) -> tuple[Launch, ...]:
        return (
            _for_hopper().long_query(choice, left, right, listed, batch, columns, rows, sum_rows, stride),
            prepare.add_blocks(left, right, listed, batch, columns, blocks, stride),
        )

    return _in_batches(columns, stride, torch.float64, launches)


def _in_batches(
    columns: int, numbers: int, dtype: torch.dtype, launches: Callable[[int], tuple[Launch, ...]]
) -> Work:
    """`launches` makes those for so many columns, each of which leaves so many numbers behind."""
    batch = max(min(columns, MAXIMA_BYTES // max(dtype.itemsize * numbers, 1)), 1)
    rest = columns % batch
    return Work(batch * numbers, dtype, batch, launches(batch), launches(rest) if rest else ())

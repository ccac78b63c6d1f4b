"""Where to cut a host-resident store into blocks, so that each is a few long copies: arithmetic, in numpy.

Documents are taken in the order of their rows. Rows that belong to none lie between them after updates: a
short gap is copied along, a long one ends a copy.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK_BYTES", "MOST_DOCUMENTS", "Block", "Copy", "cut"]

Int64 = NDArray[np.int64]

BLOCK_BYTES = 128 << 20
"""What a block takes at most, if no single document needs more: 2.5 ms of a PCIe 5 link."""

MOST_DOCUMENTS = 1 << 16
"""No block has more; and so many are looked at a time, so that the first copy need not wait for the last."""

# A copy costs about 10 µs of the host's time, in which the link moves as much.
GAP_BYTES = 512 << 10


class Copy(NamedTuple):
    """`size` bytes from byte `source` of the store to byte `target` of the block."""

    source: int
    target: int
    size: int


class Block(NamedTuple):
    """n documents.

    positions int64 [n], which of all documents they are
    rows      int64 [n], first row of each in the store
    starts    int64 [n], first row of each in the block
    lengths   int64 [n], `longest` the largest
    copies    what brings their rows into the block
    """

    positions: Int64
    rows: Int64
    starts: Int64
    lengths: Int64
    longest: int
    copies: list[Copy]


def cut(
    rows: Int64, lengths: Int64, row_bytes: int, block_bytes: int = BLOCK_BYTES, slab_bytes: int = 0
) -> Iterator[Block]:
    """Blocks of documents with first rows [N] and lengths [N] in the store, each document in one of them.

    A block has at most `block_bytes`, or one document. No copy crosses a multiple of `slab_bytes` of the
    store (0: it may). Documents may overlap.
    """
    order = None if (rows[1:] >= rows[:-1]).all() else _order(rows)
    for first in range(0, len(rows), MOST_DOCUMENTS):
        last = min(first + MOST_DOCUMENTS, len(rows))
        positions = np.arange(first, last) if order is None else order[first:last]
        yield from _cut(positions, rows[positions], lengths[positions], row_bytes, block_bytes, slab_bytes)


def _order(rows: Int64) -> Int64:
    """Which document comes first, second, …, by its first row."""
    bits = len(rows).bit_length()
    if int(rows.max()).bit_length() + bits > 63:
        return rows.argsort()
    # Numbers are sorted in a fifth of the time that their places are: 0.1 s for three million.
    keys = (rows << bits) | np.arange(len(rows))
    keys.sort()
    order: Int64 = keys & ((1 << bits) - 1)
    return order


def _cut(
    positions: Int64, rows: Int64, lengths: Int64, row_bytes: int, block_bytes: int, slab_bytes: int
) -> Iterator[Block]:
    """As `cut`, with rows that ascend."""
    ends = rows + lengths
    reached = np.maximum.accumulate(ends)
    gaps = rows[1:] - reached[:-1]
    apart = np.concatenate([[True], gaps * row_bytes > GAP_BYTES])
    left_out = np.concatenate([rows[:1], np.where(apart[1:], gaps, 0)]).cumsum()
    packed, packed_ends = rows - left_out, reached - left_out  # were all of them one block
    block_rows = block_bytes // row_bytes
    first = 0
    while first < len(rows):
        base = packed[first]
        last = max(int(np.searchsorted(packed_ends, base + block_rows, side="right")), first + 1)
        chosen = slice(first, last)
        starts = packed[chosen] - base
        heads = np.flatnonzero(apart[chosen])
        if not apart[first]:
            heads = np.concatenate([[0], heads])
        tails = np.maximum.reduceat(ends[chosen], heads)
        stretches = np.stack([rows[chosen][heads], starts[heads], tails - rows[chosen][heads]], axis=1)
        copies = [
            copy
            for source, target, size in (stretches * row_bytes).tolist()
            for copy in _split(source, target, size, slab_bytes)
        ]
        yield Block(
            positions[chosen], rows[chosen], starts, lengths[chosen], int(lengths[chosen].max()), copies
        )
        first = last


def _split(source: int, target: int, size: int, slab_bytes: int) -> Iterator[Copy]:
    """One copy, ended wherever a slab of the source does."""
    end = source + size
    while source < end:
        until = min(end, (source // slab_bytes + 1) * slab_bytes) if slab_bytes else end
        yield Copy(source, target, until - source)
        target += until - source
        source = until

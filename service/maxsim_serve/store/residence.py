"""Where a segment's rows are in memory."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .extents import Extent
from .memory import Bytes
from .tier import Table

__all__ = ["Placed", "Residence"]

Int64 = NDArray[np.int64]
_COPY_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Placed:
    """Room for documents: `starts` int64 [n] rows of the table, and the residence once they are in."""

    starts: Int64
    extents: list[Extent]
    next_row: int
    end_row: int


class Residence:
    """Extents of one table, filled one after the other; each document lies in one of them.

    Whoever holds this object keeps the rows where they are: they are given back with the last reference.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._extents: list[Extent] = []
        self._next_row = self._end_row = 0  # what is left of the newest

    def hold(self, rows: int) -> int:
        """Room for all rows of a segment that is being opened, in one piece; returns the first."""
        extent = self._table.take(rows, rows)
        self._extents.append(extent)
        return extent.begin // self._table.row_bytes

    def place(self, lengths: Int64, spare_rows: int) -> Placed:
        """Find room for documents of these lengths [n], and for some rows more to come. Raises OutOfSpace.

        Nothing is changed until `adopt`, and the room goes back with the answer.
        """
        width = self._table.row_bytes
        ends = np.cumsum(lengths)
        starts = np.empty_like(lengths)
        extents: list[Extent] = []
        next_row, end_row = self._next_row, self._end_row
        document, row = 0, 0  # the next to place
        while document < len(lengths):
            last = int(np.searchsorted(ends, row + end_row - next_row, side="right"))
            if last == document:
                least = int(lengths[document])
                extent = self._table.take(least, max(least, int(ends[-1]) - row + spare_rows))
                extents.append(extent)
                next_row, end_row = extent.begin // width, extent.end // width
                continue
            starts[document:last] = next_row - row + ends[document:last] - lengths[document:last]
            next_row += int(ends[last - 1]) - row
            document, row = last, int(ends[last - 1])
        return Placed(starts, extents, next_row, end_row)

    def fill(self, placed: Placed, lengths: Int64, packed: Bytes) -> None:
        """Copy documents, packed one after the other, to where they were placed."""
        width = self._table.row_bytes
        after = placed.starts + lengths
        cuts = [0, *(np.flatnonzero(placed.starts[1:] != after[:-1]) + 1).tolist(), len(lengths)]
        begin = 0
        for first, last in pairwise(cuts):
            start, end = int(placed.starts[first]), int(after[last - 1])
            size = (end - start) * width
            self._table.write(start, packed[begin : begin + size])
            begin += size

    def copy_to(self, table: Table) -> tuple["Residence", list[tuple[int, int, int]]]:
        """The same rows in another table; and per extent its first row here, there, and its rows."""
        copy, moved, width = Residence(table), [], table.row_bytes
        for extent in self._extents:
            first, rows = extent.begin // width, (extent.end - extent.begin) // width
            there = copy.hold(rows)
            step = max(1, _COPY_BYTES // width)
            for row in range(0, rows, step):
                table.write(there + row, self._table.read(first + row, min(step, rows - row)))
            moved.append((first, there, rows))
        return copy, moved

    def adopt(self, placed: Placed) -> None:
        """The documents are committed."""
        self._extents += placed.extents
        self._next_row, self._end_row = placed.next_row, placed.end_row

"""The segments of one collection: where appended rows go, and which rows are dead."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import InDoubt
from .residence import Placed, Residence
from .segment import Segment, sync_directory
from .space import full_disk_raises
from .tier import Table, Tier

__all__ = ["Arena", "Copy", "Lease", "Placement"]

Int64 = NDArray[np.int64]
Lease = tuple[Residence, ...]
"""What a reader holds so that the rows it knows of stay where they are."""

_LEAST_ROOM_BYTES = 64 << 10
_ROOM_SHARE = 32  # memory is taken ahead for one in so many rows


@dataclass(frozen=True, slots=True)
class Placement:
    """Where documents were written: per document int64 [n] its segment, its first row in the segment's file
    and in the table; and the number of committed rows that each segment concerned has once the catalog takes
    them in.
    """

    segments: Int64
    file_starts: Int64
    starts: Int64
    segment_rows: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Copy:
    """A collection's rows in another table. `moved` int64 [n, 3] ascending: first row here, first row there,
    and the number of rows, of each piece.
    """

    table: Table
    residences: Mapping[int, Residence]
    moved: Int64

    def lease(self) -> Lease:
        return tuple(self.residences.values())

    def there(self, rows: Int64) -> Int64:
        """The rows [n] of the new table that were these of the old one."""
        here, there, _lengths = self.moved.T
        piece = np.searchsorted(here, rows, side="right") - 1
        moved: Int64 = rows - here[piece] + there[piece]
        return moved


class Arena:
    """For one writer at a time. The newest segment takes appends until it is full; the others are sealed."""

    def __init__(
        self, directory: Path, table: Table, segment_bytes: int, new_segment_id: Callable[[], int]
    ) -> None:
        self._directory = directory
        self.table = table
        self._segment_rows = max(1, segment_bytes // table.row_bytes)
        self._new_segment_id = new_segment_id
        self._segments: dict[int, Segment] = {}
        self._active: Segment | None = None

    def __len__(self) -> int:
        return len(self._segments)

    def __getitem__(self, segment_id: int) -> Segment:
        return self._segments[segment_id]

    @property
    def tier(self) -> Tier:
        return self.table.tier

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self._segments.values())

    @property
    def live_rows(self) -> int:
        return sum(segment.live_rows for segment in self._segments.values())

    def lease(self) -> Lease:
        return tuple(segment.residence for segment in self._segments.values())

    def open(self, committed: Mapping[int, int]) -> dict[int, int]:
        """Open the segments that the catalog knows: id → committed rows. The newest takes appends.

        Returns id → the row of the table that its first row is to be.
        """
        first_rows = {}
        for segment_id, rows in sorted(committed.items()):
            newest = segment_id == max(committed)
            capacity = max(rows, self._segment_rows) if newest else rows
            segment = Segment(self._path(segment_id), capacity, self.table, rows=rows)
            self._segments[segment_id] = segment
            segment.recover()
            first_rows[segment_id] = segment.residence.hold(rows)
            if newest:
                self._active = segment
        return first_rows

    @contextmanager
    def append(self, packed: NDArray[np.uint8], lengths: Int64) -> Iterator[Placement]:
        """Write documents of `lengths` [n] rows, packed one after the other, durably. They are committed when
        the body ends; where it raises, or the writing does, nothing has happened.
        """
        ends = np.cumsum(lengths)
        segments, file_starts, starts = (np.empty_like(lengths) for _ in range(3))
        written: list[tuple[Segment, int, Placed]] = []
        created: list[Segment] = []
        before = segment = self._active
        try:
            with full_disk_raises(self._directory):
                document, row = 0, 0  # the next to write
                while document < len(lengths):
                    if segment is None or segment.room < lengths[document]:
                        segment = self._create(max(self._segment_rows, int(lengths[document])))
                        created.append(segment)
                    last = int(np.searchsorted(ends, row + segment.room, side="right"))
                    end = int(ends[last - 1])
                    here = slice(document, last)
                    placed = segment.residence.place(lengths[here], self._spare_rows(segment, end - row))
                    segments[here] = segment.id
                    file_starts[here] = ends[here] - lengths[here] - row + segment.rows
                    starts[here] = placed.starts
                    written.append((segment, end - row, placed))
                    chunk = packed[row * segment.row_bytes : end * segment.row_bytes]
                    segment.write(chunk)
                    segment.residence.fill(placed, lengths[here], chunk)
                    document, row, segment = last, end, None
                if created:
                    sync_directory(self._directory)
                segment_rows = {segment.id: segment.rows + rows for segment, rows, _ in written}
                yield Placement(segments, file_starts, starts, segment_rows)
        except BaseException as error:
            for segment in created:
                del self._segments[segment.id]
            self._active = before
            if not isinstance(error, InDoubt):  # else the catalog may turn out to have them
                _undo(before, created)
            raise
        for segment, rows, placed in written:
            segment.residence.adopt(placed)
            segment.commit(rows)

    def kill(self, segments: Int64, lengths: Int64) -> None:
        """The documents that had these rows are gone."""
        for segment_id in np.unique(segments).tolist():
            self._segments[segment_id].live_rows -= int(lengths[segments == segment_id].sum())

    def set_live(self, segments: Int64, lengths: Int64) -> None:
        """On opening: documents have these rows."""
        for segment_id in np.unique(segments).tolist():
            self._segments[segment_id].live_rows = int(lengths[segments == segment_id].sum())

    def compaction_due(self, dead_share: float) -> bool:
        """Whether more than this share of the rows is dead, and more than is worth the trouble."""
        worth_it = self._segment_rows // _ROOM_SHARE
        return self.rows - self.live_rows > max(dead_share * self.rows, worth_it)

    def compactable(self, dead_share: float) -> list[Segment]:
        """Segments to rewrite until at most this share of the rows is dead: those of the most dead rows in
        proportion, since they cost the least. The newest may be among them, and then takes no more appends.
        """
        chosen = []
        rows, dead = self.rows, self.rows - self.live_rows
        segments = [segment for segment in self._segments.values() if segment.dead_rows]
        for segment in sorted(segments, key=lambda segment: segment.live_rows / segment.rows):
            if dead <= dead_share * rows:
                break
            chosen.append(segment)
            rows, dead = rows - segment.dead_rows, dead - segment.dead_rows
        if self._active in chosen:
            self._active = None
        return chosen

    def copy_to(self, table: Table) -> Copy:
        """All rows in another tier, too. Nothing changes before `adopt`."""
        residences, moved = {}, []
        for segment in self._segments.values():
            residences[segment.id], of_segment = segment.residence.copy_to(table)
            moved += of_segment
        return Copy(table, residences, np.array(sorted(moved), np.int64).reshape(-1, 3))

    def adopt(self, copy: Copy) -> None:
        self.table = copy.table
        for segment in self._segments.values():
            segment.residence = copy.residences[segment.id]

    def forget(self, segment: Segment) -> None:
        """Drop a segment without live rows, which the catalog has dropped already."""
        del self._segments[segment.id]
        segment.remove()

    def close(self) -> None:
        for segment in self._segments.values():
            segment.close()

    def remove(self) -> None:
        """Drop every segment, of a collection that the catalog has dropped already."""
        for segment in self._segments.values():
            segment.remove()
        self._segments.clear()
        self._active = None

    def _create(self, capacity: int) -> Segment:
        segment = Segment(self._path(self._new_segment_id()), capacity, self.table)
        self._segments[segment.id] = segment
        self._active = segment
        return segment

    def _spare_rows(self, segment: Segment, rows: int) -> int:
        """How many rows to take ahead of those that are written: few, so that memory follows the tokens."""
        ahead = max(self.rows // _ROOM_SHARE, _LEAST_ROOM_BYTES // segment.row_bytes)
        return max(0, min(ahead, segment.room - rows))

    def _path(self, segment_id: int) -> Path:
        return self._directory / f"{segment_id}.rows"


def _undo(appended: Segment | None, created: list[Segment]) -> None:
    """What cannot be cut off now is cut off before the next write, or when the store is opened again."""
    for segment in created:
        with suppress(OSError):
            segment.remove()
    if appended is not None:
        with suppress(OSError):
            appended.discard()

"""From disk into memory when a store is opened: every document read, and its checksum verified."""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ServiceError
from .arena import Arena
from .catalog import Catalog
from .resident import ResidentIndex
from .segment import Segment
from .tier import Table

__all__ = ["Progress", "load"]

Progress = Callable[[int, int], None]
"""Called with (loaded_bytes, total_bytes)."""

_READ_BYTES = 16 << 20
_THREADS = 2  # one waits for the disk while the other sums
_NAMED = 5  # damaged documents that the error names


@dataclass(frozen=True, slots=True)
class _Read:
    """Neighbouring documents of a segment, in row order; its first row is to be `first_row` of the table."""

    segment: Segment
    table: Table
    first_row: int
    documents: Sequence[int]
    starts: Sequence[int]
    lengths: Sequence[int]
    crcs: Sequence[int]

    @property
    def rows(self) -> int:
        return self.starts[-1] + self.lengths[-1] - self.starts[0]

    @property
    def size_bytes(self) -> int:
        return self.rows * self.segment.row_bytes

    def run(self) -> list[tuple[int, Segment]]:
        """Read; returns the documents that are damaged, and where."""
        width, first = self.segment.row_bytes, self.starts[0]
        with self.table.landing(self.first_row + first, self.rows) as rows:
            self.segment.read(first, rows)
            view = rows.data
            return [
                (document, self.segment)
                for document, start, length, crc in zip(
                    self.documents, self.starts, self.lengths, self.crcs, strict=True
                )
                if zlib.crc32(view[(start - first) * width : (start - first + length) * width]) != crc
            ]


def load(
    catalog: Catalog,
    targets: Mapping[int, tuple[Arena, Mapping[int, int], ResidentIndex]],
    on_progress: Progress | None,
) -> None:
    """Fill arenas and indexes, by collection_id, each with what `Arena.open` returned.

    Raises ServiceError that names damaged documents."""
    ids: dict[int, list[str]] = {key: [] for key in targets}
    columns: dict[int, list[list[int]]] = {key: [] for key in targets}
    for key, id, *numbers in catalog.documents():
        ids[key].append(id.decode())
        columns[key].append(numbers)
    reads: list[_Read] = []
    for key, (arena, first_rows, index) in targets.items():
        if ids[key]:
            table = np.array(columns.pop(key), np.int64).T
            _documents, segments, starts, lengths, generations, _crcs = table
            arena.set_live(segments, lengths)
            resident = starts + np.array([first_rows[segment] for segment in segments.tolist()], np.int64)
            index.upsert(ids[key], segments, resident, lengths, generations, arena.lease())
            reads += _plan(arena, first_rows, table)
    damaged = _run(reads, on_progress)
    if damaged:
        raise ServiceError(_damage(catalog, damaged), code="store_damaged")


def _plan(arena: Arena, first_rows: Mapping[int, int], table: NDArray[np.int64]) -> Iterator[_Read]:
    """`table` [6, n]: document_id, segment_id, row_start, rows, generation, crc32."""
    table = table[:, np.lexsort((table[2], table[1]))]
    documents, segments, starts, lengths, _generations, crcs = table
    row_bytes = arena[int(segments[0])].row_bytes
    block = starts * row_bytes // _READ_BYTES
    cuts = np.flatnonzero((np.diff(segments) != 0) | (np.diff(block) != 0)) + 1
    for run in np.split(np.arange(len(starts)), cuts):
        yield _Read(
            arena[int(segments[run[0]])],
            arena.table,
            first_rows[int(segments[run[0]])],
            documents[run].tolist(),
            starts[run].tolist(),
            lengths[run].tolist(),
            crcs[run].tolist(),
        )


def _run(reads: Sequence[_Read], on_progress: Progress | None) -> list[tuple[int, Segment]]:
    total_bytes = sum(read.size_bytes for read in reads)
    loaded_bytes = 0
    damaged: list[tuple[int, Segment]] = []
    with ThreadPoolExecutor(_THREADS, "maxsim-load") as pool:
        for read, bad in zip(reads, pool.map(_Read.run, reads), strict=True):
            damaged += bad
            loaded_bytes += read.size_bytes
            if on_progress is not None:
                on_progress(loaded_bytes, total_bytes)
    return damaged


def _damage(catalog: Catalog, damaged: Sequence[tuple[int, Segment]]) -> str:
    names = ", ".join(
        f"{catalog.name_of(document)} (document_id {document} in {segment.path.name})"
        for document, segment in damaged[:_NAMED]
    )
    more = f" and {len(damaged) - _NAMED:,} more" if len(damaged) > _NAMED else ""
    return (
        f"{len(damaged):,} documents do not match their checksums; the disk changed them: {names}{more}. "
        "Restore the files from a backup; or, to go on without these documents, delete their rows from "
        "catalog.sqlite (DELETE FROM documents WHERE document_id = …) and store them anew"
    )

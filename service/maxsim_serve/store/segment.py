"""A segment: one append-only file of packed token rows, and where the same rows are resident."""

import contextlib
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import ServiceError
from .residence import Residence
from .tier import Table

__all__ = ["Segment", "sync_directory"]


class Segment:
    """Rows [0, rows) are committed: on disk, in `residence`, and never written again.

    Rows past `rows` are a write under way, or what is left of one that failed; `live_rows` of the
    committed ones belong to a document.
    """

    def __init__(self, path: Path, capacity: int, table: Table, *, rows: int | None = None) -> None:
        """Create the file, or with `rows` open one that has that many committed rows."""
        self.id = int(path.stem)
        self.path = path
        self.capacity = capacity
        self.rows = rows or 0
        self.live_rows = 0
        self.row_bytes = table.row_bytes
        self.residence = Residence(table)
        self._torn = rows is not None
        self._fd = os.open(path, os.O_RDWR if rows is not None else os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)

    @property
    def room(self) -> int:
        """Rows that can still be appended."""
        return self.capacity - self.rows

    @property
    def dead_rows(self) -> int:
        return self.rows - self.live_rows

    def recover(self) -> None:
        """Cut off what a crash left after the committed rows. Raises ServiceError where some are lost."""
        size_bytes = os.fstat(self._fd).st_size
        if size_bytes < self.rows * self.row_bytes:
            raise ServiceError(
                f"{self.path} holds {size_bytes:,} bytes, but the catalog has committed "
                f"{self.rows * self.row_bytes:,}: restore the file from a backup",
                code="store_damaged",
            )
        self.discard()

    def write(self, packed: NDArray[np.uint8]) -> None:
        """Put rows after the committed ones, durably; not committed yet."""
        self.discard()
        begin = self.rows * self.row_bytes
        self._torn = True
        view, done = packed.data, 0
        while done < len(view):
            done += os.pwrite(self._fd, view[done:], begin + done)
        os.fdatasync(self._fd)

    def commit(self, rows: int) -> None:
        """The catalog has taken in the rows that were written."""
        self.rows += rows
        self.live_rows += rows
        self._torn = False

    def discard(self) -> None:
        """Cut off rows that were written and not committed: they take up room on a disk that may be full."""
        if self._torn:
            os.ftruncate(self._fd, self.rows * self.row_bytes)
            self._torn = False

    def read(self, first_row: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` with the bytes of committed rows, from disk."""
        begin, done = first_row * self.row_bytes, 0
        while done < len(out):
            count = os.preadv(self._fd, [out.data[done:]], begin + done)
            if not count:
                raise ServiceError(
                    f"{self.path} ended at byte {begin + done:,} of {begin + len(out):,}",
                    code="store_damaged",
                )
            done += count

    def close(self) -> None:
        os.close(self._fd)

    def remove(self) -> None:
        """Unlink the file. Readers that hold `residence` keep its rows."""
        self.close()
        with contextlib.suppress(OSError):  # a file that stays is one that the next opening removes
            self.path.unlink()


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: a synced file whose name is lost is lost."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

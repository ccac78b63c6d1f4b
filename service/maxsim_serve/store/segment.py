"""A segment: one append-only file of packed token rows, and the same rows resident, with the same numbers."""

import contextlib
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ServiceError

__all__ = ["Segment", "sync_directory"]


class Segment:
    """Rows [0, rows) are committed: on disk, in `tokens`, and never written again.

    `tokens` [capacity, dim] is allocated whole; the system commits its memory as rows are written.
    Rows past `rows` are a write under way, or what is left of one that failed; `live_rows` of the
    committed ones belong to a document.
    """

    def __init__(
        self, path: Path, capacity: int, dim: int, dtype: torch.dtype, *, rows: int | None = None
    ) -> None:
        """Create the file, or with `rows` open one that has that many committed rows and cut off the rest."""
        self.id = int(path.stem)
        self.path = path
        self.capacity = capacity
        self.rows = rows or 0
        self.live_rows = 0
        self.row_bytes = dim * dtype.itemsize
        self._torn = rows is not None
        self.tokens = torch.empty(capacity, dim, dtype=dtype)
        self._memory: NDArray[np.uint8] = self.tokens.view(torch.uint8).numpy().reshape(-1)
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
        """Put rows after the committed ones, on disk (durably) and in memory; not committed yet."""
        self.discard()
        begin = self.rows * self.row_bytes
        self._torn = True
        view, done = packed.data, 0
        while done < len(view):
            done += os.pwrite(self._fd, view[done:], begin + done)
        os.fdatasync(self._fd)
        self._memory[begin : begin + len(packed)] = packed

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

    def read(self, first_row: int, rows: int) -> NDArray[np.uint8]:
        """Load rows from disk straight into `tokens`; returns their bytes, in place."""
        begin, end = first_row * self.row_bytes, (first_row + rows) * self.row_bytes
        view = self._memory.data
        at = begin
        while at < end:
            count = os.preadv(self._fd, [view[at:end]], at)
            if not count:
                raise ServiceError(f"{self.path} ended at byte {at:,} of {end:,}", code="store_damaged")
            at += count
        return self._memory[begin:end]

    def bytes_of(self, first_row: int, rows: int) -> NDArray[np.uint8]:
        """Bytes of resident rows, in place."""
        return self._memory[first_row * self.row_bytes : (first_row + rows) * self.row_bytes]

    def close(self) -> None:
        os.close(self._fd)

    def remove(self) -> None:
        """Unlink the file. Readers that hold `tokens` keep them."""
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

"""Room: the budget for resident rows, and what a full disk looks like to a caller."""

import errno
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import OutOfSpace

__all__ = ["Budget", "full_disk_raises"]


class Budget:
    """Bytes that the token rows in one tier may take, dead rows included. Thread-safe."""

    def __init__(self, limit_bytes: int, setting: str) -> None:
        """`setting`: the one that sets the limit, for the error."""
        self.limit_bytes = limit_bytes
        self.setting = setting
        self._used_bytes = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def take(self, size_bytes: int) -> None:
        """Reserve, before anything is written. Raises OutOfSpace where it does not fit."""
        with self._lock:
            if self._used_bytes + size_bytes > self.limit_bytes:
                raise OutOfSpace(
                    f"{size_bytes:,} bytes of token rows do not fit: {self._used_bytes:,} of the "
                    f"{self.limit_bytes:,} bytes of {self.setting} are in use; "
                    f"delete documents and compact, or raise {self.setting}",
                    param=self.setting,
                )
            self._used_bytes += size_bytes

    def fits(self, size_bytes: int) -> bool:
        return self._used_bytes + size_bytes <= self.limit_bytes

    def overdraw(self, size_bytes: int) -> None:
        """Reserve past the limit: for compaction, since a store full of dead rows must be able to shrink."""
        with self._lock:
            self._used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        with self._lock:
            self._used_bytes -= size_bytes


@contextmanager
def full_disk_raises(directory: Path) -> Iterator[None]:
    """Turn a full disk or an exhausted quota, from the file system or from SQLite, into OutOfSpace."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _no_room(directory) from error
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE):
            raise
        raise _no_room(directory) from error


def _no_room(directory: Path) -> OutOfSpace:
    return OutOfSpace(
        f"the disk that holds {directory} is full: nothing of this write was kept; "
        "free some space or set data_dir to a larger disk",
        param="data_dir",
    )

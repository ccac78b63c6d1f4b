"""One writer per data directory: an advisory lock that the kernel lets go of when its process dies."""

import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Self

from ..errors import DirectoryInUse

__all__ = ["DirectoryLock"]


class DirectoryLock:
    """Holds `<directory>/LOCK`, whose text says who holds it. Raises DirectoryInUse naming the holder."""

    def __init__(self, directory: Path) -> None:
        path = directory / "LOCK"
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(self._fd)
            os.close(self._fd)
            raise DirectoryInUse(
                f"the data directory {directory} is in use by {holder}; "
                "stop that process or set another data_dir",
                param="data_dir",
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Let go. The file stays: removing it would let two processes lock two files of one name."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _holder(fd: int) -> str:
    # Between taking the lock and writing its id the holder needs a moment.
    for _ in range(20):
        pid, _space, host = os.pread(fd, 400, 0).decode(errors="replace").strip().partition(" ")
        if host:
            return f"process {pid} on {host}"
        time.sleep(0.01)
    return "a process that did not leave its id"

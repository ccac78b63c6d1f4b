"""Whose turn it is to write to a collection."""

import threading
from collections.abc import Callable

from ..errors import ServiceError

__all__ = ["WriterTurn"]


class WriterTurn:
    """A lock that one writer at a time holds, until the collection ends; from then on taking it raises."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: Callable[[], ServiceError] | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._ended is not None:
            self._lock.release()
            raise self._ended()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def end(self, error: Callable[[], ServiceError]) -> None:
        """For the holder: let nobody in any more."""
        self._ended = error

"""Extents: ranges of one memory, handed out by a list of holes, and back in it when nobody holds them."""

import threading
from bisect import bisect
from collections import deque

from ..errors import OutOfSpace
from .memory import Memory

__all__ = ["Extent", "Extents"]


class Extent:
    """Bytes [begin, end) of a memory, for as long as this object lives: readers hold it, too."""

    __slots__ = ("_returned", "begin", "end")

    def __init__(self, begin: int, end: int, returned: deque[tuple[int, int]]) -> None:
        self.begin = begin
        self.end = end
        self._returned = returned

    def __del__(self) -> None:
        # On any thread, in the middle of anything: a deque needs no lock, and the work is left to a writer.
        self._returned.append((self.begin, self.end))


class Extents:
    """The free list of one memory. Thread-safe. Lowest addresses first: the used ones stay together."""

    def __init__(self, memory: Memory, setting: str) -> None:
        """`setting`: what limits this memory, for the error."""
        self._memory = memory
        self._setting = setting
        self._lock = threading.Lock()
        self._holes = [(0, memory.size_bytes)]  # by address; neighbours are joined
        self._free_bytes = memory.size_bytes
        self._returned: deque[tuple[int, int]] = deque()

    @property
    def used_bytes(self) -> int:
        """Handed out and not returned; those that readers alone still hold are among them."""
        self.settle()
        return self._memory.size_bytes - self._free_bytes

    def take(self, least_bytes: int, most_bytes: int, align: int) -> Extent:
        """As many bytes as there are in one piece, from least to most, all multiples of `align`.

        Raises OutOfSpace where there is no such piece, or no memory for it.
        """
        with self._lock:
            self._settle()
            best, begin, size = -1, 0, 0
            for index, (hole_begin, hole_end) in enumerate(self._holes):
                first = -(-hole_begin // align) * align
                fits = (hole_end - first) // align * align
                if fits > size:
                    best, begin, size = index, first, min(fits, most_bytes)
                if size == most_bytes:
                    break
            if size < least_bytes:
                raise self._full(least_bytes)
            try:
                self._memory.occupy(begin, begin + size)
            except MemoryError as error:
                raise self._full(size) from error
            hole_begin, hole_end = self._holes[best]
            left = [(hole_begin, begin), (begin + size, hole_end)]
            self._holes[best : best + 1] = [hole for hole in left if hole[0] < hole[1]]
            self._free_bytes -= size
            return Extent(begin, begin + size, self._returned)

    def settle(self) -> None:
        """Take in what has been returned, and give its memory back to the system."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        while self._returned:
            begin, end = self._returned.popleft()
            self._free_bytes += end - begin
            index = bisect(self._holes, (begin, end))
            first, last = index, index
            hole_begin, hole_end = begin, end
            if index and self._holes[index - 1][1] == begin:
                first, hole_begin = index - 1, self._holes[index - 1][0]
            if index < len(self._holes) and self._holes[index][0] == end:
                last, hole_end = index + 1, self._holes[index][1]
            self._holes[first:last] = [(hole_begin, hole_end)]
            self._vacate(begin, end, hole_begin, hole_end)

    def _vacate(self, begin: int, end: int, hole_begin: int, hole_end: int) -> None:
        """The blocks that this return has emptied: those it touches and the hole covers."""
        block = self._memory.block_bytes
        first = -(-max(hole_begin, begin // block * block) // block) * block
        last = min(hole_end, -(-end // block) * block) // block * block
        if first < last:
            self._memory.vacate(first, last)

    def _full(self, size_bytes: int) -> OutOfSpace:
        total_bytes = self._memory.size_bytes
        return OutOfSpace(
            f"{size_bytes:,} bytes of token rows do not fit: {total_bytes - self._free_bytes:,} of "
            f"{total_bytes:,} bytes are in use, by documents or by requests that read them; "
            f"delete documents and compact, or raise {self._setting}",
            param=self._setting,
        )

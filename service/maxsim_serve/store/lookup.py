"""The compiled look-up of many ids at once, where `_lookup.c` was built; a dict does the same without it."""

import mmap
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from maxsim.crew import helpers

try:
    from . import _lookup
except ImportError:
    compiled = False
else:
    compiled = True

__all__ = ["GENERATION", "LENGTH", "SEGMENT", "START", "Lookup", "compiled", "slot_lines"]

Int64 = NDArray[np.int64]

# Of a slot's line. The columns before them are a short id, for the look-up alone.
SEGMENT, START, LENGTH, GENERATION = range(4, 8)

_INT64 = np.dtype(np.int64)
_COLUMNS = 8
_LINE_BYTES = 64
_FIRST_BUCKETS = 2048
# Arrays of this size and more are given huge pages: a thousand places in small ones are as many walks through
# the page table.
_LARGE_BYTES = 256 << 10
_HUGE_PAGE_BYTES = 2 << 20
_MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", None)


def slot_lines(slots: int) -> Int64:
    """Zeros int64 [slots, 8], each row one line of the cache."""
    return _zeros(slots * _COLUMNS).reshape(slots, _COLUMNS)


class Lookup:
    """A hash table over the ids by slot. It follows them: whoever changes them tells `enter`."""

    def __init__(self) -> None:
        self._buckets = _empty_buckets(_FIRST_BUCKETS)

    def enter(self, known: list[str], lines: Int64, first: int) -> None:
        """The slots from `first` on are new; from 0 on, all that were before are forgotten.

        Writes the ids into their lines. An id that stands in an older slot, too, is found in the new one.
        """
        buckets = len(self._buckets)
        while 2 * len(known) > buckets:
            buckets *= 2
        if first == 0 or buckets > len(self._buckets):
            self._buckets, first = _empty_buckets(buckets), 0
        _lookup.enter(self._buckets, lines, known, first)

    def find(self, asked: list[str], known: list[str], lines: Int64) -> tuple[Int64, int, int, int]:
        """→ (places int64 [2, asked], found, tokens, longest): first rows and lengths of the asked ids, 0
        where an id is not known; how many have a length; sum and maximum of the lengths."""
        places = np.empty((2, len(asked)), _INT64)
        found, tokens, longest = _lookup.find(self._buckets, lines, known, asked, places)
        return places, found, tokens, longest

    def find_all(
        self, asked: list[list[str]], known: list[str], lines: Int64
    ) -> tuple[Int64, list[list[int]]]:
        """As `find` for each of the lists → (places int64 [2, all asked], list after list; found, tokens and
        longest of each).

        Of many ids the interpreter's lock is let go of, and helpers take part: nobody may change any of these
        meanwhile.
        """
        places = np.empty((2, sum(map(len, asked))), _INT64)
        counted = np.empty((len(asked), 3), _INT64)
        _lookup.find_all(self._buckets, lines, known, asked, places, counted, helpers())
        return places, counted.tolist()


def _empty_buckets(count: int) -> Int64:
    buckets = _zeros(count)
    buckets.fill(-1)
    return buckets


def _zeros(count: int) -> Int64:
    """int64 [count], from the beginning of a line of the cache on."""
    size_bytes = count * 8
    if size_bytes < _LARGE_BYTES or _MADV_HUGEPAGE is None:
        room, page_bytes = np.zeros(size_bytes + _LINE_BYTES, np.uint8), _LINE_BYTES
    else:
        # The last huge page is whole, and addresses before the first cost nothing.
        whole_bytes = -(-size_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = mmap.mmap(-1, whole_bytes + _HUGE_PAGE_BYTES, flags=flags)
        with suppress(OSError):  # a kernel without huge pages
            pages.madvise(_MADV_HUGEPAGE)
        room, page_bytes = np.frombuffer(pages, np.uint8), _HUGE_PAGE_BYTES
    first = -room.ctypes.data % page_bytes
    return room[first : first + size_bytes].view(np.int64)

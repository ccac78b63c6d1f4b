"""The compiled look-up of many ids at once, where `_lookup.c` was built; a dict does the same without it."""

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

try:
    from . import _lookup
except ImportError:
    compiled = False
else:
    compiled = True

__all__ = ["GENERATION", "LENGTH", "SEGMENT", "START", "Lookup", "Places", "cached_rows", "compiled"]

Int64 = NDArray[np.int64]
SEGMENT, START, LENGTH, GENERATION = range(4)
_FIRST_BUCKETS = 2048
_NAME_BYTES = 32
_LINE_BYTES = 64


_Number = TypeVar("_Number", bound=np.generic)


def cached_rows(rows: int, columns: int, dtype: type[_Number]) -> NDArray[_Number]:
    """Zeros [rows, columns] of 32 bytes a row, each in one line of the cache and not in two."""
    row_bytes = columns * np.dtype(dtype).itemsize
    room = np.zeros(rows * row_bytes + _LINE_BYTES, np.uint8)
    first = -room.ctypes.data % _LINE_BYTES
    return room[first : first + rows * row_bytes].view(dtype).reshape(rows, columns)


class Places(NamedTuple):
    """Where documents are: `starts` and `lengths` int64 [n], first row and number of rows of each.

    `found` of them have a length; the others are not stored. `tokens` is the sum of the lengths, `longest`
    the largest, None where nobody has looked.
    """

    starts: Int64
    lengths: Int64
    found: int
    tokens: int
    longest: int | None = None


class Lookup:
    """A hash table over the ids by slot. It follows them: whoever changes them tells `enter`."""

    def __init__(self) -> None:
        self._buckets: Int64 = np.full(_FIRST_BUCKETS, -1, np.int64)
        self._names = cached_rows(_FIRST_BUCKETS // 2, _NAME_BYTES, np.uint8)

    def enter(self, known: list[str], first: int) -> None:
        """The slots from `first` on are new; from 0 on, all that were before are forgotten.

        An id that stands in an older slot, too, is found in the new one.
        """
        if first == 0 or 2 * len(known) > len(self._buckets):
            buckets = len(self._buckets)
            while 2 * len(known) > buckets:
                buckets *= 2
            self._buckets, first = np.full(buckets, -1, np.int64), 0
            self._names = cached_rows(buckets // 2, _NAME_BYTES, np.uint8)
        _lookup.enter(self._buckets, self._names, known, first)

    def places(self, asked: list[str], known: list[str], table: Int64) -> Places:
        """Where the asked ids are, by table [slots, 4]; an id that is not known has length 0."""
        columns = np.empty((2, len(asked)), np.int64)
        found, tokens, longest = _lookup.find(self._buckets, self._names, known, table, asked, columns)
        return Places(columns[0], columns[1], found, tokens, longest)

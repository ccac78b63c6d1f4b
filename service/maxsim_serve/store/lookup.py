"""The compiled look-up of many ids at once, where `_lookup.c` was built; a dict does the same without it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

try:
    from . import _lookup
except ImportError:
    compiled = False
else:
    compiled = True

__all__ = ["GENERATION", "LENGTH", "SEGMENT", "START", "Lookup", "Places", "compiled"]

Int64 = NDArray[np.int64]
SEGMENT, START, LENGTH, GENERATION = range(4)
_FIRST_BUCKETS = 2048


class Places(NamedTuple):
    """Where documents are: `columns` [4, n] int64 are segment, first row, length and generation of each.

    `found` of them have a length; the others are not stored. `tokens` is the sum of the lengths, `segment`
    the one that all found are in, or -1.
    """

    columns: Int64
    found: int
    tokens: int
    segment: int

    @classmethod
    def of(cls, columns: Int64) -> "Places":
        lengths = columns[LENGTH]
        segments = columns[SEGMENT][lengths > 0]
        one = len(segments) > 0 and (segments == segments[0]).all()
        return cls(columns, len(segments), int(lengths.sum()), int(segments[0]) if one else -1)


class Lookup:
    """A hash table over the ids by slot. It follows them: whoever changes them tells `enter`."""

    def __init__(self) -> None:
        self._buckets: Int64 = np.full(_FIRST_BUCKETS, -1, np.int64)

    def enter(self, known: list[str], first: int) -> None:
        """The slots from `first` on are new; from 0 on, all that were before are forgotten.

        An id that stands in an older slot, too, is found in the new one.
        """
        if first == 0 or 2 * len(known) > len(self._buckets):
            buckets = len(self._buckets)
            while 2 * len(known) > buckets:
                buckets *= 2
            self._buckets, first = np.full(buckets, -1, np.int64), 0
        _lookup.enter(self._buckets, known, first)

    def places(self, asked: list[str], known: list[str], table: Int64) -> Places:
        """The asked ids' rows of table [slots, 4]."""
        columns = np.empty((4, len(asked)), np.int64)
        return Places(columns, *_lookup.find(self._buckets, known, table, asked, columns))

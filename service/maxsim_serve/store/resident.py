"""Where every live document's rows are: the id map, and snapshots of it for readers.

A document has a slot; slots are in the order of insertion, and an update keeps its slot. A slot is a line of
one int64 table. Readers copy the slots they want under a short lock; the token rows those point to are never
written again, so what a reader got stays true for as long as it holds it.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .lookup import GENERATION, LENGTH, SEGMENT, START, Lookup, compiled, slot_lines
from .memory import Bytes
from .tier import Table

__all__ = ["Located", "Part", "ResidentIndex", "Snapshot", "Spot"]

Int64 = NDArray[np.int64]
_FIRST_CAPACITY = 1024
# Arrays that most look-ups share; nobody writes to them.
_NUMBERS = np.arange(1 << 14)
_NOTHING = np.empty(0, np.int64)
_NUMBERS.flags.writeable = False


class Part(NamedTuple):
    """Documents in one table of rows: `tokens` [rows, dim] in the stored dtype, and per document int64 [n]
    its first row, its number of rows, and its position in the request or snapshot; positions ascend.

    Only the rows that it names may be read, and only while `lease` is held: a kernel in flight counts.
    `host_tokens` are the same rows as a tensor of host memory, None where they are on the device alone.
    No document has more than `longest` rows, None where nobody has looked.
    """

    tokens: torch.Tensor
    starts: Int64
    lengths: Int64
    positions: Int64
    host_tokens: torch.Tensor | None = None
    lease: object = None
    longest: int | None = None

    def most_rows(self) -> int:
        """`longest`, looked up where nobody has."""
        return int(self.lengths.max(initial=0)) if self.longest is None else self.longest


class Located(NamedTuple):
    """Where the asked documents are, `tokens` rows in all; `missing` int64 are positions of unknown ids."""

    parts: list[Part]
    missing: Int64
    tokens: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every live document, `tokens` rows in all. `ids` by position, which is the order of insertion."""

    ids: Sequence[str]
    parts: list[Part]
    tokens: int


@dataclass(frozen=True, slots=True)
class Spot:
    """One document's rows: `bytes` uint8 in the stored dtype, held by `lease`; and its generation."""

    bytes: Bytes
    generation: int
    lease: object


class ResidentIndex:
    """Thread-safe for readers; writers take turns by a lock of their own, outside."""

    def __init__(self, table: Table) -> None:
        self._rows = table
        self._lock = threading.Lock()
        self._slot_of: dict[str, int] = {}
        self._ids: list[str] = []  # by slot; a dead slot keeps its id and has length 0
        self._lookup = Lookup() if compiled else None
        self._lines = slot_lines(_FIRST_CAPACITY)
        self._lease: object = None  # of the rows of all slots; replaced, never changed
        self._snapshot: Snapshot | None = None
        self._version = 0

    def __len__(self) -> int:
        return len(self._slot_of)

    # Reading.

    def locate(self, ids: Sequence[str]) -> Located:
        with self._lock:
            places, found, tokens, longest = self._find(ids)
            rows, lease = self._rows, self._lease
        # To unpack an array takes ten times as long.
        return _located(rows, lease, places[0], places[1], found, tokens, longest)

    def locate_all(self, lists: Sequence[Sequence[str]]) -> list[Located]:
        """As `locate` for each of the lists, all as of one moment and sooner done than one by one."""
        with self._lock:
            places, counted = self._find_all(lists)
            rows, lease = self._rows, self._lease
        starts, lengths = places[0], places[1]
        ends = list(accumulate(map(len, lists)))
        return [
            _located(rows, lease, starts[first:end], lengths[first:end], *counts)
            for first, end, counts in zip([0, *ends], ends, counted, strict=False)
        ]

    def spot(self, id: str) -> Spot | None:
        with self._lock:
            slot = self._slot_of.get(id)
            if slot is None:
                return None
            _segment, start, length, generation = self._lines[slot, SEGMENT:].tolist()
            rows, lease = self._rows, self._lease
        return Spot(rows.read(start, length), generation, lease)

    def snapshot(self) -> Snapshot:
        with self._lock:
            if self._snapshot is not None:
                return self._snapshot
            ids, version = self._ids.copy(), self._version
            starts, lengths = self._used()[:, START].copy(), self._used()[:, LENGTH].copy()
            rows, lease = self._rows, self._lease
        live = np.flatnonzero(lengths)
        if len(live) < len(ids):
            ids, starts, lengths = [ids[slot] for slot in live.tolist()], starts[live], lengths[live]
        part = Part(rows.tokens, starts, lengths, np.arange(len(ids)), rows.host_tokens, lease)
        parts = [part] if ids else []
        snapshot = Snapshot(ids, parts, int(lengths.sum()))
        with self._lock:
            if version == self._version:
                self._snapshot = snapshot
        return snapshot

    def present(self, ids: Sequence[str]) -> list[bool]:
        with self._lock:
            return [id in self._slot_of for id in ids]

    def in_segment(self, segment: int) -> tuple[list[str], Int64, Int64]:
        """Ids, first rows and lengths of the live documents of a segment, in row order. For the writer."""
        lines = self._used()
        slots = np.flatnonzero((lines[:, SEGMENT] == segment) & (lines[:, LENGTH] > 0))
        slots = slots[np.argsort(lines[slots, START])]
        return [self._ids[slot] for slot in slots.tolist()], lines[slots, START], lines[slots, LENGTH]

    # Writing. Each call is seen by readers wholly or not at all, and returns the segments and lengths
    # of the documents whose rows it left dead.

    def upsert(
        self,
        ids: Sequence[str],
        segments: Int64,
        starts: Int64,
        lengths: Int64,
        generations: Int64,
        lease: object,
    ) -> tuple[Int64, Int64]:
        """New documents get slots in the order given. An id may occur once."""
        with self._lock:
            used = len(self._ids)
            fresh = [id for id in ids if id not in self._slot_of]
            self._grow(used + len(fresh))
            self._slot_of.update(zip(fresh, range(used, used + len(fresh)), strict=True))
            self._ids.extend(fresh)
            self._enter(used)
            slots = np.fromiter(map(self._slot_of.__getitem__, ids), np.int64, len(ids))
            old = self._lines[slots[slots < used]]
            self._lines[slots, SEGMENT:] = np.stack((segments, starts, lengths, generations), axis=1)
            self._publish(lease)
        return old[:, SEGMENT], old[:, LENGTH]

    def remove(self, ids: Sequence[str]) -> tuple[Int64, Int64]:
        """Every id must be there."""
        with self._lock:
            slots = np.fromiter(map(self._slot_of.pop, ids), np.int64, len(ids))
            old = self._lines[slots]
            self._lines[slots, LENGTH] = 0
            if len(self._ids) > 2 * len(self._slot_of) + _FIRST_CAPACITY:
                self._squeeze()
            self._publish(self._lease)
        return old[:, SEGMENT], old[:, LENGTH]

    def move(self, ids: Sequence[str], segments: Int64, starts: Int64, lease: object) -> tuple[Int64, Int64]:
        """The same rows stand somewhere else now. Every id must be there."""
        with self._lock:
            slots = np.fromiter(map(self._slot_of.__getitem__, ids), np.int64, len(ids))
            old = self._lines[slots]
            self._lines[slots, SEGMENT], self._lines[slots, START] = segments, starts
            self._publish(lease)
        return old[:, SEGMENT], old[:, LENGTH]

    def relocate(self, table: Table, there: Callable[[Int64], Int64], lease: object) -> None:
        """All rows stand in another table now; `there` turns rows [n] of this one into those of the other."""
        with self._lock:
            live = np.flatnonzero(self._used()[:, LENGTH])
            self._lines[live, START] = there(self._lines[live, START])
            self._rows = table
            self._publish(lease)

    def set_lease(self, lease: object) -> None:
        with self._lock:
            self._publish(lease)

    def clear(self) -> None:
        with self._lock:
            self._slot_of, self._ids = {}, []
            self._enter(0)
            self._publish(None)

    # All below: with the lock held, or by the one writer.

    def _used(self) -> Int64:
        return self._lines[: len(self._ids)]

    def _find(self, ids: Sequence[str]) -> tuple[Int64, int, int, int]:
        """As Lookup.find."""
        if self._lookup is not None:
            return self._lookup.find(ids if isinstance(ids, list) else list(ids), self._ids, self._lines)
        slots = np.fromiter(map(self._slot_of.get, ids, repeat(-1)), np.int64, len(ids))
        places = self._lines[:, START:GENERATION].take(slots, axis=0, mode="wrap").T.copy()
        places[:, slots < 0] = 0
        lengths = places[1]
        return places, int(np.count_nonzero(lengths)), int(lengths.sum()), int(lengths.max(initial=0))

    def _find_all(self, lists: Sequence[Sequence[str]]) -> tuple[Int64, Sequence[Sequence[int]]]:
        """As Lookup.find_all."""
        if self._lookup is not None:
            asked = [ids if isinstance(ids, list) else list(ids) for ids in lists]
            return self._lookup.find_all(asked, self._ids, self._lines)
        found = [self._find(ids) for ids in lists]
        places = np.hstack([np.empty((2, 0), np.int64), *(places for places, *_ in found)])
        return places, [counts for _, *counts in found]

    def _enter(self, first: int) -> None:
        if self._lookup is not None:
            self._lookup.enter(self._ids, self._lines, first)

    def _publish(self, lease: object) -> None:
        self._lease = lease
        self._version += 1
        self._snapshot = None

    def _grow(self, slots: int) -> None:
        capacity = len(self._lines)
        if slots > capacity:
            lines = slot_lines(max(slots, 2 * capacity))
            lines[:capacity] = self._lines
            self._lines = lines

    def _squeeze(self) -> None:
        live = np.flatnonzero(self._used()[:, LENGTH])
        self._lines = self._lines.take(live, axis=0, out=slot_lines(len(live)))
        self._ids = [self._ids[slot] for slot in live.tolist()]
        self._slot_of = {id: slot for slot, id in enumerate(self._ids)}
        self._enter(0)


def _located(
    rows: Table, lease: object, starts: Int64, lengths: Int64, found: int, tokens: int, longest: int
) -> Located:
    """What was found of as many ids as there are starts and lengths."""
    if found == len(starts) <= len(_NUMBERS):
        positions, missing = _NUMBERS[:found], _NOTHING
    else:
        positions, missing = np.flatnonzero(lengths), np.flatnonzero(lengths == 0)
        starts, lengths = starts[positions], lengths[positions]
    if not found:
        return Located([], missing, tokens)
    part = Part(rows.tokens, starts, lengths, positions, rows.host_tokens, lease, longest)
    return Located([part], missing, tokens)

"""Where every live document's rows are: the id map, and snapshots of it for readers.

A document has a slot; slots are in the order of insertion, and an update keeps its slot. A slot is a row of
one int64 table. Readers copy the slots they want under a short lock; the token rows those point to are never
written again, so what a reader got stays true for as long as it holds it.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .lookup import GENERATION, LENGTH, SEGMENT, START, Lookup, Places, cached_rows, compiled
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
        self._table: Int64 = cached_rows(_FIRST_CAPACITY, 4, np.int64)
        self._lease: object = None  # of the rows of all slots; replaced, never changed
        self._snapshot: Snapshot | None = None
        self._version = 0

    def __len__(self) -> int:
        return len(self._slot_of)

    # Reading.

    def locate(self, ids: Sequence[str]) -> Located:
        with self._lock:
            places, rows, lease = self._places(ids), self._rows, self._lease
        starts, lengths, found, tokens, longest = places
        if found == len(ids) <= len(_NUMBERS):
            positions, missing = _NUMBERS[:found], _NOTHING
        else:
            positions, missing = np.flatnonzero(lengths), np.flatnonzero(lengths == 0)
            starts, lengths = starts[positions], lengths[positions]
        if not found:
            return Located([], missing, tokens)
        return Located([_part(rows, starts, lengths, positions, lease, longest)], missing, tokens)

    def spot(self, id: str) -> Spot | None:
        with self._lock:
            slot = self._slot_of.get(id)
            if slot is None:
                return None
            _segment, start, length, generation = self._table[slot].tolist()
            rows, lease = self._rows, self._lease
        return Spot(rows.read(start, length), generation, lease)

    def snapshot(self) -> Snapshot:
        with self._lock:
            if self._snapshot is not None:
                return self._snapshot
            ids, table, version = self._ids.copy(), self._used().copy(), self._version
            rows, lease = self._rows, self._lease
        live = np.flatnonzero(table[:, LENGTH])
        if len(live) < len(ids):
            ids, table = [ids[slot] for slot in live.tolist()], table.take(live, axis=0)
        starts, lengths = table[:, START].copy(), table[:, LENGTH].copy()
        parts = [_part(rows, starts, lengths, np.arange(len(ids)), lease)] if ids else []
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
        table = self._used()
        slots = np.flatnonzero((table[:, SEGMENT] == segment) & (table[:, LENGTH] > 0))
        slots = slots[np.argsort(table[slots, START])]
        return [self._ids[slot] for slot in slots.tolist()], table[slots, START], table[slots, LENGTH]

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
            self._slot_of.update(zip(fresh, range(used, used + len(fresh)), strict=True))
            self._ids.extend(fresh)
            self._enter(used)
            self._grow(len(self._ids))
            slots = np.fromiter(map(self._slot_of.__getitem__, ids), np.int64, len(ids))
            old = self._table[slots[slots < used]]
            self._table[slots] = np.stack((segments, starts, lengths, generations), axis=1)
            self._publish(lease)
        return old[:, SEGMENT], old[:, LENGTH]

    def remove(self, ids: Sequence[str]) -> tuple[Int64, Int64]:
        """Every id must be there."""
        with self._lock:
            slots = np.fromiter(map(self._slot_of.pop, ids), np.int64, len(ids))
            old = self._table[slots]
            self._table[slots, LENGTH] = 0
            if len(self._ids) > 2 * len(self._slot_of) + _FIRST_CAPACITY:
                self._squeeze()
            self._publish(self._lease)
        return old[:, SEGMENT], old[:, LENGTH]

    def move(self, ids: Sequence[str], segments: Int64, starts: Int64, lease: object) -> tuple[Int64, Int64]:
        """The same rows stand somewhere else now. Every id must be there."""
        with self._lock:
            slots = np.fromiter(map(self._slot_of.__getitem__, ids), np.int64, len(ids))
            old = self._table[slots]
            self._table[slots, SEGMENT], self._table[slots, START] = segments, starts
            self._publish(lease)
        return old[:, SEGMENT], old[:, LENGTH]

    def relocate(self, table: Table, there: Callable[[Int64], Int64], lease: object) -> None:
        """All rows stand in another table now; `there` turns rows [n] of this one into those of the other."""
        with self._lock:
            live = np.flatnonzero(self._used()[:, LENGTH])
            self._table[live, START] = there(self._table[live, START])
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
        return self._table[: len(self._ids)]

    def _places(self, ids: Sequence[str]) -> Places:
        if self._lookup is not None:
            return self._lookup.places(ids if isinstance(ids, list) else list(ids), self._ids, self._table)
        slots = np.fromiter(map(self._slot_of.get, ids, repeat(-1)), np.int64, len(ids))
        starts, lengths = self._table[:, START:GENERATION].take(slots, axis=0, mode="wrap").T.copy()
        starts[slots < 0] = lengths[slots < 0] = 0
        return Places(starts, lengths, int(np.count_nonzero(lengths)), int(lengths.sum()))

    def _enter(self, first: int) -> None:
        if self._lookup is not None:
            self._lookup.enter(self._ids, first)

    def _publish(self, lease: object) -> None:
        self._lease = lease
        self._version += 1
        self._snapshot = None

    def _grow(self, slots: int) -> None:
        capacity = len(self._table)
        if slots > capacity:
            table = cached_rows(max(slots, 2 * capacity), 4, np.int64)
            table[:capacity] = self._table
            self._table = table

    def _squeeze(self) -> None:
        live = np.flatnonzero(self._used()[:, LENGTH])
        table = cached_rows(len(live), 4, np.int64)
        self._table = self._table.take(live, axis=0, out=table)
        self._ids = [self._ids[slot] for slot in live.tolist()]
        self._slot_of = {id: slot for slot, id in enumerate(self._ids)}
        self._enter(0)


def _part(
    rows: Table,
    starts: Int64,
    lengths: Int64,
    positions: Int64,
    lease: object,
    longest: int | None = None,
) -> Part:
    return Part(rows.tokens, starts, lengths, positions, rows.host_tokens, lease, longest)

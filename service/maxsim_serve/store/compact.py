"""Compaction: copy what is alive out of a segment, a little at a time, then drop the segment.

Each step is a write like any other: rows appended and synced, then one transaction that says where they are
now. A crash between steps leaves some documents moved and some not, all of them whole. A document that was
replaced or deleted between steps is simply not among the live ones of the next.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import Draining, NotFound, ServiceError
from ..metrics import Metrics
from .arena import Arena
from .catalog import Catalog
from .resident import ResidentIndex
from .segment import Segment
from .spec import CollectionSpec, CompactReport
from .tier import Table
from .turn import WriterTurn

__all__ = ["Compaction", "Compactor"]

Int64 = NDArray[np.int64]

_log = logging.getLogger(__name__)
_STEP_BYTES = 8 << 20  # what a writer may have to wait for: some 20 ms
_PAUSE_S = 0.001  # between steps, for a waiting writer to take its turn


class Compaction:
    """Compacts one collection. One run at a time; each step takes a writer's turn."""

    def __init__(
        self,
        key: int,
        spec: CollectionSpec,
        *,
        catalog: Catalog,
        arena: Arena,
        index: ResidentIndex,
        turn: WriterTurn,
        dead_share: float,
        changed: Callable[[], None],
        metrics: Metrics,
    ) -> None:
        self._key = key
        self._spec = spec
        self._catalog = catalog
        self._arena = arena
        self._index = index
        self._turn = turn
        self._dead_share = dead_share
        self._changed = changed
        self._metrics = metrics
        self._running = threading.Lock()

    def due(self) -> bool:
        return self._arena.compaction_due(self._dead_share)

    def run_due(self) -> CompactReport:
        """Where the share of dead rows has passed the limit: rewrite segments until it is half of that."""
        with self._running:
            with self._turn:
                due = self.due()
                segments = self._arena.compactable(self._dead_share / 2) if due else []
            return self._rewrite(segments)

    def run_all(self) -> CompactReport:
        """Rewrite every segment that has a dead row, the newest too."""
        with self._running:
            with self._turn:
                segments = self._arena.compactable(0.0)
            return self._rewrite(segments)

    def _rewrite(self, segments: list[Segment]) -> CompactReport:
        begin = time.perf_counter()
        documents = moved_rows = freed_rows = 0
        for segment in segments:
            while moved := self._move_some(segment):
                documents += moved[0]
                moved_rows += moved[1]
                time.sleep(_PAUSE_S)
            self._drop(segment)
            freed_rows += segment.rows
        return CompactReport(
            segments=len(segments),
            moved_documents=documents,
            moved_bytes=moved_rows * self._spec.row_bytes,
            freed_bytes=(freed_rows - moved_rows) * self._spec.row_bytes,
            duration_s=time.perf_counter() - begin,
        )

    def _move_some(self, segment: Segment) -> tuple[int, int] | None:
        """Move the first of the live documents. Returns how many, and their rows; None where none is left."""
        with self._turn:
            self._catalog.require_certain()
            ids, starts, lengths = self._index.in_segment(segment.id)
            if not ids:
                return None
            count = max(
                1, int(np.searchsorted(np.cumsum(lengths) * self._spec.row_bytes, _STEP_BYTES, "right"))
            )
            ids, starts, lengths = ids[:count], starts[:count], lengths[:count]
            packed = _copy_of(self._arena.table, starts, lengths)
            self._arena.tier.budget.overdraw(len(packed))
            try:
                with (
                    self._arena.append(packed, lengths) as placed,
                    self._catalog.transaction() as transaction,
                ):
                    transaction.set_segment_rows(self._key, placed.segment_rows)
                    transaction.move_documents(
                        self._key,
                        zip(
                            placed.segments.tolist(),
                            placed.file_starts.tolist(),
                            (id.encode() for id in ids),
                            strict=True,
                        ),
                    )
            except BaseException:
                self._arena.tier.budget.give_back(len(packed))
                raise
            dead = self._index.move(ids, placed.segments, placed.starts, self._arena.lease())
            self._arena.kill(*dead)
            self._changed()
            return count, int(lengths.sum())

    def _drop(self, segment: Segment) -> None:
        with self._turn:
            with self._catalog.transaction() as transaction:
                transaction.drop_segment(segment.id)
            self._arena.forget(segment)
            self._index.set_lease(self._arena.lease())
            self._arena.tier.budget.give_back(segment.rows * self._spec.row_bytes)
            self._metrics.store_compactions.inc()
            self._changed()


def _copy_of(table: Table, starts: Int64, lengths: Int64) -> NDArray[np.uint8]:
    """The bytes of these documents, one after the other. Neighbours are read together."""
    # Memory from torch: for blocks of 4 MB numpy asks for huge pages, which can take long to come.
    packed: NDArray[np.uint8] = torch.empty(int(lengths.sum()) * table.row_bytes, dtype=torch.uint8).numpy()
    ends = starts + lengths
    cuts = np.flatnonzero(starts[1:] != ends[:-1])
    firsts, lasts = starts[[0, *(cuts + 1)]], ends[[*cuts, -1]]
    at = 0
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        piece = table.read(first, last - first)
        packed[at : at + len(piece)] = piece
        at += len(piece)
    return packed


class Compactor:
    """The thread that compacts when woken, whichever collections need it."""

    def __init__(self, jobs: Callable[[], Iterable[Callable[[], CompactReport]]]) -> None:
        self._jobs = jobs
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="maxsim-compactor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wanted.set()

    def stop(self) -> None:
        """Returns when the run under way has ended."""
        self._stopping = True
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while self._wanted.wait() and not self._stopping:
            self._wanted.clear()
            for job in self._jobs():
                try:
                    job()
                except (NotFound, Draining) as ended:
                    _log.debug("compaction ended: %s", ended)
                except ServiceError as error:
                    # The next write that leaves dead rows wakes this thread again.
                    _log.warning("compaction stopped: %s", error)
                except Exception:
                    _log.exception("compaction failed")

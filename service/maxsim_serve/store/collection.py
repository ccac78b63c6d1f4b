"""One collection: every operation on its documents, in the order that makes it durable before it is seen."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from time import sleep

import numpy as np
import torch
from prometheus_client import Gauge

from ..errors import InvalidInput, NotFound, OutOfSpace, ServiceError
from ..metrics import Metrics
from . import ingest
from .arena import Arena
from .catalog import Catalog
from .compact import Compaction
from .ingest import Prepared
from .resident import Located, ResidentIndex, Snapshot
from .spec import (
    CollectionInfo,
    CollectionSpec,
    CompactReport,
    Deleted,
    Described,
    NewDocument,
    StoredDocument,
)
from .tier import Tier
from .turn import WriterTurn

__all__ = ["Collection"]

_log = logging.getLogger(__name__)
_PUBLISH_WAIT_S = 0.0005


class Collection:
    """Made by Store. Any thread may call any method; writers take turns, readers never wait for one.

    A collection that outgrows its tier is moved to `outgrown`, where that is given.
    Writes raise OutOfSpace where the disk or the memory budget is full, and then have changed nothing.
    """

    def __init__(
        self,
        key: int,
        spec: CollectionSpec,
        generation: int,
        *,
        catalog: Catalog,
        arena: Arena,
        index: ResidentIndex,
        outgrown: Tier | None,
        compact_dead_share: float,
        metrics: Metrics,
        wake_compactor: Callable[[], None],
    ) -> None:
        self.spec = spec
        self._key = key
        self._generation = generation
        self._catalog = catalog
        self._arena = arena
        self._index = index
        self._outgrown = outgrown
        self._metrics = metrics
        self._wake_compactor = wake_compactor
        self._turn = WriterTurn()
        self._compaction = Compaction(
            key,
            spec,
            catalog=catalog,
            arena=arena,
            index=index,
            turn=self._turn,
            dead_share=compact_dead_share,
            changed=self._changed,
            metrics=metrics,
        )
        self._changed()

    def info(self) -> CollectionInfo:
        """As of the last write that has ended."""
        return self._info

    # Reading.

    def locate(self, ids: Sequence[str]) -> Located:
        """Where the rows of these documents are, all as of one moment."""
        return self._index.locate(ids)

    def locate_all(self, lists: Sequence[Sequence[str]]) -> list[Located]:
        """The same for each of the lists, of one moment for all of them."""
        return self._index.locate_all(lists)

    def snapshot(self) -> Snapshot:
        """Every live document as of one moment; the same object until something changes."""
        return self._index.snapshot()

    def get(self, id: str) -> StoredDocument:
        """One document whole. Raises NotFound."""
        while spot := self._index.spot(id):
            content = self._catalog.contents(self._key, [id.encode()]).get(id.encode())
            if content is not None and content.generation == spot.generation:
                rows = torch.tensor(spot.bytes).view(self.spec.torch_dtype).view(-1, self.spec.dim)
                vectors = rows.to(torch.float32).numpy()
                return StoredDocument(id, vectors, content.text, content.payload, content.generation)
            sleep(_PUBLISH_WAIT_S)  # a writer has committed and is about to publish
        raise NotFound(f"document {id!r} is not in collection {self.spec.name!r}", param="id")

    def describe(self, ids: Sequence[str]) -> dict[str, Described]:
        """Texts and payloads of those of the ids that are stored, as of now."""
        keys = {id.encode(): id for id, present in zip(ids, self._index.present(ids), strict=True) if present}
        contents = self._catalog.contents(self._key, list(keys))
        return {keys[key]: Described(content.text, content.payload) for key, content in contents.items()}

    # Writing.

    def prepare(self, documents: Sequence[NewDocument]) -> Prepared:
        """Check, convert and pack documents for `commit`. Writes nothing, and holds up nobody."""
        return ingest.prepare(self.spec, documents)

    def commit(self, prepared: Prepared) -> list[int]:
        """Insert or replace all accepted documents, or none. Durable, and seen by readers, on return.

        Returns each document's generation. A replaced document keeps its place in the order of insertion.
        """
        if prepared.spec != self.spec:
            raise InvalidInput(f"these documents were prepared for {prepared.spec}, not for {self.spec}")
        count, size_bytes = len(prepared.accepted), len(prepared.packed)
        if not count:
            return []
        with self._mutation("upsert", count):
            try:
                generation = self._admit(prepared, size_bytes)
            except OutOfSpace as full:
                if self._outgrown is None or full.param != self._arena.tier.budget.setting:
                    raise
                self._move_to(self._outgrown)
                generation = self._admit(prepared, size_bytes)
        return [generation] * count

    def _admit(self, prepared: Prepared, size_bytes: int) -> int:
        budget = self._arena.tier.budget
        budget.take(size_bytes)
        try:
            return self._write(prepared)
        except BaseException:
            budget.give_back(size_bytes)
            raise

    def _move_to(self, tier: Tier) -> None:
        """Copy all rows to another tier, then let readers see them there. For the holder of the turn."""
        size_bytes, before = self._arena.rows * self.spec.row_bytes, self._arena.tier
        tier.budget.take(size_bytes)
        try:
            copy = self._arena.copy_to(tier.table(self.spec.dim, self.spec.torch_dtype))
        except BaseException:
            tier.budget.give_back(size_bytes)
            raise
        self._index.relocate(copy.table, copy.there, copy.lease())
        self._arena.adopt(copy)
        before.budget.give_back(size_bytes)
        self._outgrown = None
        for gauge in self._gauges():
            gauge.remove(self.spec.name, before.name)
        _log.info("collection %s outgrew tier %s: moved to %s", self.spec.name, before.name, tier.name)

    def _write(self, prepared: Prepared) -> int:
        generation = self._generation + 1
        with (
            self._arena.append(prepared.packed, prepared.lengths) as placed,
            self._catalog.transaction() as transaction,
        ):
            transaction.set_segment_rows(self._key, placed.segment_rows)
            transaction.set_generation(self._key, generation)
            transaction.upsert_documents(
                self._key,
                zip(
                    prepared.keys,
                    repeat(generation),
                    placed.segments.tolist(),
                    placed.file_starts.tolist(),
                    prepared.lengths.tolist(),
                    prepared.crcs,
                    prepared.texts,
                    prepared.payloads,
                    strict=False,
                ),
            )
        dead = self._index.upsert(
            prepared.accepted,
            placed.segments,
            placed.starts,
            prepared.lengths,
            np.full(len(prepared.accepted), generation),
            self._arena.lease(),
        )
        self._arena.kill(*dead)
        self._generation = generation
        return generation

    def delete(self, ids: Sequence[str]) -> Deleted:
        """Delete all of the ids that are stored. Durable, and seen by readers, on return."""
        once = list(dict.fromkeys(ids))
        with self._mutation("delete", len(once)):
            present = self._index.present(once)
            gone = [id for id, there in zip(once, present, strict=True) if there]
            missing = [id for id, there in zip(once, present, strict=True) if not there]
            if gone:
                generation = self._generation + 1
                with self._catalog.transaction() as transaction:
                    transaction.set_generation(self._key, generation)
                    transaction.delete_documents(self._key, [id.encode() for id in gone])
                self._arena.kill(*self._index.remove(gone))
                self._generation = generation
        return Deleted(gone, missing)

    def compact(self) -> CompactReport:
        """Free every dead row now. Readers and writers go on meanwhile."""
        return self._compaction.run_all()

    def compact_due(self) -> CompactReport:
        """Rewrite the emptiest segments, where the share of dead rows has passed the limit."""
        return self._compaction.run_due()

    def close(self, error: Callable[[], ServiceError]) -> None:
        """Let the write under way end, and no other begin: those raise `error`."""
        with self._turn:
            self._turn.end(error)
            self._arena.close()

    def drop(self) -> None:
        """Delete the collection, durably, with everything in it. Readers keep what they hold."""
        with self._turn:
            with self._catalog.transaction() as transaction:
                transaction.drop_collection(self._key)
            self._turn.end(lambda: NotFound(f"collection {self.spec.name!r} was dropped", param="collection"))
            self._arena.tier.budget.give_back(self._arena.rows * self.spec.row_bytes)
            self._index.clear()
            self._arena.remove()
            self._arena.tier.extents.settle()
            for gauge in self._gauges():
                gauge.remove(self.spec.name, self._arena.tier.name)

    @contextmanager
    def _mutation(self, op: str, documents: int) -> Iterator[None]:
        try:
            with self._turn:
                self._catalog.require_certain()
                yield
                self._changed()
                compaction_due = self._compaction.due()
        except BaseException:
            self._metrics.store_mutations.labels(op, "error").inc(documents)
            raise
        self._metrics.store_mutations.labels(op, "ok").inc(documents)
        if compaction_due:
            self._wake_compactor()

    def _changed(self) -> None:
        """For the holder of the turn, after each change."""
        self._arena.tier.extents.settle()
        rows, live_rows = self._arena.rows, self._arena.live_rows
        self._info = info = CollectionInfo(
            name=self.spec.name,
            dim=self.spec.dim,
            dtype=self.spec.dtype,
            normalize=self.spec.normalize,
            documents=len(self._index),
            tokens=live_rows,
            bytes=rows * self.spec.row_bytes,
            dead_bytes=(rows - live_rows) * self.spec.row_bytes,
            segments=len(self._arena),
            generation=self._generation,
            tier=self._arena.tier.name,
        )
        for gauge, value in zip(
            self._gauges(), (info.documents, info.tokens, info.bytes, info.dead_bytes), strict=True
        ):
            gauge.labels(self.spec.name, self._arena.tier.name).set(value)

    def _gauges(self) -> tuple[Gauge, ...]:
        m = self._metrics
        return m.store_documents, m.store_tokens, m.store_bytes, m.store_dead_bytes

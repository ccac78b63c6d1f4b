"""The store: every collection under one data directory, one lock, one catalog and one memory budget."""

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from ..errors import Conflict, Draining, NotFound
from ..metrics import Metrics
from .arena import Arena
from .catalog import Catalog
from .collection import Collection
from .compact import Compactor
from .loading import Progress, load
from .lock import DirectoryLock
from .planner import choose_tier
from .resident import ResidentIndex
from .segment import sync_directory
from .space import full_disk_raises
from .spec import CollectionSpec, CompactReport
from .tier import Tier, host_tier

__all__ = ["Store"]


class Store:
    """Open with `Store.open`, use from any thread, end with `close`.

    On disk: `LOCK`, `catalog.sqlite`, and `segments/<id>.rows`, packed token rows without a header.
    """

    def __init__(
        self,
        directory: Path,
        lock: DirectoryLock,
        catalog: Catalog,
        *,
        segment_bytes: int,
        compact_dead_share: float,
        tiers: Mapping[str, Tier],
        tier: str,
        metrics: Metrics,
    ) -> None:
        self._segments_directory = directory / "segments"
        self._lock = lock
        self._catalog = catalog
        self._segment_bytes = segment_bytes
        self._compact_dead_share = compact_dead_share
        self._tiers = tiers
        self._default_tier = tier
        self._metrics = metrics
        self._collections: dict[str, Collection] = {}
        self._changing = threading.Lock()  # held while a collection is made or dropped
        self._closed = False
        self._newest_segment = 0
        self._segment_ids = threading.Lock()
        self._compactor = Compactor(self._compactions)
        for name, one in tiers.items():
            metrics.store_capacity_bytes.labels(name).set(one.budget.limit_bytes)

    @classmethod
    def open(
        cls,
        directory: Path | str,
        *,
        segment_bytes: int,
        compact_dead_share: float,
        budget_bytes: int,
        metrics: Metrics,
        tiers: Mapping[str, Tier] | None = None,
        tier: str = "auto",
        on_progress: Progress | None = None,
    ) -> Self:
        """Lock the directory (made if need be), undo what a crash left half done, and load every document.

        `segment_bytes`: size of a segment file. `compact_dead_share`: where more than this share (0 to 1)
        of a collection's rows is dead, its emptiest segments are rewritten.
        `budget_bytes`: for resident token rows in host memory.
        `tiers`: where there is a GPU, both of `gpu_tiers`. `tier`: of collections that leave it to `auto`.

        Raises DirectoryInUse, OutOfSpace where what is stored does not fit the budget, and ServiceError
        (`store_damaged`) where the disk lost or changed something that was committed.
        """
        directory = Path(directory)
        with ExitStack() as undo:
            with full_disk_raises(directory):
                (directory / "segments").mkdir(parents=True, exist_ok=True)
                lock = undo.enter_context(DirectoryLock(directory))
                catalog = Catalog(directory / "catalog.sqlite")
                undo.callback(catalog.close)
                sync_directory(directory)
                sync_directory(directory.parent)
            store = cls(
                directory,
                lock,
                catalog,
                segment_bytes=segment_bytes,
                compact_dead_share=compact_dead_share,
                tiers={"host": host_tier(budget_bytes)} if tiers is None else tiers,
                tier=tier,
                metrics=metrics,
            )
            store._recover(undo, on_progress)
            undo.pop_all()
        store._compactor.start()
        store._compactor.wake()
        return store

    @property
    def resident_bytes(self) -> int:
        """Token rows of all collections, dead ones included."""
        return sum(tier.budget.used_bytes for tier in self._tiers.values())

    @property
    def budget_bytes(self) -> int:
        return sum(tier.budget.limit_bytes for tier in self._tiers.values())

    def create_collection(self, spec: CollectionSpec) -> Collection:
        """Make a collection, durably. One that exists is returned; where its spec is another: Conflict."""
        with self._changing:
            self._require_open()
            there = self._collections.get(spec.name)
            if there is None:
                arena = self._arena(spec, 0)
                with self._catalog.transaction() as transaction:
                    key = transaction.create_collection(spec)
                there = self._collection(key, spec, 0, arena, ResidentIndex(arena.table))
                self._collections = {**self._collections, spec.name: there}
            elif there.spec != spec:
                raise Conflict(
                    f"collection {spec.name!r} exists with {_shape(there.spec)}, not {_shape(spec)}; "
                    "drop it first, or use another name",
                    param="collection",
                )
            return there

    def collection(self, name: str) -> Collection:
        """Raises NotFound."""
        try:
            return self._collections[name]
        except KeyError:
            known = ", ".join(sorted(self._collections)) or "none"
            raise NotFound(f"no collection {name!r}; there are: {known}", param="collection") from None

    def collections(self) -> list[Collection]:
        """In the order of creation."""
        return list(self._collections.values())

    def drop_collection(self, name: str) -> None:
        """Delete a collection and all that is in it, durably. Raises NotFound."""
        with self._changing:
            self._require_open()
            self.collection(name).drop()
            self._collections = {key: value for key, value in self._collections.items() if key != name}

    def close(self) -> None:
        """Let the writes under way end, and give the directory up. A second call does nothing."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
        for collection in self._collections.values():
            collection.close(_closed)  # which also ends a compaction, at its next step
        self._compactor.stop()
        self._catalog.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _recover(self, undo: ExitStack, on_progress: Progress | None) -> None:
        committed = self._catalog.segments()
        self._newest_segment = max((segment_id for segment_id, _key, _rows in committed), default=0)
        known = {str(segment_id) for segment_id, _key, _rows in committed}
        for path in self._segments_directory.glob("*.rows"):
            if path.stem not in known:  # written, or dropped, when a crash came
                path.unlink()

        found = []
        targets: dict[int, tuple[Arena, dict[int, int], ResidentIndex]] = {}
        for key, spec, generation in self._catalog.collections():
            segments = {segment_id: rows for segment_id, owner, rows in committed if owner == key}
            size_bytes = sum(segments.values()) * spec.row_bytes
            arena = self._arena(spec, size_bytes)
            undo.callback(arena.close)
            arena.tier.budget.take(size_bytes)
            targets[key] = (arena, arena.open(segments), ResidentIndex(arena.table))
            found.append((key, spec, generation))
        load(self._catalog, targets, on_progress)
        for key, spec, generation in found:
            arena, _first_rows, index = targets[key]
            self._collections[spec.name] = self._collection(key, spec, generation, arena, index)

    def _asked_tier(self, spec: CollectionSpec) -> str:
        return self._default_tier if spec.tier == "auto" else spec.tier

    def _arena(self, spec: CollectionSpec, size_bytes: int) -> Arena:
        table = choose_tier(self._asked_tier(spec), size_bytes, self._tiers).table(spec.dim, spec.torch_dtype)
        return Arena(self._segments_directory, table, self._segment_bytes, self._new_segment_id)

    def _collection(
        self, key: int, spec: CollectionSpec, generation: int, arena: Arena, index: ResidentIndex
    ) -> Collection:
        movable = self._asked_tier(spec) == "auto" and arena.tier.name == "gpu"
        return Collection(
            key,
            spec,
            generation,
            catalog=self._catalog,
            arena=arena,
            index=index,
            outgrown=self._tiers["host"] if movable else None,
            compact_dead_share=self._compact_dead_share,
            metrics=self._metrics,
            wake_compactor=self._compactor.wake,
        )

    def _new_segment_id(self) -> int:
        with self._segment_ids:
            self._newest_segment += 1
            return self._newest_segment

    def _compactions(self) -> list[Callable[[], CompactReport]]:
        return [collection.compact_due for collection in self.collections()]

    def _require_open(self) -> None:
        if self._closed:
            raise _closed()


def _closed() -> Draining:
    return Draining("the store is closed")


def _shape(spec: CollectionSpec) -> str:
    return f"dim {spec.dim}, dtype {spec.dtype}, normalize {str(spec.normalize).lower()}, tier {spec.tier}"

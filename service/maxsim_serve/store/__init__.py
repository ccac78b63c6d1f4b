"""Documents as packed rows of token vectors: durable on disk, resident in memory, read in place.

with Store.open(directory, …) as store:
    papers = store.create_collection(CollectionSpec("papers", dim=128))
    papers.commit(papers.prepare([NewDocument("a/1", vectors, text="…")]))
    papers.locate(["a/1"]).parts  # spans of the resident rows, for the engine to score
"""

from .collection import Collection
from .cuda import SLAB_BYTES, device_view, gpu_tiers
from .ingest import Prepared, checked_vectors, normalized
from .planner import GpuPlan, plan_gpu
from .resident import Located, Part, Snapshot
from .spec import (
    MAX_ID_BYTES,
    CollectionInfo,
    CollectionSpec,
    CompactReport,
    Deleted,
    Described,
    NewDocument,
    Rejected,
    StoredDocument,
)
from .store import Store

__all__ = [
    "MAX_ID_BYTES",
    "SLAB_BYTES",
    "Collection",
    "CollectionInfo",
    "CollectionSpec",
    "CompactReport",
    "Deleted",
    "Described",
    "GpuPlan",
    "Located",
    "NewDocument",
    "Part",
    "Prepared",
    "Rejected",
    "Snapshot",
    "Store",
    "StoredDocument",
    "checked_vectors",
    "device_view",
    "gpu_tiers",
    "normalized",
    "plan_gpu",
]

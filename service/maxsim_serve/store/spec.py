"""What a collection is, and the records that go into the store and come out of it."""

import re
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InvalidInput

__all__ = [
    "MAX_ID_BYTES",
    "CollectionInfo",
    "CollectionSpec",
    "CompactReport",
    "Deleted",
    "Described",
    "NewDocument",
    "Rejected",
    "StoredDocument",
]

MAX_ID_BYTES = 1024
"""Longest document id, in bytes of UTF-8."""

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_TIERS = ("auto", "gpu", "host")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
_DIM_STEP, _DIM_MAX = 8, 1024


@dataclass(frozen=True, slots=True)
class CollectionSpec:
    """What a collection fixes for all of its documents. Raises InvalidInput, naming the field.

    `name`: 1 to 64 of `A-Z a-z 0-9 _ . -`, not starting with a dot. `dim`: a multiple of 8 from 16 to 1024.
    `dtype`: the stored form, float16, bfloat16 or float32. `normalize`: whether each row is L2-normalized.
    `tier`: where its rows are to be resident, gpu, host or auto.
    """

    name: str
    dim: int
    dtype: str = "float16"
    normalize: bool = False
    tier: str = "auto"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(
                f"collection name {self.name!r}: use 1 to 64 letters, digits, '_', '-' or '.', "
                "and do not begin with '.'",
                param="name",
            )
        if not 2 * _DIM_STEP <= self.dim <= _DIM_MAX or self.dim % _DIM_STEP:
            raise InvalidInput(
                f"dim {self.dim}: must be a multiple of {_DIM_STEP} from {2 * _DIM_STEP} to {_DIM_MAX}",
                param="dim",
            )
        if self.tier not in _TIERS:
            raise InvalidInput(f"tier {self.tier!r}: must be one of {', '.join(_TIERS)}", param="tier")
        if self.dtype not in _DTYPES:
            raise InvalidInput(f"dtype {self.dtype!r}: must be one of {', '.join(_DTYPES)}", param="dtype")

    @property
    def torch_dtype(self) -> torch.dtype:
        return _DTYPES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored token row."""
        return self.dim * self.torch_dtype.itemsize


@dataclass(frozen=True, slots=True)
class NewDocument:
    """A document to store: `vectors` [n, dim] that pass `checked_vectors`; `payload` JSON, kept verbatim."""

    id: str
    vectors: NDArray[np.generic]
    text: str | None = None
    payload: bytes | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A document that was not accepted: its index in the request, its id, and why."""

    index: int
    id: str
    error: InvalidInput


@dataclass(frozen=True, slots=True)
class Deleted:
    """Ids that were there and are gone, and ids that were not there; each id once, in request order."""

    deleted: list[str]
    missing: list[str]


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document as it is stored; `vectors` float32 [n, dim]. `generation` names this version of it."""

    id: str
    vectors: NDArray[np.float32]
    text: str | None
    payload: bytes | None
    generation: int


@dataclass(frozen=True, slots=True)
class Described:
    """What a result may carry of its document besides the score."""

    text: str | None
    payload: bytes | None


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """A collection and its size. `bytes` counts resident rows, `dead_bytes` those that compaction would free.

    `generation` is the number of mutations so far, `tier` (gpu or host) where the rows are now.
    """

    name: str
    dim: int
    dtype: str
    normalize: bool
    documents: int
    tokens: int
    bytes: int
    dead_bytes: int
    segments: int
    generation: int
    tier: str


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did."""

    segments: int
    moved_documents: int
    moved_bytes: int
    freed_bytes: int
    duration_s: float

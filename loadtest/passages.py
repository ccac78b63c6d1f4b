"""Random passages, and a collection filled with them through HTTP."""

import httpx
import numpy as np

from maxsim_serve.cli.records import START, Record, body_of

__all__ = ["SAFETENSORS", "fill", "passages", "safetensors_body"]

SAFETENSORS = {"content-type": "application/vnd.safetensors"}


def passages(rng: np.random.Generator, documents: int, dim: int, mean_tokens: int = 120) -> list[np.ndarray]:
    """Random unit rows, as many a document as a passage has tokens."""
    lengths = np.clip(rng.normal(mean_tokens, mean_tokens / 3, documents), 16, 2 * mean_tokens).astype(int)
    rows = rng.standard_normal((int(lengths.sum()), dim), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.split(rows.astype(np.float16), np.cumsum(lengths)[:-1])


def safetensors_body(ids: list[str], vectors: list[np.ndarray]) -> bytes:
    """As the importer sends documents."""
    return body_of([Record(id, id, rows, START) for id, rows in zip(ids, vectors, strict=True)])[0]


def fill(
    client: httpx.Client,
    collection: str,
    documents: int,
    dim: int,
    batch: int = 2000,
    mean_tokens: int = 120,
    tier: str | None = None,
) -> list[str]:
    """Create `collection` in a tier (None: the service's choice), store random passages in it; their ids."""
    spec = {"dim": dim, "dtype": "float16"} | ({} if tier is None else {"tier": tier})
    client.put(f"/collections/{collection}", json=spec).raise_for_status()
    rng = np.random.default_rng(1)
    ids = [f"passage-{i}" for i in range(documents)]
    for first in range(0, documents, batch):
        some = ids[first : first + batch]
        body = safetensors_body(some, passages(rng, len(some), dim, mean_tokens))
        client.put(
            f"/collections/{collection}/documents", content=body, headers=SAFETENSORS
        ).raise_for_status()
    return ids

"""Random documents of known rows, and a collection filled with them through HTTP."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import numpy as np
import torch
from numpy.typing import NDArray

from ..records import START, Record, body_of

__all__ = ["DIM", "Corpus", "fill", "make", "put"]

DIM = 128
_BATCH_BYTES = 64 << 20
_UPLOADS = 4


@dataclass(frozen=True)
class Corpus:
    """Documents d0, d1, …: tokens fp16 [T, 128] of unit rows, and int64 [n] first rows and lengths."""

    tokens: NDArray[np.float16]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)

    def record(self, number: int) -> Record:
        """A document as the importer sends it."""
        start, length = self.starts[number], self.lengths[number]
        return Record(f"document {number}", f"d{number}", self.tokens[start : start + length], START)

    @property
    def ids(self) -> list[str]:
        return [f"d{number}" for number in range(len(self))]


def make(documents: int, shortest: int, longest: int, seed: int) -> Corpus:
    """Lengths are uniform. The rows are drawn on a GPU where there is one: it takes a core
    longer than all that follows."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(seed)
    lengths = np.random.default_rng(seed).integers(shortest, longest + 1, documents)
    rows = torch.empty(int(lengths.sum()), DIM, dtype=torch.float16)
    for piece in rows.split(1 << 20):
        drawn = torch.randn(piece.shape, generator=generator, device=device)
        piece.copy_(torch.nn.functional.normalize(drawn, dim=-1))
    return Corpus(rows.numpy(), np.cumsum(lengths) - lengths, lengths)


def fill(client: httpx.Client, collection: str, corpus: Corpus, tier: str) -> None:
    """Create the collection in a tier and store the whole corpus in it."""
    spec = {"dim": DIM, "dtype": "float16", "tier": tier}
    client.put(f"/collections/{collection}", json=spec).raise_for_status()
    put(client, collection, corpus, np.arange(len(corpus)))


def put(client: httpx.Client, collection: str, corpus: Corpus, numbers: NDArray[np.int64]) -> None:
    """Store these documents of the corpus."""
    most = max(1, _BATCH_BYTES // int(2 * DIM * corpus.lengths.mean()))

    def send(some: NDArray[np.int64]) -> None:
        body, content_type = body_of([corpus.record(number) for number in some.tolist()])
        client.put(
            f"/collections/{collection}/documents", content=body, headers={"content-type": content_type}
        ).raise_for_status()

    with ThreadPoolExecutor(_UPLOADS) as threads:
        list(threads.map(send, np.split(numbers, range(most, len(numbers), most))))

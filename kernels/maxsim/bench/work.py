"""`Work`: the inputs of one scoring case, in every form that a library may like, and how we score it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

import maxsim
from maxsim import Ragged

__all__ = ["Form", "Work", "lengths_like_passages", "packed", "unit"]

Form = Literal["dense", "padded", "packed", "pairs"]

MEAN_LENGTH, LENGTH_SPREAD, SHORTEST, LONGEST = 120, 0.45, 8, 400


@dataclass(frozen=True, eq=False)
class Work:
    """What is scored.

    queries   [Nq, Lq, d]
    documents the document tokens, packed
    form      how ours is called: on a tensor of documents of one length; on a padded tensor with a mask;
              on the packed documents; on a work list
    pairs     the work list, two int64 [P]; None: every query with every document
    """

    queries: Tensor
    documents: Ragged
    form: Form
    pairs: tuple[Tensor, Tensor] | None = None

    def score(self) -> Tensor:
        """Ours, by the public function for this form → float32 [Nq, Nd] or [P]."""
        if self.pairs is not None:
            return maxsim.score_pairs(self.packed_queries, self.documents, *self.pairs)
        if self.form == "packed":
            return maxsim.score(self.queries, self.documents)
        mask = self.mask if self.form == "padded" else None
        return maxsim.score(self.queries, self.padded, document_mask=mask)

    def prepare(self) -> None:
        """Make what `score` needs, once, outside the clock."""
        if self.pairs is not None:
            _ = self.packed_queries
        elif self.form != "packed":
            _ = self.padded, self.mask

    @cached_property
    def packed_queries(self) -> Ragged:
        count, rows, dim = self.queries.shape
        offsets = torch.arange(count + 1, device=self.queries.device) * rows
        return Ragged(self.queries.reshape(count * rows, dim), offsets)

    @cached_property
    def longest(self) -> int:
        return int(self.documents.lengths.max())

    @property
    def same_length(self) -> bool:
        return len(self.documents) * self.longest == len(self.documents.tokens)

    @cached_property
    def padded(self) -> Tensor:
        """[Nd, longest, d]; a view where all documents have one length, else a copy filled up with zeros."""
        shape = (len(self.documents), self.longest, self.documents.dim)
        if self.same_length:
            return self.documents.tokens.view(shape)
        padded = self.documents.tokens.new_zeros(shape)
        padded[self.mask] = self.documents.tokens
        return padded

    @cached_property
    def mask(self) -> Tensor:
        """bool [Nd, longest], true where `padded` holds a token."""
        return torch.arange(self.longest, device=self.queries.device) < self.documents.lengths[:, None]

    @property
    def kernel(self) -> str:
        """The name of the kernel that `maxsim.plan` gives, which does not see a mask."""
        if self.pairs is not None:
            return maxsim.plan(self.packed_queries, self.documents, pairs=self.scores).kernel
        return maxsim.plan(self.queries, self.documents if self.form == "packed" else self.padded).kernel

    @cached_property
    def bytes(self) -> int:
        """What must be moved at the least: each document token in the work read once, queries, scores."""
        lengths = self.documents.lengths
        read = lengths if self.pairs is None else lengths[self.pairs[1].unique()]
        values = int(read.sum()) * self.documents.dim + self.queries.numel()
        return values * self.queries.element_size() + 4 * self.scores

    @cached_property
    def flop(self) -> int:
        """Multiplications and additions of the similarities."""
        lengths = self.documents.lengths
        rows_times_tokens = (
            len(self.queries) * int(lengths.sum())
            if self.pairs is None
            else int(lengths[self.pairs[1]].sum())
        )
        return 2 * self.queries.shape[1] * self.documents.dim * rows_times_tokens

    @property
    def scores(self) -> int:
        return len(self.queries) * len(self.documents) if self.pairs is None else len(self.pairs[0])


def unit(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Random rows of unit norm, on the generator's device; made a slice at a time, rounded last."""
    dim = shape[-1]
    rows = torch.empty(shape, dtype=dtype, device=generator.device).view(-1, dim)
    for some in rows.split(2**28 // dim):
        fresh = torch.randn(some.shape, generator=generator, device=generator.device)
        some.copy_(torch.nn.functional.normalize(fresh, dim=1))
    return rows.view(shape)


def packed(lengths: Tensor, dim: int, dtype: torch.dtype, generator: torch.Generator) -> Ragged:
    """Fresh documents of these lengths, int64 [Nd]."""
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return Ragged(unit((int(offsets[-1]), dim), dtype, generator), offsets)


def lengths_like_passages(count: int, generator: torch.Generator) -> Tensor:
    """Log-normal lengths with the mean of MS MARCO's passages in tokens, int64 [count]."""
    device = generator.device
    spread = torch.randn(count, generator=generator, device=device) * LENGTH_SPREAD - LENGTH_SPREAD**2 / 2
    return (MEAN_LENGTH * spread.exp()).round().clamp(SHORTEST, LONGEST).long()

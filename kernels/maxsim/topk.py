"""Deterministic top-K: score descending, position ascending, the same in every run.

`torch.topk` is fast but breaks ties as it likes. On a GPU what is compared are keys that are never equal, a
score's bits in the order of the numbers, then the position: by `forward.block_top_k` for a small k, else by
`torch.topk`. On a CPU compiled code has a few thousand scores; of more `torch.topk` finds the k-th, and what
lies above is sorted stably, what equals it taken in order of position.
"""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from maxsim.crew import helpers
from maxsim.errors import DTypeError, ShapeError

try:
    from maxsim import _order
except ImportError:
    compiled = False
else:
    compiled = True

__all__ = ["FEW", "Running", "TopK", "by_keys", "order", "order_all", "top_k"]

SORTED_WHOLE = 16_384
# What compiled code sorts without memory of its own.
_SORTED_TOGETHER = 2048
# A power of two: what `block_top_k` keeps of each block.
FEW = 128
# Positions are counted back from here in a key's lower half.
_LAST = 0xFFFF_FFFF


class TopK(NamedTuple):
    """values [k] or [B, k] of the scores' dtype; indices int64 of the same shape."""

    values: Tensor
    indices: Tensor


def top_k(scores: Tensor, k: int) -> TopK:
    """The k best of scores [N] or [B, N], best first; all N where k is larger.

    Order: score descending, then position ascending; −∞ after every finite score, NaN after −∞.
    Differentiable in the values. Raises ShapeError for other shapes or a negative k, DTypeError
    for scores that are not floating point.
    """
    if scores.ndim not in (1, 2):
        raise ShapeError(f"scores: [N] or [B, N] wanted, got shape {tuple(scores.shape)}")
    if not scores.is_floating_point():
        raise DTypeError(f"scores: a floating-point dtype wanted, got {scores.dtype}")
    if k < 0:
        raise ShapeError(f"k: 0 or more wanted, got {k}")
    k = min(k, scores.shape[-1])
    known = scores.detach()
    if known.device.type == "cuda" and known.dtype != torch.float64 and 0 < k <= FEW and known.numel():
        indices = _few(known, k)
    elif known.device.type != "cpu" and known.dtype != torch.float64:
        indices = by_keys(known, k)
    elif scores.ndim == 1:
        indices = _best(known, k)
    else:
        picked = [_best(row, k) for row in known]
        indices = torch.stack(picked) if picked else known.new_empty((0, k), dtype=torch.int64)
    return TopK(scores.gather(-1, indices), indices)


def order(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Positions [k] of the k best of scores [N], k ≤ N, in the order of `top_k`; no tensor for a few."""
    if len(scores) > SORTED_WHOLE:
        return _best(torch.from_numpy(scores), k).numpy()
    if not compiled:
        # One stable sort; NumPy puts NaN last by itself.
        return (-scores).argsort(kind="stable")[:k]
    positions = np.empty(k, np.int64)
    _order.order(np.ascontiguousarray(scores), positions)
    return positions


def order_all(
    scores: Sequence[NDArray[np.float32]], wanted: Sequence[int]
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """`order` of each list of scores [N_i], `wanted[i]` ≤ N_i → positions and their scores, best first.

    Other threads may go on meanwhile, and must not write to the scores.
    """
    if not compiled or len(scores) == 1 or max(map(len, scores), default=0) > _SORTED_TOGETHER:
        positions = [order(some, k) for some, k in zip(scores, wanted, strict=True)]
        return [(best, some[best]) for best, some in zip(positions, scores, strict=True)]
    ends = list(accumulate(wanted))
    all_positions = np.empty(sum(wanted), np.int64)
    values = np.empty(len(all_positions), np.float32)
    _order.order_all(
        [np.ascontiguousarray(some) for some in scores], list(wanted), all_positions, values, helpers()
    )
    return [
        (all_positions[first:end], values[first:end]) for first, end in zip([0, *ends], ends, strict=False)
    ]


def by_keys(scores: Tensor, k: int) -> Tensor:
    """Positions [..., k] of the k best of scores [..., N], N up to 2³², no float64; waits for nothing."""
    keys = _keys(scores, torch.arange(scores.shape[-1], device=scores.device))
    return _positions(torch.topk(keys, k, dim=-1).values)


class Running:
    """The k best of scores that come in pieces, in any order: what `top_k` finds in all of them at once.

    For B rows of float32 scores. Memory is that of k scores and one piece; nothing waits for the device.
    """

    def __init__(self, rows: int, k: int, device: torch.device) -> None:
        """There must be at least k scores a row by the end."""
        # Below every score's key, a NaN's included.
        none = torch.iinfo(torch.int64).min
        self._keys = torch.full((rows, k), none, dtype=torch.int64, device=device)
        self._values = torch.empty(rows, k, dtype=torch.float32, device=device)

    def add(self, scores: Tensor, positions: Tensor) -> None:
        """Scores float32 [B, n] and their positions int64 [n] among all, below 2³²."""
        keys = torch.cat([self._keys, _keys(scores, positions)], dim=-1)
        picked = torch.topk(keys, self._keys.shape[-1], sorted=False).indices
        self._keys = keys.gather(-1, picked)
        self._values = torch.cat([self._values, scores], dim=-1).gather(-1, picked)

    def best(self) -> TopK:
        """values float32 [B, k] and indices int64 [B, k], best first."""
        keys, places = torch.sort(self._keys, dim=-1, descending=True)
        return TopK(self._values.gather(-1, places), _positions(keys))


def _keys(scores: Tensor, positions: Tensor) -> Tensor:
    """One int64 a score, never two the same: the better comes first, of equals that of the lower position."""
    # Adding zero makes −0 a 0, which it equals.
    bits = (scores.float() + 0.0).view(torch.int32)
    # Negative numbers have their magnitude in the bits below the sign: flipped, all compare as integers do.
    ordered = bits ^ ((bits >> 31) & 0x7FFF_FFFF)
    ordered = ordered.masked_fill(scores.isnan(), torch.iinfo(torch.int32).min)
    return (ordered.to(torch.int64) << 32) | (_LAST - positions)


def _positions(keys: Tensor) -> Tensor:
    return _LAST - (keys & _LAST)


def _few(scores: Tensor, k: int) -> Tensor:
    """Positions [..., k] of the k ≤ FEW best of scores [..., N] on a GPU; waits for nothing."""
    blocks = _blocks()
    if blocks is None:
        return by_keys(scores, k)
    rows = scores.float().reshape(-1, scores.shape[-1])
    found: Tensor = blocks.positions(rows, k)
    return found.view(*scores.shape[:-1], k)


@cache
def _blocks() -> Any:
    """`block_top_k` where there is Triton, imported once: looking for it takes a call 1 µs."""
    try:
        from maxsim.forward import block_top_k
    except ImportError:
        return None
    return block_top_k


def _best(scores: Tensor, k: int) -> Tensor:
    """Positions of the k best of scores [N], k ≤ N, int64 [k]."""
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=scores.device)
    if scores.device.type == "cpu" and len(scores) <= SORTED_WHOLE and scores.dtype == torch.float32:
        return torch.from_numpy(order(scores.numpy(), k))
    nan = scores.isnan()
    ranked = scores.masked_fill(nan, -torch.inf)
    threshold = torch.topk(ranked, k, sorted=False).values.min()
    above = (ranked > threshold).nonzero().squeeze(1)
    above = above[torch.sort(ranked[above], descending=True, stable=True).indices]
    equal = ((ranked == threshold) & ~nan).nonzero().squeeze(1)
    best = torch.cat([above, equal])[:k]
    if len(best) == k:
        return best
    return torch.cat([best, nan.nonzero().squeeze(1)])[:k]

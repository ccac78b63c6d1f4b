"""One reading of every kind of operand: which rows of a 2-D token table each item may use.

A 2-D or 3-D tensor, a Ragged or a Spans, with or without a mask, becomes a `Rows`; kernels read
nothing else. No token is copied: a strided 3-D tensor becomes a strided table of its rows.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from maxsim.errors import DeviceError, DTypeError, ShapeError
from maxsim.ragged import Ragged, Spans, check_tokens

__all__ = ["Operand", "Parts", "Rows", "count", "parts", "rows"]

Operand = Tensor | Ragged | Spans

# An operand taken apart into plain tensors, as a registered operator wants it:
# tokens [T, d] or [N, L, d]; starts and lengths int64 [N], both None for a tensor operand.
Parts = tuple[Tensor, Tensor | None, Tensor | None]


@dataclass(frozen=True, eq=False)
class Rows:
    """The active rows of N items.

    tokens  [R, d], any strides
    starts  [N] int64; where item i begins in `index`, or its first row when there is no index
    lengths [N] int64; active rows of item i
    step    rows between neighbouring tokens when there is no index
    index   [A] int64 rows of `tokens`, ascending within an item, or None
    """

    tokens: Tensor
    starts: Tensor
    lengths: Tensor
    step: int
    index: Tensor | None

    def __len__(self) -> int:
        return len(self.starts)

    def of(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of `tokens` that items int64 [n] may use, one item after the other.

        → (rows int64 [A], owner int64 [A]: which of the n a row belongs to)
        """
        lengths = self.lengths[items]
        owner = torch.repeat_interleave(lengths)
        within = torch.arange(len(owner), device=owner.device) - (lengths.cumsum(0) - lengths)[owner]
        if self.index is not None:
            return self.index[self.starts[items][owner] + within], owner
        return self.starts[items][owner] + self.step * within, owner

    def matrix(self, item: int) -> Tensor:
        """The active rows of one item, [L_i, d], in the dtype of `tokens`; a view where that is possible."""
        if self.index is None and self.step > 0:
            start, length = int(self.starts[item]), int(self.lengths[item])
            return self.tokens[start : start + self.step * length : self.step]
        return self.tokens.index_select(0, self.of(torch.tensor([item], device=self.starts.device))[0])


def parts(operand: Operand, name: str) -> Parts:
    """Take an operand apart. Raises ShapeError or DTypeError for a tensor that no kernel reads."""
    if isinstance(operand, Ragged):
        return operand.tokens, operand.offsets[:-1], operand.lengths
    if isinstance(operand, Spans):
        return operand.tokens, operand.starts, operand.lengths
    check_tokens(operand, name, ndims=(2, 3))
    return operand, None, None


def count(operand: Parts) -> int:
    """How many items an operand holds; a 2-D tensor is one item."""
    tokens, starts, _ = operand
    if starts is not None:
        return starts.shape[0]
    return tokens.shape[0] if tokens.ndim == 3 else 1


def rows(operand: Parts, mask: Tensor | None, name: str) -> Rows:
    """The active rows of each item. `mask` is boolean, one value a token, of the shape of
    `tokens` without its last axis. Raises ShapeError, DTypeError or DeviceError for a bad mask."""
    tokens, starts, lengths = operand
    if mask is not None:
        _check_mask(mask, tokens, name)
    step = 1
    if starts is None or lengths is None:
        tokens, starts, lengths, step = _table(tokens if tokens.ndim == 3 else tokens[None])
    if mask is None:
        return Rows(tokens, starts, lengths, step, None)
    # A mask's rows are listed one by one: 8 bytes a token, beside the tokens' own 32 to 4,096.
    everything = Rows(tokens, starts, lengths, step, None)
    listed, owner = everything.of(torch.arange(len(starts), device=starts.device))
    # The mask of a 3-D tensor is numbered like its items, any other like the rows of the table.
    active = mask.reshape(-1) if mask.ndim == 2 else mask[listed]
    kept = torch.zeros_like(lengths).index_add_(0, owner, active.to(torch.int64))
    return Rows(tokens, kept.cumsum(0) - kept, kept, step, listed[active])


def _table(dense: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """View dense [N, L, d] of any strides as a table of rows: (table, starts, lengths, step)."""
    n, length, dim = dense.shape
    # The stride of an axis of size one means nothing.
    item_stride = dense.stride(0) if n > 1 else 0
    token_stride = dense.stride(1) if length > 1 else 0
    unit = math.gcd(item_stride, token_stride)
    item_step, step = (item_stride // unit, token_stride // unit) if unit else (0, 0)
    last = (n - 1) * item_step + (length - 1) * step
    shape = (last + 1 if dense.numel() else 0, dim)
    table = dense.as_strided(shape, (unit, dense.stride(2)))
    starts = torch.arange(n, device=dense.device) * item_step
    return table, starts, torch.full_like(starts, length), step


def _check_mask(mask: Tensor, tokens: Tensor, name: str) -> None:
    if mask.dtype != torch.bool:
        raise DTypeError(f"{name}_mask: bool wanted, got {mask.dtype}; write mask.bool()")
    if mask.shape != tokens.shape[:-1]:
        raise ShapeError(
            f"{name}_mask: one value a token wanted, {tuple(tokens.shape[:-1])}, got {tuple(mask.shape)}"
        )
    if mask.device != tokens.device:
        raise DeviceError(f"{name}_mask: is on {mask.device} but its tokens are on {tokens.device}; move it")

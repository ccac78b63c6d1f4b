"""One reading of every kind of operand: which rows of a 2-D token table each item may use.

A 2-D or 3-D tensor, a Ragged or a Spans, with or without a mask, becomes a `Side`; kernels read
nothing else. No token is copied: a strided 3-D tensor becomes a strided table of its rows. Where a
kernel cannot apply a mask itself, `Side.rows` lists what it leaves.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from maxsim.errors import DeviceError, DTypeError, ShapeError
from maxsim.ragged import Ragged, Spans, check_tokens

__all__ = ["Operand", "Parts", "Rows", "Side", "count", "parts", "side"]

Operand = Tensor | Ragged | Spans


class Parts(NamedTuple):
    """An operand taken apart into plain tensors, as a registered operator wants it.

    tokens  [T, d] or [N, L, d]
    starts  int64 [N] and
    lengths int64 [N], both None for a tensor operand
    longest no item has more tokens; None where nobody has looked: on a CPU no kernel asks
    """

    tokens: Tensor
    starts: Tensor | None = None
    lengths: Tensor | None = None
    longest: int | None = None


class Side(NamedTuple):
    """One side of a product: N items of a row table, and a mask not yet applied.

    tokens  the operand's own tensor; row r of the table begins row_stride · r elements after its first
    row_stride, column_stride in elements
    table_rows R
    items   N
    starts  int64 [N], first row of each item, or None: item i then begins at row i · item_step
    lengths int64 [N], tokens of each item, or None: each has `length`
    step    rows between neighbouring tokens of an item
    mask    bool, contiguous, or None; numbered like the rows, without `starts` like items × length
    longest no item has more tokens; None where nobody has looked
    """

    tokens: Tensor
    row_stride: int
    column_stride: int
    table_rows: int
    items: int
    starts: Tensor | None
    lengths: Tensor | None
    item_step: int
    length: int
    step: int
    mask: Tensor | None
    longest: int | None

    @property
    def dim(self) -> int:
        return int(self.tokens.shape[-1])

    def table(self) -> Tensor:
        """The rows [R, d], a view."""
        return self.tokens.as_strided((self.table_rows, self.dim), (self.row_stride, self.column_stride))

    def rows(self) -> "Rows":
        """The active rows of each item, listed one by one where there is a mask."""
        starts, lengths = self.starts, self.lengths
        if starts is None or lengths is None:
            starts = torch.arange(self.items, device=self.tokens.device) * self.item_step
            lengths = torch.full_like(starts, self.length)
        everything = Rows(self.table(), starts, lengths, self.step, None)
        if self.mask is None:
            return everything
        # A mask's rows are listed one by one: 8 bytes a token, beside the tokens' own 32 to 4,096.
        listed, owner = everything.of(torch.arange(self.items, device=starts.device))
        active = self.mask if self.starts is None else self.mask[listed]
        kept = torch.zeros_like(lengths).index_add_(0, owner, active.to(torch.int64))
        return Rows(everything.tokens, kept.cumsum(0) - kept, kept, self.step, listed[active])


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
    if isinstance(operand, Tensor):
        check_tokens(operand, name, ndims=(2, 3))
        return Parts(operand)
    return Parts(operand.tokens, operand.starts, operand.lengths, operand.longest)


def count(operand: Parts) -> int:
    """How many items an operand holds; a 2-D tensor is one item."""
    if operand.starts is not None:
        return operand.starts.shape[0]
    return operand.tokens.shape[0] if operand.tokens.ndim == 3 else 1


def side(operand: Parts, mask: Tensor | None, name: str) -> Side:
    """An operand as kernels read it. `mask` is boolean, one value a token, of the shape of
    `tokens` without its last axis. Raises ShapeError, DTypeError or DeviceError for a bad mask."""
    tokens, starts, lengths, longest = operand
    if mask is not None:
        _check_mask(mask, tokens, name)
        mask = mask.reshape(-1).contiguous()
    if starts is None or lengths is None:
        return _dense(tokens, mask)
    row_stride, column_stride = tokens.stride()
    items, table_rows = starts.shape[0], tokens.shape[0]
    return Side(tokens, row_stride, column_stride, table_rows, items, starts, lengths, 0, 0, 1, mask, longest)


def _dense(tokens: Tensor, mask: Tensor | None) -> Side:
    """Tokens [N, L, d] or [L, d] of any strides, as items of a table of rows."""
    shape, strides = tokens.shape, tokens.stride()
    count, item_stride = (shape[0], strides[0]) if len(shape) == 3 else (1, 0)
    length, dim, token_stride, column_stride = shape[-2], shape[-1], strides[-2], strides[-1]
    # The stride of an axis of size one means nothing.
    item_stride = item_stride if count > 1 else 0
    token_stride = token_stride if length > 1 else 0
    unit = math.gcd(item_stride, token_stride) or dim
    item_step, step = item_stride // unit, token_stride // unit if length > 1 else 1
    table_rows = (count - 1) * item_step + (length - 1) * step + 1 if count and length else 0
    return Side(
        tokens, unit, column_stride, table_rows, count, None, None, item_step, length, step, mask, length
    )


def _check_mask(mask: Tensor, tokens: Tensor, name: str) -> None:
    if mask.dtype != torch.bool:
        raise DTypeError(f"{name}_mask: bool wanted, got {mask.dtype}; write mask.bool()")
    if mask.shape != tokens.shape[:-1]:
        raise ShapeError(
            f"{name}_mask: one value a token wanted, {tuple(tokens.shape[:-1])}, got {tuple(mask.shape)}"
        )
    if mask.device != tokens.device:
        raise DeviceError(f"{name}_mask: is on {mask.device} but its tokens are on {tokens.device}; move it")

"""One reading of every kind of operand: which rows of a 2-D token table each item may use.

A 2-D or 3-D tensor, a Ragged or a Spans, with or without a mask, becomes a `Side`; kernels read
nothing else. No token is copied: a strided 3-D tensor becomes a strided table of its rows. Where a
kernel cannot apply a mask itself, `Side.rows` lists what it leaves.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from maxsim.errors import DeviceError, DTypeError, ShapeError
from maxsim.ragged import Ragged, Spans, check_shape, check_tokens

__all__ = [
    "MOST_REMEMBERED",
    "Layout",
    "Operand",
    "Parts",
    "Rows",
    "Side",
    "count",
    "masked",
    "parts",
    "side",
]

Operand = Tensor | Ragged | Spans

# Of each thing that is worked out once for the same shapes. A service meets few, a training loop as many
# as it likes.
MOST_REMEMBERED = 1024


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


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """How the rows of N items lie, wherever the first is: a side without its addresses.

    Made once for the same shapes, compared by identity and never changed: what is worked out from shapes is
    remembered by it.

    dim     d, columns of a row
    row_stride, column_stride in elements
    table_rows R
    items   N
    listed  by `starts` and `lengths`; else item i begins at row i · item_step and has `length` tokens
    step    rows between neighbouring tokens of an item
    longest no item has more tokens; None where nobody has looked
    masked  the side has a mask
    """

    dtype: torch.dtype
    device: torch.device
    dim: int
    row_stride: int
    column_stride: int
    table_rows: int
    items: int
    listed: bool
    item_step: int
    length: int
    step: int
    longest: int | None
    masked: bool = False


class Side(NamedTuple):
    """One side of a product: N items of a row table, and a mask not yet applied.

    tokens  the operand's own tensor; row r of the table begins layout.row_stride · r elements after its first
    starts  int64 [N], first row of each item, or None
    lengths int64 [N], tokens of each item, or None
    mask    bool, contiguous, or None; numbered like the rows, without `starts` like items × length
    """

    tokens: Tensor
    starts: Tensor | None
    lengths: Tensor | None
    mask: Tensor | None
    layout: Layout

    def table(self) -> Tensor:
        """The rows [R, d], a view."""
        layout = self.layout
        return self.tokens.as_strided(
            (layout.table_rows, layout.dim), (layout.row_stride, layout.column_stride)
        )

    def rows(self) -> "Rows":
        """The active rows of each item, listed one by one where there is a mask."""
        starts, lengths, layout = self.starts, self.lengths, self.layout
        if starts is None or lengths is None:
            starts = torch.arange(layout.items, device=layout.device) * layout.item_step
            lengths = torch.full_like(starts, layout.length)
        everything = Rows(self.table(), starts, lengths, layout.step, None)
        if self.mask is None:
            return everything
        # A mask's rows are listed one by one: 8 bytes a token, beside the tokens' own 32 to 4,096.
        listed, owner = everything.of(torch.arange(layout.items, device=starts.device))
        active = self.mask if self.starts is None else self.mask[listed]
        kept = torch.zeros_like(lengths).index_add_(0, owner, active.to(torch.int64))
        return Rows(everything.tokens, kept.cumsum(0) - kept, kept, layout.step, listed[active])


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


def side(operand: Operand | Parts, name: str) -> Side:
    """An operand as kernels read it. Raises ShapeError or DTypeError for a tensor that no kernel reads."""
    if isinstance(operand, Tensor):
        layout = _dense(operand.shape, operand.stride(), operand.dtype, operand.device, name)
        return Side(operand, None, None, None, layout)
    tokens, starts = operand.tokens, operand.starts
    if starts is None:
        return side(tokens, name)
    items, longest = starts.shape[0], operand.longest
    layout = _packed(tokens.shape, tokens.stride(), tokens.dtype, tokens.device, items, longest)
    return Side(tokens, starts, operand.lengths, None, layout)


@lru_cache(MOST_REMEMBERED)
def _dense(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device, name: str
) -> Layout:
    """Tokens [N, L, d] or [L, d] of any strides, as items of a table of rows."""
    check_shape(shape, dtype, name, ndims=(2, 3))
    count, item_stride = (shape[0], strides[0]) if len(shape) == 3 else (1, 0)
    length, dim, token_stride, column_stride = shape[-2], shape[-1], strides[-2], strides[-1]
    # The stride of an axis of size one means nothing.
    item_stride = item_stride if count > 1 else 0
    token_stride = token_stride if length > 1 else 0
    unit = math.gcd(item_stride, token_stride) or dim
    item_step, step = item_stride // unit, token_stride // unit if length > 1 else 1
    table_rows = (count - 1) * item_step + (length - 1) * step + 1 if count and length else 0
    return Layout(
        dtype, device, dim, unit, column_stride, table_rows, count, False, item_step, length, step, length
    )


@lru_cache(MOST_REMEMBERED)
def _packed(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    items: int,
    longest: int | None,
) -> Layout:
    (table_rows, dim), (row_stride, column_stride) = shape, strides
    return Layout(
        dtype, device, dim, row_stride, column_stride, table_rows, items, True, 0, 0, 1, longest
    )  # fmt: skip


def masked(side: Side, mask: Tensor | None, name: str) -> Side:
    """A side under a mask, if there is one: boolean, one value a token, of the shape of `tokens`
    without its last axis. Raises ShapeError, DTypeError or DeviceError for another."""
    if mask is None:
        return side
    if mask.dtype != torch.bool:
        raise DTypeError(f"{name}: bool wanted, got {mask.dtype}; write mask.bool()")
    wanted = side.tokens.shape[:-1]
    if mask.shape != wanted:
        raise ShapeError(f"{name}: one value a token wanted, {tuple(wanted)}, got {tuple(mask.shape)}")
    if mask.device != side.layout.device:
        raise DeviceError(f"{name}: is on {mask.device} but its tokens are on {side.layout.device}; move it")
    tokens, starts, lengths, _, layout = side
    return Side(tokens, starts, lengths, mask.reshape(-1).contiguous(), _under_mask(layout))


@lru_cache(MOST_REMEMBERED)
def _under_mask(layout: Layout) -> Layout:
    return replace(layout, masked=True)

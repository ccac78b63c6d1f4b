"""Packed multi-vectors: `Ragged` (items one after the other) and `Spans` (rows of a larger store)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from maxsim.errors import DeviceError, DTypeError, IndexRangeError, ShapeError

__all__ = ["Ragged", "Spans", "check_integers", "check_shape", "check_tokens"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MIN_DIM, MAX_DIM, DIM_STEP = 16, 1024, 8


def check_tokens(tokens: Tensor, name: str, *, ndims: tuple[int, ...] = (2,)) -> None:
    """Refuse a tensor that no kernel could read; `name` is the argument as the caller knows it."""
    check_shape(tokens.shape, tokens.dtype, name, ndims=ndims)


def check_shape(shape: tuple[int, ...], dtype: torch.dtype, name: str, *, ndims: tuple[int, ...]) -> None:
    """Refuse tokens of a shape and dtype that no kernel could read."""
    if len(shape) not in ndims:
        wanted = " or ".join(f"{n}-D" for n in ndims)
        raise ShapeError(f"{name}: {wanted} wanted, got shape {tuple(shape)}")
    if dtype not in DTYPES:
        raise DTypeError(f"{name}: float16, bfloat16 or float32 wanted, got {dtype}; convert it first")
    dim = shape[-1]
    if not MIN_DIM <= dim <= MAX_DIM or dim % DIM_STEP:
        raise ShapeError(
            f"{name}: the width must be a multiple of {DIM_STEP} from {MIN_DIM} to {MAX_DIM}, got {dim}; "
            "pad it with zero columns"
        )


def check_integers(values: Tensor, name: str, device: torch.device) -> None:
    """Refuse anything but a 1-D int64 tensor beside its tokens."""
    if values.ndim != 1:
        raise ShapeError(f"{name}: 1-D wanted, got shape {tuple(values.shape)}")
    if values.dtype != torch.int64:
        raise DTypeError(f"{name}: int64 wanted, got {values.dtype}; convert it with .to(torch.int64)")
    if values.device != device:
        raise DeviceError(f"{name}: is on {values.device} but its tokens are on {device}; move one of them")


@dataclass(frozen=True, eq=False)
class Ragged:
    """Items of different lengths, packed one after the other.

    tokens  [T, d] float16, bfloat16 or float32; d a multiple of 8 from 16 to 1024
    offsets [N + 1] int64 on the same device; item i is `tokens[offsets[i]:offsets[i + 1]]`

    and, worked out from them: starts and lengths int64 [N], first row and tokens of each item, and on
    a GPU `longest`, the tokens of the longest (None on a CPU, where no kernel asks).

    Validated once, here, and trusted by the kernels from then on: leave the integers as they are.
    Raises ShapeError, DTypeError, DeviceError or IndexRangeError.
    """

    tokens: Tensor
    offsets: Tensor
    starts: Tensor = field(init=False, repr=False)
    lengths: Tensor = field(init=False, repr=False)
    longest: int | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_tokens(self.tokens, "tokens")
        check_integers(self.offsets, "offsets", self.tokens.device)
        if len(self.offsets) == 0:
            raise ShapeError("offsets: N + 1 values wanted, got none; no item at all is offsets [0]")
        ends = [int(self.offsets[0]), int(self.offsets[-1])]
        if ends != [0, len(self.tokens)]:
            raise IndexRangeError(
                f"offsets: must run from 0 to the {len(self.tokens)} tokens, got {ends[0]} to {ends[1]}"
            )
        falls = (self.offsets[1:] < self.offsets[:-1]).nonzero()
        if len(falls):
            at = int(falls[0])
            raise IndexRangeError(
                f"offsets: must never fall, but offsets[{at}] is {int(self.offsets[at])} "
                f"and offsets[{at + 1}] is {int(self.offsets[at + 1])}"
            )
        object.__setattr__(self, "starts", self.offsets[:-1])
        object.__setattr__(self, "lengths", self.offsets[1:] - self.offsets[:-1])
        object.__setattr__(self, "longest", _longest(self.lengths))

    @classmethod
    def from_list(cls, items: Sequence[Tensor]) -> "Ragged":
        """Pack matrices [L_i, d] of one dtype and device (a copy; gradients flow back to the items)."""
        if not items:
            raise ShapeError("items: at least one matrix wanted, got none; its width would be unknown")
        for i, item in enumerate(items):
            check_tokens(item, f"items[{i}]")
            for attribute in ("dtype", "device"):
                if getattr(item, attribute) != getattr(items[0], attribute):
                    raise DTypeError(
                        f"items[{i}]: {attribute} {getattr(item, attribute)} differs from "
                        f"{getattr(items[0], attribute)} of items[0]; convert them to one"
                    )
            if item.shape[1] != items[0].shape[1]:
                raise ShapeError(
                    f"items[{i}]: width {item.shape[1]} differs from {items[0].shape[1]} of items[0]"
                )
        lengths = torch.tensor([len(item) for item in items], dtype=torch.int64, device=items[0].device)
        return cls(torch.cat(list(items)), _offsets(lengths))

    @classmethod
    def from_padded(cls, padded: Tensor, mask: Tensor) -> "Ragged":
        """Pack the rows of padded [N, L, d] where the boolean mask [N, L] is true (a copy)."""
        check_tokens(padded, "padded", ndims=(3,))
        if mask.dtype != torch.bool:
            raise DTypeError(f"mask: bool wanted, got {mask.dtype}; write mask.bool()")
        if mask.shape != padded.shape[:2]:
            raise ShapeError(f"mask: shape {tuple(padded.shape[:2])} wanted, got {tuple(mask.shape)}")
        return cls(padded[mask], _offsets(mask.sum(dim=1)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, item: int) -> Tensor:
        """The tokens [L_i, d] of one item, a view."""
        position = range(len(self))[item]
        return self.tokens[int(self.offsets[position]) : int(self.offsets[position + 1])]

    @property
    def dim(self) -> int:
        return self.tokens.shape[1]

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient flows to the tokens."""
        return self.tokens.requires_grad


@dataclass(frozen=True, eq=False)
class Spans:
    """Items that are row ranges of a larger packed store, read in place.

    tokens  [T, d] float16, bfloat16 or float32; d a multiple of 8 from 16 to 1024
    starts  [N] int64 on the same device, first row of each item, in any order; items may overlap
    lengths [N] int64 on the same device, the rows of each item

    and, worked out from them on a GPU, `longest`, the rows of the longest item.

    Validated once, here, and trusted by the kernels from then on: leave the integers as they are.
    Raises ShapeError, DTypeError, DeviceError or IndexRangeError.
    """

    tokens: Tensor
    starts: Tensor
    lengths: Tensor
    longest: int | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_tokens(self.tokens, "tokens")
        check_integers(self.starts, "starts", self.tokens.device)
        check_integers(self.lengths, "lengths", self.tokens.device)
        if len(self.starts) != len(self.lengths):
            raise ShapeError(
                f"starts and lengths: {len(self.starts)} and {len(self.lengths)} values; one each"
            )
        rows = len(self.tokens)
        # Compared by subtraction: start + length could overflow int64.
        outside = (self.starts < 0) | (self.lengths < 0) | (self.starts > rows - self.lengths)
        if outside.any():
            at = int(outside.nonzero()[0])
            raise IndexRangeError(
                f"starts[{at}] = {int(self.starts[at])} with lengths[{at}] = {int(self.lengths[at])} "
                f"is not a range of the {rows} rows of tokens"
            )
        object.__setattr__(self, "longest", _longest(self.lengths))

    @classmethod
    def trusted(cls, tokens: Tensor, starts: Tensor, lengths: Tensor, longest: int) -> "Spans":
        """Spans whose integers are right by construction: nothing is looked at, so a GPU is not waited for.

        `longest` is the largest of the lengths, which whoever made them knows. A wrong integer reads
        memory that is not the caller's.
        """
        spans = cls.__new__(cls)
        for name, value in (
            ("tokens", tokens),
            ("starts", starts),
            ("lengths", lengths),
            ("longest", longest),
        ):
            object.__setattr__(spans, name, value)
        return spans

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, item: int) -> Tensor:
        """The tokens [L_i, d] of one item, a view."""
        start = int(self.starts[item])
        return self.tokens[start : start + int(self.lengths[item])]

    @property
    def dim(self) -> int:
        return self.tokens.shape[1]

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient flows to the tokens."""
        return self.tokens.requires_grad


def _longest(lengths: Tensor) -> int | None:
    """Looked up on a GPU alone, and here, where it may be waited for: a kernel's launch must not wait."""
    if lengths.device.type == "cpu":
        return None
    return int(lengths.max()) if len(lengths) else 0


def _offsets(lengths: Tensor) -> Tensor:
    """Lengths [N] to offsets [N + 1], both int64."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])

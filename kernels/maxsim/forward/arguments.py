"""What every launch passes: stand-ins for tensors that are not there, flags, strides."""

from functools import cache

import torch
from torch import Tensor

from maxsim.rows import Side

__all__ = ["absent", "flag", "given", "strides"]


@cache
def absent(device: torch.device) -> tuple[Tensor, Tensor]:
    """Stand-ins for index tensors and masks that are not there: kernels get an address and never read it."""
    return torch.zeros(2, dtype=torch.int64, device=device), torch.zeros(16, dtype=torch.bool, device=device)


def given(tensor: Tensor | None, stand_in: Tensor) -> Tensor:
    """The tensor, or its stand-in."""
    return stand_in if tensor is None else tensor


def flag(tensor: Tensor | None) -> int:
    """Whether it is there, for a kernel."""
    return int(tensor is not None)


def strides(side: Side, straight: bool) -> tuple[int, int]:
    """Elements from row to row and from column to column; in units of 8 where both sides are aligned."""
    return (side.row_stride // 8 if straight else side.row_stride), side.column_stride

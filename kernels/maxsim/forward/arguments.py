"""What several launches pass: flags, strides."""

from torch import Tensor

from maxsim.rows import Layout

__all__ = ["flag", "strides"]


def flag(tensor: Tensor | None) -> int:
    """Whether it is there, for a kernel."""
    return int(tensor is not None)


def strides(layout: Layout, straight: bool) -> tuple[int, int]:
    """Elements from row to row and from column to column; in units of 8 where both sides are aligned."""
    return (layout.row_stride // 8 if straight else layout.row_stride), layout.column_stride

"""Token matrices from a request: nested lists or packed bytes → a NumPy array `[n, dim]`."""

import math
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from .schemas import NestedVectors, PackedVectors

__all__ = ["as_matrix", "check_rows", "widened_bfloat16"]

_STORED: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),  # NumPy has no bfloat16: read as bits, then widened
    "int8": np.dtype("i1"),
}


def as_matrix(vectors: NestedVectors | PackedVectors, field: str) -> NDArray[np.generic]:
    """A matrix `[n, dim]`, n ≥ 1, float16, float32 or int8, perhaps a view of `vectors.data`.

    bfloat16 widens exactly to float32. Whether the numbers are finite is the caller's to check.
    Raises `InvalidInput` under the name `field`.
    """
    return _packed(vectors, field) if isinstance(vectors, PackedVectors) else _nested(vectors, field)


def check_rows(rows: int, most: int, field: str, setting: str) -> None:
    """Raises `InvalidInput` that names the setting if a matrix has more rows than it allows."""
    if rows > most:
        raise InvalidInput(
            f"{field} has {rows} rows, the setting {setting} allows {most}", param=field, code="over_limit"
        )


def widened_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 bits → the same numbers in float32: a bfloat16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _nested(rows: NestedVectors, field: str) -> NDArray[np.float32]:
    if not rows:
        raise InvalidInput(f"{field} is empty; send at least one row", param=field, code="empty")
    width = len(rows[0])
    for number, row in enumerate(rows):
        if len(row) != width:
            raise InvalidInput(
                f"{field} is ragged: row 0 has {width} numbers, row {number} has {len(row)}",
                param=f"{field}[{number}]",
            )
    if width == 0:
        raise InvalidInput(f"{field} has rows without numbers", param=field, code="empty")
    numbers = array("f")  # takes lists in half to two thirds of NumPy's time
    for row in rows:
        numbers.fromlist(row)  # what does not fit becomes infinite, which the finiteness check names
    return np.frombuffer(numbers, np.float32).reshape(len(rows), width)


def _packed(packed: PackedVectors, field: str) -> NDArray[np.generic]:
    rows, width = packed.shape
    if rows < 1 or width < 1:
        raise InvalidInput(
            f"{field}.shape is [{rows}, {width}]; both must be at least 1",
            param=f"{field}.shape",
            code="empty" if rows == 0 else None,
        )
    dtype = _STORED[packed.dtype]
    needed = math.prod((rows, width, dtype.itemsize))
    if len(packed.data) != needed:
        raise InvalidInput(
            f"{field}.data holds {len(packed.data)} bytes, shape [{rows}, {width}] in {packed.dtype} takes "
            f"{needed}; {_guess(len(packed.data), rows * width)}",
            param=f"{field}.data",
        )
    matrix = np.frombuffer(packed.data, dtype).reshape(rows, width)
    return widened_bfloat16(matrix) if packed.dtype == "bfloat16" else matrix


def _guess(held_bytes: int, numbers: int) -> str:
    fits = [name for name, dtype in _STORED.items() if numbers * dtype.itemsize == held_bytes]
    return f"declare dtype {' or '.join(fits)}" if fits else "correct shape or dtype"

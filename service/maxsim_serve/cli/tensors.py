"""Files of packed token rows as documents, read a slice at a time.

tokens   [T, dim]  float16, float32 or (safetensors) bfloat16    the documents' rows, one after the other
lengths  [N]       integers                                      rows of each document
ids, texts, payloads: of N items, optional; arrays in an npz, JSON lists in the metadata of safetensors

Without ids a document is called by its position, from "0".
"""

import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .jsonl import widened_bfloat16
from .records import Place, Record

__all__ = ["PackedRows", "open_npz", "open_safetensors"]

# safetensors' names; a file may hold others, which are not read.
_TOKENS = {"F16": "<f2", "BF16": "<u2", "F32": "<f4"}
_LENGTHS = {"I64": "<i8", "I32": "<i4"}

_Lists = dict[str, Sequence[Any]]


@dataclass(frozen=True)
class PackedRows:
    """An opened file; a place's number counts documents, its offset bytes of `tokens`.

    `rows(start)` yields the matrices of the given lengths, from the row `start` on.
    """

    lengths: NDArray[np.int64]
    row_bytes: int
    lists: _Lists
    rows: Callable[[int, Sequence[int]], Iterator[NDArray[Any]]]

    @property
    def total_bytes(self) -> int:
        return int(self.lengths.sum()) * self.row_bytes

    def read(self, start: Place) -> Iterator[Record]:
        offset_bytes, number = start
        lengths = [int(length) for length in self.lengths[number:]]
        for matrix in self.rows(offset_bytes // self.row_bytes, lengths):
            offset_bytes += len(matrix) * self.row_bytes
            yield Record(
                label=f"document {number}",
                id=str(self.lists["ids"][number]) if "ids" in self.lists else str(number),
                content=matrix,
                next=Place(offset_bytes, number + 1),
                text=self.lists["texts"][number] if "texts" in self.lists else None,
                payload=self.lists["payloads"][number] if "payloads" in self.lists else None,
            )
            number += 1


def open_safetensors(path: Path) -> PackedRows:
    """Raises `ValueError` that names what is missing or does not add up."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 2 <= size <= path.stat().st_size - 8:
            raise ValueError("the file is not safetensors: its header does not fit in it")
        header = json.loads(file.read(size))
    metadata = header.get("__metadata__", {})
    tokens, is_bfloat16 = _mapped(path, header, "tokens", _TOKENS, 8 + size)
    lengths, _ = _mapped(path, header, "lengths", _LENGTHS, 8 + size)

    def rows(start: int, wanted: Sequence[int]) -> Iterator[NDArray[Any]]:
        for length in wanted:
            matrix = np.array(tokens[start : start + length])
            yield widened_bfloat16(matrix) if is_bfloat16 else matrix
            start += length

    lists = {name: json.loads(metadata[name]) for name in ("ids", "texts", "payloads") if name in metadata}
    return _checked(lengths, tokens.shape, tokens.dtype, lists, rows)


def _mapped(
    path: Path, header: dict[str, Any], name: str, dtypes: dict[str, str], base: int
) -> tuple[NDArray[Any], bool]:
    """The tensor in place, and whether its 16 bits are bfloat16, which NumPy does not know."""
    if name not in header:
        raise ValueError(f"the file has no tensor {name}; it needs tokens and lengths")
    stored = header[name]
    if stored["dtype"] not in dtypes:
        raise ValueError(f"{name} is {stored['dtype']}; it must be one of {', '.join(dtypes)}")
    dtype, shape = np.dtype(dtypes[stored["dtype"]]), tuple(stored["shape"])
    if 0 in shape:  # nothing can be mapped of it
        return np.empty(shape, dtype), False
    mapped = np.memmap(path, dtype, "r", base + stored["data_offsets"][0], shape)
    return mapped, stored["dtype"] == "BF16"


def open_npz(path: Path) -> PackedRows:
    """Raises `ValueError` that names what is missing or does not add up."""
    with np.load(path, allow_pickle=False) as arrays:
        for name in ("tokens", "lengths"):
            if name not in arrays.files:
                raise ValueError(f"the file has no array {name}; it needs tokens and lengths")
        lengths = arrays["lengths"]
        lists = {name: arrays[name].tolist() for name in ("ids", "texts", "payloads") if name in arrays.files}
    with zipfile.ZipFile(path) as archive, archive.open("tokens.npy") as member:
        shape, dtype = _array_header(member)
        begin = member.tell()

    def rows(start: int, wanted: Sequence[int]) -> Iterator[NDArray[Any]]:
        row_bytes = shape[1] * dtype.itemsize
        with zipfile.ZipFile(path) as archive, archive.open("tokens.npy") as member:
            member.seek(begin + start * row_bytes)
            for length in wanted:
                yield np.frombuffer(member.read(length * row_bytes), dtype).reshape(length, shape[1])

    return _checked(lengths, shape, dtype, lists, rows)


def _array_header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of the `.npy` that starts here."""
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(member)
    else:
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(member)
    if is_fortran:
        raise ValueError("tokens is stored column by column; save it in C order")
    if dtype.str not in ("<f2", "<f4"):
        raise ValueError(f"tokens is {dtype}; it must be float16 or float32")
    return shape, dtype


def _checked(
    lengths: NDArray[Any],
    shape: Sequence[int],
    dtype: np.dtype[Any],
    lists: _Lists,
    rows: Callable[[int, Sequence[int]], Iterator[NDArray[Any]]],
) -> PackedRows:
    if len(shape) != 2 or shape[1] == 0:
        raise ValueError(f"tokens has shape {list(shape)}; it must be [rows, dim]")
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 0).any():
        raise ValueError("lengths must be a list of whole numbers, none negative")
    if int(lengths.sum()) != shape[0]:
        raise ValueError(f"lengths add up to {int(lengths.sum())}, but tokens has {shape[0]} rows")
    for name, items in lists.items():
        if not isinstance(items, list) or len(items) != len(lengths):
            raise ValueError(f"{name} must be a list of {len(lengths)} items, one for each document")
    return PackedRows(lengths.astype(np.int64), shape[1] * dtype.itemsize, lists, rows)

"""JSON lines as documents.

    {"id": "7", "text": "…", "title": "…"?, "payload": {…}?}       a text; a title goes before it
    {"id": "7", "vectors": [[0.1, …], …], "text": "…"?}            its token vectors
    {"id": "7", "vectors": {"data": base64, "shape": [n, d], "dtype": "float16"}}

BEIR's `_id` does for `id`, and a whole number for a string.
"""

import base64
import binascii
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .records import Place, Record, Unreadable

__all__ = ["JsonLines", "full_text"]

_DTYPES = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "int8": "i1"}


class JsonLines:
    """A `.jsonl` file; a place's number counts lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.total_bytes = path.stat().st_size

    def read(self, start: Place) -> Iterator[Record | Unreadable]:
        offset, number = start
        with self._path.open("rb") as file:
            file.seek(offset)
            for line in file:
                offset, number = offset + len(line), number + 1
                if not line.isspace():
                    yield _entry(line, f"line {number}", Place(offset, number))


def full_text(document: dict[str, Any]) -> str:
    """Title and text, joined by a space, as BEIR's evaluations join them."""
    parts = (document.get("title") or "", document.get("text") or "")
    if not all(isinstance(part, str) for part in parts):
        raise ValueError("title and text must be strings")
    return " ".join(part.strip() for part in parts).strip()


def _entry(line: bytes, label: str, following: Place) -> Record | Unreadable:
    try:
        document = json.loads(line, parse_constant=_refuse_constant)
        if not isinstance(document, dict):
            raise ValueError("the line is not a JSON object")
        payload = document.get("payload")
        text = full_text(document) if "text" in document or "title" in document else None
        # 1e400 and half a surrogate pair parse, but no request can hold what they become.
        json.dumps([_id_of(document), text, payload], allow_nan=False, ensure_ascii=False).encode()
        content = text if document.get("vectors") is None else matrix_of(document["vectors"])
        if content is None:
            raise ValueError("the document has neither text nor vectors")
        kept = None if isinstance(content, str) else text
        return Record(label, _id_of(document), content, following, kept, payload)
    except (ValueError, RecursionError) as error:
        return Unreadable(label, str(error), following)


def _id_of(document: dict[str, Any]) -> str:
    id = document.get("id", document.get("_id"))
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise ValueError(f"id is {id!r}; it must be a string")
    return str(id)


def matrix_of(vectors: object) -> NDArray[Any]:
    """Vectors [n, dim] in either form; bfloat16 and int8 as float32. Raises `ValueError`."""
    if isinstance(vectors, dict):
        dtype = vectors.get("dtype")
        if dtype not in _DTYPES:
            raise ValueError(f"vectors.dtype is {dtype!r}; use one of {', '.join(_DTYPES)}")
        try:
            flat = np.frombuffer(base64.b64decode(vectors["data"], validate=True), _DTYPES[dtype])
            matrix = flat.reshape([int(n) for n in vectors["shape"]])
        except (KeyError, TypeError, binascii.Error) as error:
            raise ValueError(f"vectors need base64 data, shape and dtype: {error}") from None
        if dtype == "bfloat16":
            matrix = widened_bfloat16(matrix)
        elif dtype == "int8":
            matrix = matrix.astype(np.float32)
    else:
        try:
            with np.errstate(over="ignore"):  # infinite then, which the service refuses by name
                matrix = np.array(vectors, dtype=np.float32)
        except (TypeError, ValueError):
            raise ValueError("vectors must be a list of lists of numbers, all of one length") from None
    if matrix.ndim != 2:
        raise ValueError(f"vectors have shape {list(matrix.shape)}; they must be [tokens, dim]")
    return matrix


def widened_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 values of bfloat16 bit patterns, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")

"""A safetensors body as documents. Every number in its header is the client's claim, and is checked.

tokens   [T, dim]  F16, BF16 or F32      the documents' rows, one after the other
lengths  [N]       I64                   rows of each document
metadata           ids: JSON list of N strings; texts, payloads: JSON lists of N, optional
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from .content import Codec, Format
from .matrices import widened_bfloat16
from .wire import MalformedBody

__all__ = ["Bulk", "parse"]

# Far beyond any body; NumPy refuses to reshape to sizes that overflow, even for no numbers at all.
_MOST_ROWS = 1 << 40

_WIDTH: Mapping[str, np.dtype[Any]] = {
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
}


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_HEADER: Codec[dict[str, msgspec.Raw]] = Codec(dict[str, msgspec.Raw])
_TENSOR: Codec[_Tensor] = Codec(_Tensor)
_METADATA: Codec[dict[str, str]] = Codec(dict[str, str])
_IDS: Codec[list[str]] = Codec(list[str])
_TEXTS: Codec[list[str | None]] = Codec(list[str | None])
_PAYLOADS: Codec[list[msgspec.Raw]] = Codec(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Bulk:
    """N documents; `rows(i)` is the matrix of document i. A text may be None, a payload UNSET."""

    ids: Sequence[str]
    texts: Sequence[str | None]
    payloads: Sequence[msgspec.Raw | msgspec.UnsetType]
    starts: NDArray[np.int64]
    tokens: NDArray[Any]
    is_bfloat16: bool

    def rows(self, i: int) -> NDArray[Any]:
        """`[n, dim]`, n ≥ 0: a view of the body, or float32 where the body holds bfloat16."""
        rows = self.tokens[self.starts[i] : self.starts[i + 1]]
        return widened_bfloat16(rows) if self.is_bfloat16 else rows


def parse(data: bytes | bytearray) -> Bulk:
    """Raises `MalformedBody` for what is not safetensors, `InvalidInput` that names what does not add up."""
    header, buffer = _split(data)
    tokens, kind = _tensor(header, buffer, "tokens", 2, ("F16", "BF16", "F32"))
    lengths, _ = _tensor(header, buffer, "lengths", 1, ("I64",))
    if (lengths < 0).any() or (lengths > len(tokens)).any():
        wrong = int(np.flatnonzero((lengths < 0) | (lengths > len(tokens)))[0])
        raise InvalidInput(
            f"lengths[{wrong}] is {int(lengths[wrong])}; tokens has {len(tokens)} rows",
            param=f"lengths[{wrong}]",
        )
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    if starts[-1] != len(tokens):
        raise InvalidInput(
            f"lengths sum to {int(starts[-1])}, tokens has {len(tokens)} rows", param="lengths"
        )
    metadata = _METADATA.decode(header.get("__metadata__", msgspec.Raw(b"{}")), Format.JSON, "__metadata__")
    count = len(lengths)
    if "ids" not in metadata:
        raise InvalidInput("metadata ids is missing; it is a JSON list with one id a document", param="ids")
    return Bulk(
        ids=_listed(metadata, "ids", _IDS, count, absent=None),
        texts=_listed(metadata, "texts", _TEXTS, count, absent=None),
        payloads=_listed(metadata, "payloads", _PAYLOADS, count, absent=msgspec.UNSET),
        starts=starts,
        tokens=tokens,
        is_bfloat16=kind == "BF16",
    )


def _split(data: bytes | bytearray) -> tuple[Mapping[str, msgspec.Raw], memoryview]:
    """The header by tensor name, and the bytes that its offsets point into."""
    if len(data) < 8:
        raise MalformedBody(
            f"the body has {len(data)} bytes; safetensors begins with the 8-byte size of its header"
        )
    (size,) = struct.unpack_from("<Q", data)
    if size > len(data) - 8:
        raise MalformedBody(
            f"the safetensors header claims {size} bytes, the body has {len(data) - 8} after it"
        )
    view = memoryview(data)
    return _HEADER.decode(view[8 : 8 + size], Format.JSON, "header"), view[8 + size :]


def _tensor(
    header: Mapping[str, msgspec.Raw], buffer: memoryview, name: str, axes: int, dtypes: Sequence[str]
) -> tuple[NDArray[Any], str]:
    """The named tensor as a view of the body (bfloat16 as its bits), and its dtype's name."""
    if name not in header:
        raise InvalidInput(f"tensor {name} is missing; the body needs tokens and lengths", param=name)
    tensor = _TENSOR.decode(header[name], Format.JSON, name)
    if tensor.dtype not in dtypes:
        raise InvalidInput(
            f"{name}.dtype is {tensor.dtype}; send {' or '.join(dtypes)}", param=f"{name}.dtype"
        )
    if len(tensor.shape) != axes or not all(0 <= n < _MOST_ROWS for n in tensor.shape):
        raise InvalidInput(
            f"{name}.shape is {tensor.shape}; it must have {axes} axes, none negative", param=f"{name}.shape"
        )
    begin, end = tensor.data_offsets
    dtype = _WIDTH[tensor.dtype]
    if not 0 <= begin <= end <= len(buffer):
        raise InvalidInput(
            f"{name}.data_offsets are [{begin}, {end}]; the body holds {len(buffer)} bytes of tensors",
            param=f"{name}.data_offsets",
        )
    needed = math.prod(tensor.shape) * dtype.itemsize
    if end - begin != needed:
        raise InvalidInput(
            f"{name}.data_offsets span {end - begin} bytes, "
            f"shape {tensor.shape} in {tensor.dtype} takes {needed}",
            param=f"{name}.data_offsets",
        )
    return np.frombuffer(buffer[begin:end], dtype).reshape(tensor.shape), tensor.dtype


def _listed(
    metadata: Mapping[str, str], key: str, codec: Codec[list[Any]], count: int, absent: object
) -> Sequence[Any]:
    """The metadata's JSON list of that name; `count` times `absent` if there is none."""
    if key not in metadata:
        return [absent] * count
    values = codec.decode(metadata[key].encode(), Format.JSON, key)
    if len(values) != count:
        raise InvalidInput(f"metadata {key} has {len(values)} items, lengths has {count}", param=key)
    return values

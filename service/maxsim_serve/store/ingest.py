"""From what a caller sends to packed rows: every check and conversion, before anything is written."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InvalidInput
from .spec import MAX_ID_BYTES, CollectionSpec, NewDocument, Rejected

__all__ = ["Prepared", "checked_vectors", "normalized", "prepare"]

_CHUNK_VALUES = 1 << 19  # converted together: large enough to forget the overhead, small enough for the cache
_INPUTS = tuple(np.dtype(name) for name in ("float16", "float32", "float64", "int8"))
# Of each stored dtype: integers of its size, everything but the sign, the exponent of infinity and NaN.
_BITS = {
    torch.float16: (torch.int16, 0x7FFF, 0x7C00),
    torch.bfloat16: (torch.int16, 0x7FFF, 0x7F80),
    torch.float32: (torch.int32, 0x7FFFFFFF, 0x7F800000),
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """Documents ready to be committed, in request order, and those that were rejected.

    `accepted` ids; `keys` the same in UTF-8; `lengths` int64 [n] rows; `packed` uint8, the bytes of all rows
    in the stored dtype; `crcs` the CRC-32 of each document's bytes.
    """

    spec: CollectionSpec
    accepted: list[str]
    rejected: list[Rejected]
    keys: list[bytes]
    lengths: NDArray[np.int64]
    packed: NDArray[np.uint8]
    crcs: list[int]
    texts: list[str | None]
    payloads: list[bytes | None]


@dataclass(frozen=True, slots=True)
class _Candidate:
    index: int
    key: bytes
    document: NewDocument


def checked_vectors(array: NDArray[np.generic], *, dim: int, field: str) -> NDArray[np.generic]:
    """The array itself, if it is [n ≥ 1, dim], finite, and float16, float32, float64 or int8.

    Raises InvalidInput with `param=field`.
    """
    _check_form(array, dim, field)
    if not _is_finite(array):
        row, column = np.argwhere(~np.isfinite(array))[0].tolist()
        raise InvalidInput(
            f"{field}: row {row}, column {column} is {array[row, column]}; every value must be finite",
            param=field,
        )
    return array


def _is_finite(array: NDArray[np.generic]) -> bool:
    if array.dtype == np.float16:  # of which NumPy sooner looks at the bits, by fifteen times
        return _bits_are_finite(array.view(np.int16), torch.float16)
    return bool(np.isfinite(array).all())


def _bits_are_finite(bits: NDArray[np.signedinteger], dtype: torch.dtype) -> bool:
    """Whether numbers of a dtype are, from their bits as integers."""
    _, magnitude, infinity = _BITS[dtype]
    return int((bits & magnitude).max()) < infinity


def normalized(array: NDArray[np.generic], *, field: str = "vectors") -> NDArray[np.float32]:
    """Rows [n, dim] scaled to unit length, float32. A row of zeros raises InvalidInput with `param=field`."""
    rows = _unit_rows(np.array(array))
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        row = int(bad.argmax())
        raise InvalidInput(
            f"{field}: row {row} is zero (or does not fit float32), so it has no direction to normalize to; "
            "leave it out, or use a collection with normalize: false",
            param=field,
        )
    return rows


def prepare(spec: CollectionSpec, documents: Sequence[NewDocument]) -> Prepared:
    """Check, convert and pack. Documents with a fault are rejected, by index and reason; the others stand."""
    candidates: list[_Candidate] = []
    rejected: list[Rejected] = []
    first_index: dict[str, int] = {}
    for index, document in enumerate(documents):
        try:
            key = _checked_key(document.id, index, first_index)
            _check_form(document.vectors, spec.dim, f"documents[{index}].vectors")
            _check_text(document.text, index)
            candidates.append(_Candidate(index, key, document))
        except InvalidInput as error:
            rejected.append(Rejected(index, document.id, error))

    packed = torch.empty(
        sum(len(candidate.document.vectors) for candidate in candidates), spec.dim, dtype=spec.torch_dtype
    )
    accepted: list[_Candidate] = []
    row = 0
    for chunk in _chunks(candidates, spec.dim):
        good = chunk
        while good:
            end = row + sum(len(candidate.document.vectors) for candidate in good)
            if _convert([candidate.document.vectors for candidate in good], packed[row:end], spec.normalize):
                accepted += good
                row = end
                break
            faults = [_fault(candidate, spec) for candidate in good]
            assert any(faults), "rows that do not convert, and no reason why"
            rejected += [fault for fault in faults if fault]
            good = [candidate for candidate, fault in zip(good, faults, strict=True) if not fault]
    return _sealed(spec, accepted, sorted(rejected, key=lambda r: r.index), packed[:row])


def _sealed(
    spec: CollectionSpec, accepted: list[_Candidate], rejected: list[Rejected], packed: torch.Tensor
) -> Prepared:
    lengths = np.array([len(candidate.document.vectors) for candidate in accepted], np.int64)
    packed_bytes: NDArray[np.uint8] = packed.view(torch.uint8).numpy().reshape(-1)
    view, ends = packed_bytes.data, (np.cumsum(lengths) * spec.row_bytes).tolist()
    return Prepared(
        spec=spec,
        accepted=[candidate.document.id for candidate in accepted],
        rejected=rejected,
        keys=[candidate.key for candidate in accepted],
        lengths=lengths,
        packed=packed_bytes,
        crcs=[zlib.crc32(view[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)],
        texts=[candidate.document.text for candidate in accepted],
        payloads=[candidate.document.payload for candidate in accepted],
    )


def _chunks(candidates: Sequence[_Candidate], dim: int) -> Iterator[list[_Candidate]]:
    """Runs of documents of one dtype, up to a size."""
    chunk: list[_Candidate] = []
    values = 0
    for candidate in candidates:
        vectors = candidate.document.vectors
        if chunk and (
            vectors.dtype != chunk[-1].document.vectors.dtype or values + vectors.size > _CHUNK_VALUES
        ):
            yield chunk
            chunk, values = [], 0
        chunk.append(candidate)
        values += vectors.size
    if chunk:
        yield chunk


def _convert(arrays: Sequence[NDArray[np.generic]], out: torch.Tensor, normalize: bool) -> bool:
    """Fill `out` [rows, dim] in its own dtype; whether all of it is finite."""
    if normalize:
        out.copy_(torch.from_numpy(_unit_rows(np.concatenate(arrays))))
    elif str(out.dtype) == f"torch.{arrays[0].dtype}":
        np.concatenate(arrays, out=out.numpy())
    else:
        out.copy_(torch.from_numpy(np.concatenate(arrays)))
    integer, *_ = _BITS[out.dtype]
    return _bits_are_finite(out.view(integer).numpy(), out.dtype)


def _fault(candidate: _Candidate, spec: CollectionSpec) -> Rejected | None:
    """Why this document cannot be stored, if it cannot."""
    field, vectors = f"documents[{candidate.index}].vectors", candidate.document.vectors
    try:
        checked_vectors(vectors, dim=spec.dim, field=field)
        if spec.normalize:
            normalized(vectors, field=field)
        else:
            _check_range(vectors, spec, field)
    except InvalidInput as error:
        return Rejected(candidate.index, candidate.document.id, error)
    return None


def _check_range(array: NDArray[np.generic], spec: CollectionSpec, field: str) -> None:
    overflow = ~torch.isfinite(torch.from_numpy(np.array(array)).to(spec.torch_dtype))
    if overflow.any():
        row, column = overflow.nonzero()[0].tolist()
        largest = torch.finfo(spec.torch_dtype).max
        raise InvalidInput(
            f"{field}: row {row}, column {column} is {array[row, column]}, and the largest {spec.dtype} is "
            f"{largest:g}; scale the vectors, or use a collection of another dtype",
            param=field,
        )


def _unit_rows(own: NDArray[np.generic]) -> NDArray[np.float32]:
    """Rows over their L2 norm, float32, perhaps in place; a row that has none becomes NaN."""
    rows: NDArray[np.float32] = torch.from_numpy(own).to(torch.float32).numpy()
    squares = np.einsum("ij,ij->i", rows, rows)
    norms = np.sqrt(squares)
    # Squares of very large or very small values leave float32: those few rows once more, in float64.
    unsure = ~((squares > 1e-30) & (squares < 1e30))
    if unsure.any():
        norms = norms.astype(np.float64)
        norms[unsure] = np.linalg.norm(rows[unsure].astype(np.float64), axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        np.divide(rows, norms[:, None], out=rows, casting="same_kind")
    return rows


def _checked_key(id: str, index: int, first_index: dict[str, int]) -> bytes:
    field = f"documents[{index}].id"
    try:
        key = id.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{field} {id!r} has a lone surrogate, which is not text", param=field) from None
    if not 1 <= len(key) <= MAX_ID_BYTES:
        raise InvalidInput(f"{field} has {len(key):,} bytes of UTF-8; use 1 to {MAX_ID_BYTES:,}", param=field)
    first = first_index.setdefault(id, index)
    if first != index:
        raise InvalidInput(
            f"{field} {id!r} is also the id of documents[{first}]; send each id once", param=field
        )
    return key


def _check_text(text: str | None, index: int) -> None:
    if text is not None:
        try:
            text.encode()
        except UnicodeEncodeError:
            field = f"documents[{index}].text"
            raise InvalidInput(f"{field} has a lone surrogate, which is not text", param=field) from None


def _check_form(array: NDArray[np.generic], dim: int, field: str) -> None:
    if array.dtype not in _INPUTS:
        known = ", ".join(str(dtype) for dtype in _INPUTS)
        raise InvalidInput(f"{field}: dtype {array.dtype} is not one of {known}", param=field)
    if array.ndim != 2:
        raise InvalidInput(f"{field}: shape {list(array.shape)} must be [rows, {dim}]", param=field)
    if len(array) == 0:
        raise InvalidInput(f"{field}: no rows; a document needs at least one token vector", param=field)
    if array.shape[1] != dim:
        raise InvalidInput(
            f"{field}: rows are {array.shape[1]} wide; this collection's dim is {dim}", param=field
        )

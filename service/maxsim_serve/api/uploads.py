"""An upsert's body, in any of its formats, as documents to encode and store. Runs off the event loop."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ..errors import InvalidInput
from . import bulk
from .answers import checked_count
from .content import Codec, Format
from .deps import ApiDeps, Limits
from .matrices import check_rows
from .query import TextOrMatrix, parsed_document, required_encoder
from .schemas import NewDocument, Refusal, UpsertRequest
from .splitter import split
from .wire import MalformedBody

__all__ = ["Batch", "Incoming", "decode", "refusal"]

# Below this, one uninterruptible call of the decoder takes less than about ten milliseconds.
_SPLIT_BYTES = 8 << 20


class _Identified(msgspec.Struct):
    id: str


_REQUEST: Codec[UpsertRequest] = Codec(UpsertRequest)
_DOCUMENT: Codec[NewDocument] = Codec(NewDocument)
_IDENTIFIED: Codec[_Identified] = Codec(_Identified)
_VALUE: Codec[object] = Codec(object)

_Piece = msgspec.Raw | memoryview


@dataclass(frozen=True, slots=True)
class Incoming:
    """A document whose values are checked; `index` is its place in the request.

    `content` is its vectors `[n, dim]`, or the text that they are to be made from.
    """

    index: int
    id: str
    content: TextOrMatrix
    text: str | None
    payload: bytes | None


@dataclass(frozen=True, slots=True)
class Batch:
    documents: list[Incoming]
    refusals: list[Refusal]


def decode(data: bytes | bytearray, form: Format, deps: ApiDeps) -> Batch:
    """One bad document is a refusal, by index. Raises for what is wrong with the body as a whole."""
    return (
        _decode_bulk(data, deps.limits) if form is Format.SAFETENSORS else _decode_documents(data, form, deps)
    )


def refusal(index: int, id: str | None, error: InvalidInput) -> Refusal:
    return Refusal(index=index, id=id, code=error.code, message=error.message, param=error.param)


def _decode_documents(data: bytes | bytearray, form: Format, deps: ApiDeps) -> Batch:
    pieces = _pieces(data, form)
    _check_count(len(pieces), deps.limits)
    batch = Batch([], [])
    for index, piece in enumerate(pieces):
        try:
            batch.documents.append(_document(index, piece, form, deps))
        except MalformedBody:
            raise
        except InvalidInput as error:
            batch.refusals.append(refusal(index, _id_of(piece, form), error))
    return batch


def _pieces(data: bytes | bytearray, form: Format) -> Sequence[_Piece]:
    """The documents, each still in the body's format."""
    if form is Format.JSON and len(data) >= _SPLIT_BYTES and (cut := split(data)) is not None:
        rest, documents = cut
        if not _REQUEST.decode(rest, form).documents:
            return documents
    return _REQUEST.decode(data, form).documents


def _document(index: int, piece: _Piece, form: Format, deps: ApiDeps) -> Incoming:
    field = f"documents[{index}]"
    document = _DOCUMENT.decode(piece, form, field)
    given = document.text if document.vectors is None else document.vectors
    if given is None:
        raise InvalidInput(f"{field} has neither vectors nor text", param=f"{field}.vectors")
    content_field = f"{field}.{'text' if document.vectors is None else 'vectors'}"
    content, text = parsed_document(given, content_field, deps.limits), document.text
    if isinstance(content, str):
        required_encoder(deps.encoder, content_field)
        text = content if text is None else text
    return Incoming(index, document.id, content, text, _payload(document.payload, form, f"{field}.payload"))


def _payload(raw: msgspec.Raw | msgspec.UnsetType, form: Format, field: str) -> bytes | None:
    """The payload as JSON, verbatim if it came so; null is none."""
    if raw is msgspec.UNSET:
        return None
    value = _VALUE.decode(raw, form, field)  # also checks the numbers, which finding its end did not
    if value is None:
        return None
    if form is Format.JSON:
        return bytes(raw)
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{field} cannot be written as JSON: {error}", param=field) from None


def _id_of(piece: _Piece, form: Format) -> str | None:
    try:
        return _IDENTIFIED.decode(piece, form).id
    except InvalidInput:
        return None


def _decode_bulk(data: bytes | bytearray, limits: Limits) -> Batch:
    documents = bulk.parse(data)
    _check_count(len(documents.ids), limits)
    batch = Batch([], [])
    for index, id in enumerate(documents.ids):
        field = f"documents[{index}]"
        rows = documents.rows(index)
        try:
            check_rows(len(rows), limits.max_document_tokens, f"{field}.vectors", "max_document_tokens")
            payload = _payload(documents.payloads[index], Format.JSON, f"{field}.payload")
        except InvalidInput as error:
            batch.refusals.append(refusal(index, id, error))
        else:
            batch.documents.append(Incoming(index, id, rows, documents.texts[index], payload))
    return batch


def _check_count(count: int, limits: Limits) -> None:
    checked_count(count, limits.max_documents_per_upsert, "documents", "max_documents_per_upsert")

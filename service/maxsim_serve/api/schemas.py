"""The bodies, defined once: the decoders, the answers and the OpenAPI document all come from these.

Unknown fields are ignored. A `msgspec.Raw` field is decoded later, item by item, so that one bad
item is reported by its index and the interpreter lock is free in between; its schema is named by hand.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

__all__ = [
    "Answer",
    "CollectionRequest",
    "DeleteAnswer",
    "DeleteRequest",
    "Document",
    "DocumentAnswer",
    "InlineDocument",
    "Match",
    "NestedVectors",
    "NewDocument",
    "PackedVectors",
    "Refusal",
    "RerankRequest",
    "Result",
    "SearchRequest",
    "UpsertAnswer",
    "UpsertRequest",
    "VectorDtype",
]

VectorDtype = Literal["float32", "float16", "bfloat16", "int8"]


class PackedVectors(Struct):
    """A token matrix as little-endian bytes, row by row: base64 in JSON, raw bytes in MessagePack."""

    data: bytearray  # of its own, so that PyTorch takes it without a copy
    shape: tuple[int, int]
    dtype: VectorDtype


NestedVectors = list[list[float]]

_Query = Annotated[
    str | NestedVectors | PackedVectors,
    Meta(description="Text (needs an encoder) or the query's token vectors, one row a token."),
]


class InlineDocument(Struct):
    """A document in the request: either `text`, or `data` with `shape` and `dtype`."""

    text: str | UnsetType = UNSET
    data: bytearray | UnsetType = UNSET
    shape: tuple[int, int] | UnsetType = UNSET
    dtype: VectorDtype | UnsetType = UNSET


_ANY_INLINE_DOCUMENT = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        {"$ref": "#/components/schemas/InlineDocument"},
    ]
}


class RerankRequest(Struct, kw_only=True):
    """Rank stored documents by id, or documents that come along. Exactly one of `ids` and `documents`."""

    query: _Query
    ids: Annotated[list[str], Meta(description="Stored candidates; duplicates keep their places.")] | None = (
        None
    )
    documents: (
        Annotated[
            list[Annotated[Raw, Meta(extra_json_schema=_ANY_INLINE_DOCUMENT)]],
            Meta(description="Candidates that come along, scored as they are: nothing is normalized."),
        ]
        | None
    ) = None
    collection: Annotated[str, Meta(description="Where the ids are stored.")] | None = None
    top_n: Annotated[int, Meta(ge=0, description="Results wanted; 0 or null means all.")] | None = None
    return_documents: bool = False
    explain: bool = False


class SearchRequest(Struct, kw_only=True):
    """The exact top `top_k` of a whole collection, or of those of its documents that `ids` names."""

    query: _Query
    collection: str | None = None
    top_k: Annotated[int, Meta(ge=1)] = 10
    ids: list[str] | None = None
    return_documents: bool = False
    explain: bool = False


class Match(Struct, gc=False):
    """The document token (row number) that a query token matched best, and their similarity."""

    query_token: int
    token: int
    similarity: float


class Document(Struct, omit_defaults=True):
    text: str | UnsetType = UNSET
    payload: Any = UNSET


# Made a thousand at a time, so out of the garbage collector's sight: no result is in a cycle.
class Result(Struct, omit_defaults=True, gc=False):
    """`relevance_score` is the raw MaxSim score, `index` the position in the request."""

    relevance_score: float
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    document: Document | UnsetType = UNSET
    explanation: list[Match] | UnsetType = UNSET


class Usage(Struct):
    query_tokens: int
    document_tokens: int


class RankMeta(Struct, kw_only=True, omit_defaults=True):
    """`timings_ms` maps a stage to milliseconds; `kernel` is shared with the requests scored together.

    `engine_ms` is from the look-up of the candidates to their order: the stages in between, and waits.
    """

    collection: str | UnsetType = UNSET
    candidates: int
    kernel: str
    engine_ms: float
    timings_ms: dict[str, float]


class Answer(Struct, kw_only=True):
    id: str
    object: str
    model: str
    results: list[Result]
    missing: Annotated[list[str], Meta(description="Ids of the request that are not stored.")]
    usage: Usage
    meta: RankMeta


class CollectionRequest(Struct, kw_only=True):
    """`dim` may be left out where an encoder is set: its width is taken."""

    dim: Annotated[int, Meta(ge=1)] | None = None
    dtype: Annotated[Literal["float16", "bfloat16", "float32"], Meta(description="The stored form.")] = (
        "float16"
    )
    normalize: Annotated[bool, Meta(description="L2-normalize each row, of documents and queries.")] = False
    tier: Annotated[
        Literal["auto", "gpu", "host"],
        Meta(description="Where the rows are to be; auto: on the GPU while they fit."),
    ] = "auto"


class NewDocument(Struct, kw_only=True):
    """`vectors` as text, or `text` without vectors, is encoded and kept as text."""

    id: str
    vectors: str | NestedVectors | PackedVectors | None = None
    text: str | None = None
    payload: Annotated[Raw, Meta(extra_json_schema={"description": "Any JSON value."})] | UnsetType = UNSET


class UpsertRequest(Struct):
    documents: list[Annotated[Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/NewDocument"})]]


class Refusal(Struct, kw_only=True):
    """One document that was not stored; `index` is its place in the request."""

    index: int
    id: str | None
    status: int = 422
    code: str
    message: str
    param: str | None


class UpsertAnswer(Struct, kw_only=True, omit_defaults=True):
    """`upserted` documents of this request are durable; the collection now holds `total`."""

    upserted: int
    total: int
    errors: list[Refusal] | UnsetType = UNSET


class DocumentAnswer(Struct, kw_only=True, omit_defaults=True):
    """A stored document as it is scored: `vectors` are fp32, nested lists in JSON, packed in MessagePack."""

    id: str
    tokens: int
    generation: int
    text: str | UnsetType = UNSET
    payload: Any = UNSET
    vectors: NestedVectors | PackedVectors | UnsetType = UNSET


class DeleteRequest(Struct):
    ids: list[str]


class DeleteAnswer(Struct):
    deleted: list[str]
    missing: list[str]

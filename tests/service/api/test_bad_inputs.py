"""Bad and borderline inputs: each with its status and what the message says. None is a 500 or leaves a trace."""

# ruff: noqa: E501  (a table: one case a line)

import base64
import json
import struct
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

DIM = 16
ROW = [1.0] + [0.0] * (DIM - 1)
PUT = "/collections/default/documents"
JSON = {"content-type": "application/json"}
MSGPACK = {"content-type": "application/msgpack"}
SAFETENSORS = {"content-type": "application/vnd.safetensors"}


@dataclass
class Case:
    """One request and its answer; `says` must be in the message, `param` is what it is about."""

    name: str
    method: str
    path: str
    status: int
    says: str = ""
    param: str | None = None
    json: Any = None
    content: str | bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)


def rerank(name: str, status: int, says: str = "", param: str | None = None, **body: Any) -> Case:
    """A rerank that is good but for what `body` changes; None leaves a field out."""
    whole = {"query": [ROW], "ids": ["a", "b"]} | body
    return Case(
        name, "POST", "/rerank", status, says, param, json={k: v for k, v in whole.items() if v is not None}
    )


def raw(name: str, status: int, says: str, param: str | None, content: str | bytes, **headers: str) -> Case:
    given = {key.replace("_", "-"): value for key, value in headers.items()} or JSON
    return Case(name, "POST", "/rerank", status, says, param, content=content, headers=given)


def upsert(name: str, status: int, says: str = "", param: str | None = None, *documents: Any) -> Case:
    return Case(name, "PUT", PUT, status, says, param, json={"documents": list(documents)})


def packed(data: bytes, shape: list[int], dtype: str) -> dict[str, Any]:
    return {"data": base64.b64encode(data).decode(), "shape": shape, "dtype": dtype}


def safetensors(name: str, says: str, param: str | None, status: int = 422, **changes: Any) -> Case:
    """A body of two documents that is good but for `changes` to its header."""
    header = {
        "tokens": {"dtype": "F32", "shape": [3, DIM], "data_offsets": [0, 12 * DIM]},
        "lengths": {"dtype": "I64", "shape": [2], "data_offsets": [12 * DIM, 12 * DIM + 16]},
        "__metadata__": {"ids": '["s", "t"]'},
    }
    lengths = changes.pop("lengths_are", [1, 2])
    for key, value in changes.items():
        header[key] = header[key] | value if isinstance(value, dict) else value
    head = json.dumps({k: v for k, v in header.items() if v is not None}).encode()
    body = struct.pack("<Q", len(head)) + head + np.ones((3, DIM), np.float32).tobytes()
    return Case(
        f"safetensors, {name}", "PUT", PUT, status, says, param,
        content=body + np.array(lengths, np.int64).tobytes(), headers=SAFETENSORS,
    )  # fmt: skip


def with_query(literal: str) -> str:
    return f'{{"query": [[{literal}{", 0" * (DIM - 1)}]], "ids": ["a"]}}'


QUERIES = [
    raw("NaN literal", 400, "not JSON", None, with_query("NaN")),
    raw("Infinity literal", 400, "not JSON", None, with_query("Infinity")),
    raw("-Infinity literal", 400, "not JSON", None, with_query("-Infinity")),
    raw("1e400", 422, "out of range", "query[0][0]", with_query("1e400")),
    raw("an integer of 400 digits", 422, "out of range", "query[0][0]", with_query("9" * 400)),
    raw("1e39, too large for float32", 422, "finite", "query", with_query("1e39")),
    rerank("bool for a number", 422, "got `bool`", "query[0][0]", query=[[True] * DIM]),
    rerank("null for a number", 422, "got `null`", "query[0][1]", query=[[1.0, None]]),
    rerank("text for a number", 422, "got `str`", "query[0][0]", query=[["1"] * DIM]),
    rerank("wrong width", 422, "24", "query", query=[[1.0] * 24]),
    rerank("ragged rows", 422, "ragged", "query[1]", query=[ROW, ROW[:-1]]),
    rerank("no rows", 422, "query is empty", "query", query=[]),
    rerank("rows without numbers", 422, "without numbers", "query", query=[[]]),
    rerank("a query of one axis", 422, "got `float`", "query[0]", query=[1.0, 2.0]),
    rerank("three axes", 422, "got `array`", "query[0][0]", query=[[[1.0]]]),
    rerank("a blank query", 422, "blank", "query", query=" \t"),
    rerank("a number", 422, "got `int`", "query", query=3),
    raw("query null", 422, "got `null`", "query", '{"query": null, "ids": ["a"]}'),
    rerank("no query", 422, "missing required field", "query", query=None),
    rerank("as many rows as allowed", 200, query=[ROW] * 32),
    rerank("a row too many", 422, "max_query_tokens allows 32", "query", query=[ROW] * 33),
    rerank("bad base64", 422, "base64", "query.data", query={"data": "?!", "shape": [1, DIM], "dtype": "float32"}),
    rerank(
        "float32 bytes called float16", 422, "declare dtype float32", "query.data",
        query=packed(np.ones((2, DIM), np.float32).tobytes(), [2, DIM], "float16"),
    ),
    rerank("shape of more numbers than bytes", 422, "shape [3, 16] in float32 takes 192", "query.data",
           query=packed(bytes(128), [3, DIM], "float32")),
    rerank("shape that overflows", 422, "takes", "query.data", query=packed(bytes(64), [2**40, 2**40], "float32")),
    rerank("shape of integers beyond 64 bits", 422, "", "query.data", query=packed(b"", [2**70, 1], "int8")),
    rerank("negative shape", 422, "at least 1", "query.shape", query=packed(bytes(64), [-1, -DIM], "float32")),
    rerank("no rows packed", 422, "at least 1", "query.shape", query=packed(b"", [0, DIM], "float32")),
    rerank("shape of three", 422, "length 2", "query.shape", query=packed(bytes(64), [1, 1, DIM], "float32")),
    rerank("unknown dtype", 422, "float64", "query.dtype", query=packed(bytes(128), [1, DIM], "float64")),
    rerank("packed without shape", 422, "missing required field", "query.shape", query={"data": "", "dtype": "int8"}),
    rerank("NaN in float32 bytes", 422, "row 1, column 2", "query", query=packed(
        np.array([ROW, [0, 0, np.nan] + [0] * (DIM - 3)], "<f4").tobytes(), [2, DIM], "float32")),
    rerank("infinity in float16 bytes", 422, "finite", "query", query=packed(
        np.array([[np.inf] + [0] * (DIM - 1)], "<f2").tobytes(), [1, DIM], "float16")),
    rerank("NaN in bfloat16 bytes", 422, "finite", "query", query=packed(
        np.array([0x7FC0] * DIM, "<u2").tobytes(), [1, DIM], "bfloat16")),
    raw("NaN in msgpack", 422, "finite", "query",
        msgspec.msgpack.encode({"query": [[float("nan"), *ROW[1:]]], "ids": ["a"]}), content_type="application/msgpack"),
    Case("zero row where the collection normalizes", "POST", "/c/unit/rerank", 422, "zero", "query",
         json={"query": [[0.0] * DIM], "ids": ["a"]}),
    rerank("finite, but the score is not", 422, "float32", "query", query=[[3e38] * DIM]),
]  # fmt: skip

CANDIDATES = [
    rerank("empty ids", 422, "ids is empty", "ids", ids=[]),
    rerank("empty documents", 422, "documents is empty", "documents", ids=None, documents=[]),
    rerank("both ids and documents", 422, "exactly one", "ids", documents=["a"]),
    rerank("neither ids nor documents", 422, "exactly one", "ids", ids=None),
    rerank("unknown ids", 200, ids=["no", "such"]),
    rerank("duplicate ids", 200, ids=["a", "a"]),
    rerank("id of another type", 422, "got `int`", "ids[1]", ids=["a", 7]),
    rerank("id null", 422, "got `null`", "ids[0]", ids=[None]),
    rerank("an id longer than any", 200, ids=["x" * 5000]),
    rerank("as many ids as allowed", 200, ids=["a"] * 50),
    rerank("an id too many", 422, "max_candidates allows 50", "ids", ids=["a"] * 51),
    rerank("a document too many", 422, "max_candidates allows 50", "documents", ids=None, documents=["a"] * 51),
    rerank("blank document", 422, "documents[1] is blank", "documents[1]", ids=None, documents=["a", " "]),
    rerank("document null", 422, "got `null`", "documents[0]", ids=None, documents=[None]),
    rerank("document without content", 422, "needs text", "documents[0]", ids=None, documents=[{"title": "x"}]),
    rerank("document half packed", 422, "shape and dtype", "documents[0]", ids=None, documents=[{"data": ""}]),
    rerank("document of another width", 422, "documents[1] has 24", "documents[1]",
           ids=None, documents=[[ROW], [[1.0] * 24]]),
    rerank("all documents of another width than the query", 422, "columns", "query", ids=None, documents=[[[1.0] * 24]]),
    rerank("ragged document", 422, "ragged", "documents[1][1]", ids=None, documents=[[ROW], [ROW, [1.0]]]),
    rerank("document row too many", 422, "max_document_tokens allows 64", "documents[0]", ids=None, documents=[[ROW] * 65]),
    rerank("number out of range in a document", 422, "finite", "documents[0]", ids=None, documents=[[[1e200] * DIM]]),
    rerank("unknown collection", 404, "no collection 'nowhere'", "collection", collection="nowhere"),
    rerank("collection of another type", 422, "got `int`", "collection", collection=1),
    Case("unknown collection in the path", "POST", "/c/nowhere/rerank", 404, "nowhere", "collection",
         json={"query": [ROW], "ids": ["a"]}),
    rerank("unknown fields", 200, max_chunks_per_doc=3, priority={"a": []}),
]  # fmt: skip

NUMBERS = [
    raw("top_n null", 200, "", None, '{"query": "a", "ids": ["a"], "top_n": null}'),
    rerank("top_n 0", 200, top_n=0),
    rerank("top_n -1", 422, ">= 0", "top_n", top_n=-1),
    rerank("top_n 2^31", 200, top_n=2**31),
    rerank("top_n 10^30", 200, top_n=10**30),
    raw("top_n 1e999", 422, "out of range", "top_n", '{"query": "a", "ids": ["a"], "top_n": 1e999}'),
    rerank("top_n 1.5", 422, "got `float`", "top_n", top_n=1.5),
    rerank("top_n true", 422, "got `bool`", "top_n", top_n=True),
    rerank("top_n as text", 422, "got `str`", "top_n", top_n="3"),
    rerank("explain as text", 422, "got `str`", "explain", explain="yes"),
    Case("top_k 0", "POST", "/search", 422, ">= 1", "top_k", json={"query": [ROW], "top_k": 0}),
    Case("top_k as allowed", "POST", "/search", 200, json={"query": [ROW], "top_k": 100}),
    Case("top_k too large", "POST", "/search", 422, "max_top_k allows 100", "top_k", json={"query": [ROW], "top_k": 101}),
    Case("search of no ids", "POST", "/search", 422, "ids is empty", "ids", json={"query": [ROW], "ids": []}),
]  # fmt: skip

BODIES = [
    raw("empty body", 400, "not JSON", None, b""),
    raw("not JSON", 400, "not JSON", None, b"query=a&ids=b"),
    raw("JSON cut short", 400, "not JSON", None, b'{"query": "a", "ids": ["a"'),
    raw("JSON and more", 400, "not JSON", None, b'{"query": "a", "ids": ["a"]} x'),
    raw("an array at the top", 422, "expected `object`", None, b"[]"),
    raw("a number at the top", 422, "expected `object`", None, b"3"),
    raw("not UTF-8", 400, "UTF-8", None, b'{"query": "\xff", "ids": ["a"]}'),
    raw("a lone surrogate", 400, "not JSON", None, rb'{"query": "a", "ids": ["\ud800"]}'),
    raw("nested too deeply", 422, "nested too deeply", None, '{"query": "a", "x": ' + "[" * 40_000),
    raw("msgpack nested too deeply", 422, "nested too deeply", None, b"\x82\xa1x" + b"\x91" * 40_000, content_type="application/msgpack"),
    raw("msgpack garbage", 400, "not MSGPACK", None, b"\xc1\x00", content_type="application/msgpack"),
    raw("msgpack cut short", 400, "not MSGPACK", None, b"\x81\xa5query", content_type="application/msgpack"),
    raw("msgpack of another type", 422, "expected `object`", None, b"\x90", content_type="application/msgpack"),
    raw("a form", 415, "application/json, application/msgpack", "content-type", b"a=b",
        content_type="application/x-www-form-urlencoded"),
    raw("safetensors to rerank", 415, "send application/json", "content-type", b"", content_type="application/vnd.safetensors"),
    raw("JSON with a charset", 200, "", None, '{"query": "a", "ids": ["a"]}', content_type="application/json; charset=utf-8"),
    Case("octet-stream to documents", "PUT", PUT, 415, "application/vnd.safetensors", "content-type",
         content=b"", headers={"content-type": "application/octet-stream"}),
    Case("wrong method", "GET", "/rerank", 405, "GET is not a method of /rerank"),
    Case("unknown route", "POST", "/v9/rerank", 404, "no route /v9/rerank"),
    Case("a trailing slash", "POST", "/rerank/", 404, "no route /rerank/"),
]  # fmt: skip

UPSERTS = [
    upsert("no documents", 422, "documents is empty", "documents"),
    Case("documents null", "PUT", PUT, 422, "got `null`", "documents", json={"documents": None}),
    Case("documents missing", "PUT", PUT, 422, "missing required field", "documents", json={}),
    upsert("a document too many for one upsert", 422, "max_documents_per_upsert allows 20", "documents",
           *({"id": str(i), "vectors": [ROW]} for i in range(21))),
    upsert("document of another type", 422, "got `int`", "documents", 3),
    upsert("no id", 422, "documents[0].id", "documents", {"vectors": [ROW]}),
    upsert("empty id", 422, "documents[0].id", "documents", {"id": "", "vectors": [ROW]}),
    upsert("id of 1 KiB and a byte", 422, "1,024", "documents", {"id": "x" * 1025, "vectors": [ROW]}),
    upsert("id of 1 KiB and two bytes in 513 letters", 422, "1,024", "documents", {"id": "é" * 513, "vectors": [ROW]}),
    upsert("numeric id", 422, "got `int`", "documents", {"id": 7, "vectors": [ROW]}),
    upsert("neither vectors nor text", 422, "neither vectors nor text", "documents", {"id": "n"}),
    upsert("null vectors", 422, "neither vectors nor text", "documents", {"id": "n", "vectors": None}),
    upsert("empty matrix", 422, "documents[0].vectors is empty", "documents", {"id": "n", "vectors": []}),
    upsert("blank text", 422, "documents[0].text is blank", "documents", {"id": "n", "text": ""}),
    upsert("wrong width of a document", 422, "24", "documents", {"id": "n", "vectors": [[1.0] * 24]}),
    upsert("a row too many in a document", 422, "max_document_tokens allows 64", "documents", {"id": "n", "vectors": [ROW] * 65}),
    upsert("float32 bytes called bfloat16", 422, "declare dtype float32", "documents",
           {"id": "n", "vectors": packed(bytes(4 * DIM), [1, DIM], "bfloat16")}),
    upsert("NaN in bytes", 422, "documents[0].vectors", "documents",
           {"id": "n", "vectors": packed(np.full((1, DIM), np.nan, "<f4").tobytes(), [1, DIM], "float32")}),
    Case("NaN literal in a document", "PUT", PUT, 400, "not JSON", json=None,
         content='{"documents": [{"id": "n", "vectors": [[NaN]]}]}', headers=JSON),
    Case("a payload that is no number", "PUT", PUT, 422, "documents[0].payload", "documents",
         content='{"documents": [{"id": "n", "vectors": "a", "payload": 1e400}]}', headers=JSON),
    Case("a payload nested too deeply", "PUT", PUT, 422, "nested too deeply", None,
         content='{"documents": [{"id": "n", "vectors": "a", "payload": ' + "[" * 20_000 + "]" * 20_000 + "}]}", headers=JSON),
    Case("a msgpack payload that JSON cannot hold", "PUT", PUT, 422, "documents[0].payload", "documents",
         content=msgspec.msgpack.encode({"documents": [{"id": "n", "vectors": "a", "payload": msgspec.msgpack.Ext(5, b"")}]}),
         headers=MSGPACK),
    Case("zero row to a collection that normalizes", "PUT", "/collections/unit/documents", 422, "row 0 is zero", "documents",
         json={"documents": [{"id": "n", "vectors": [[0.0] * DIM]}]}),
    Case("a number too large for float16", "PUT", "/collections/unit16/documents", 422, "float16", "documents",
         json={"documents": [{"id": "n", "vectors": [[1e5] * DIM]}]}),
    Case("documents to an unknown collection", "PUT", "/collections/nowhere/documents", 404, "nowhere", "collection",
         json={"documents": []}),
    Case("unknown document", "GET", f"{PUT}/no/such", 404, "no/such", "id"),
    Case("no document id", "GET", f"{PUT}/", 404, "no route"),
    Case("bad flag", "GET", f"{PUT}/a?vectors=maybe", 422, "use true or false", "vectors"),
    Case("delete nothing", "POST", f"{PUT}/delete", 422, "ids is empty", "ids", json={"ids": []}),
    Case("delete what is not there", "POST", f"{PUT}/delete", 200, json={"ids": ["no", "such"]}),
]  # fmt: skip

BULK = [
    safetensors("lengths that sum to less", "lengths sum to 2", "lengths", lengths_are=[1, 1]),
    safetensors("lengths that sum to more", "lengths sum to 4", "lengths", lengths_are=[2, 2]),
    safetensors("a negative length", "lengths[0] is -1", "lengths[0]", lengths_are=[-1, 4]),
    safetensors("lengths that overflow", "lengths[0] is 9223372036854775807", "lengths[0]", lengths_are=[2**63 - 1, 4]),
    safetensors("offsets beyond the body", "data_offsets", "tokens.data_offsets", tokens={"data_offsets": [0, 10**12]}),
    safetensors("offsets backwards", "data_offsets", "tokens.data_offsets", tokens={"data_offsets": [192, 0]}),
    safetensors("negative offsets", "data_offsets", "tokens.data_offsets", tokens={"data_offsets": [-192, 0]}),
    safetensors("a shape that needs more bytes", "takes 256", "tokens.data_offsets", tokens={"shape": [4, DIM]}),
    safetensors("a negative shape", "none negative", "tokens.shape", tokens={"shape": [-3, -DIM]}),
    safetensors("a vast and empty shape", "tokens.shape", "tokens.shape", tokens={"shape": [0, 2**70], "data_offsets": [0, 0]}),
    safetensors("one axis", "2 axes", "tokens.shape", tokens={"shape": [3 * DIM]}),
    safetensors("float32 called float16", "takes 96", "tokens.data_offsets", tokens={"dtype": "F16"}),
    safetensors("an unknown dtype", "F64", "tokens.dtype", tokens={"dtype": "F64"}),
    safetensors("lengths of 32 bits", "send I64", "lengths.dtype", lengths={"dtype": "I32"}),
    safetensors("no tokens", "tensor tokens is missing", "tokens", tokens=None),
    safetensors("a tensor that is none", "expected `object`", "lengths", lengths=7),
    safetensors("no ids", "ids is missing", "ids", __metadata__=None),
    safetensors("too few ids", "has 1 items, lengths has 2", "ids", __metadata__={"ids": '["s"]'}),
    safetensors("ids that are no list", "expected `array`", "ids", __metadata__={"ids": '"s"'}),
    safetensors("ids that are no JSON", "ids is not JSON", "ids", 400, __metadata__={"ids": "s, t"}),
    Case("safetensors, empty", "PUT", PUT, 400, "begins with", content=b"", headers=SAFETENSORS),
    Case("safetensors, header beyond the body", "PUT", PUT, 400, "claims 255 bytes", content=b"\xff" + bytes(7), headers=SAFETENSORS),
    Case("safetensors, header of no size", "PUT", PUT, 400, "not JSON", "header", content=bytes(8), headers=SAFETENSORS),
    Case("safetensors, no documents", "PUT", PUT, 422, "documents is empty", "documents", headers=SAFETENSORS,
         content=(head := b'{"tokens":{"dtype":"F32","shape":[0,16],"data_offsets":[0,0]},"lengths":{"dtype":"I64",'
                  b'"shape":[0],"data_offsets":[0,0]},"__metadata__":{"ids":"[]"}}') and struct.pack("<Q", len(head)) + head),
]  # fmt: skip

COLLECTIONS = [
    Case("the same collection again", "PUT", "/collections/default", 200, json={"dim": DIM, "dtype": "float32"}),
    Case("the same name, another dim", "PUT", "/collections/default", 409, "dim 16", "collection", json={"dim": 32, "dtype": "float32"}),
    Case("the same name, another dtype", "PUT", "/collections/default", 409, "float32", "collection", json={"dim": DIM}),
    Case("dim 0", "PUT", "/collections/new", 422, ">= 1", "dim", json={"dim": 0}),
    Case("dim that is no multiple of 8", "PUT", "/collections/new", 422, "multiple of 8", "dim", json={"dim": 20}),
    Case("dim beyond 64 bits", "PUT", "/collections/new", 422, "dim", "dim", json={"dim": 8 * 10**30}),
    Case("unknown dtype of a collection", "PUT", "/collections/new", 422, "int4", "dtype", json={"dim": DIM, "dtype": "int4"}),
    Case("normalize as a number", "PUT", "/collections/new", 422, "got `int`", "normalize", json={"dim": DIM, "normalize": 1}),
    Case("a name with a dot in front", "PUT", "/collections/.hidden", 422, "'.hidden'", "name", json={"dim": DIM}),
    Case("a name with a space", "PUT", "/collections/a%20b", 422, "'a b'", "name", json={"dim": DIM}),
    Case("a name too long", "PUT", "/collections/" + "x" * 65, 422, "1 to 64", "name", json={"dim": DIM}),
    Case("a name with a slash", "PUT", "/collections/a%2Fb", 404, "no route"),
    Case("an emoji for a name", "PUT", "/collections/%F0%9F%A6%8A", 422, "letters", "name", json={"dim": DIM}),
    Case("describe an unknown collection", "GET", "/collections/nowhere", 404, "nowhere", "collection"),
    Case("drop an unknown collection", "DELETE", "/collections/nowhere", 404, "nowhere", "collection"),
    Case("compact an unknown collection", "POST", "/collections/nowhere/compact", 404, "nowhere", "collection"),
]  # fmt: skip

CASES = QUERIES + CANDIDATES + NUMBERS + BODIES + UPSERTS + BULK + COLLECTIONS


@pytest.fixture(scope="module")
def service(build_once: Any) -> Any:
    service = build_once()
    for name, body in {
        "default": {"dim": DIM, "dtype": "float32"},
        "unit": {"dim": DIM, "normalize": True},
        "unit16": {"dim": DIM},
    }.items():
        service("PUT", f"/collections/{name}", json=body)
    documents = [{"id": "a", "vectors": [[2.0] * DIM]}, {"id": "b", "text": "b"}]
    assert service("PUT", PUT, json={"documents": documents}).status_code == 200
    return service


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_input_has_its_answer(service: Any, case: Case) -> None:
    before = service.counts()
    response = service(case.method, case.path, json=case.json, content=case.content, headers=case.headers)
    assert response.status_code == case.status, response.text
    if case.status >= 400:
        check_body(response)
        assert case.says in response.json()["message"], response.json()["message"]
        assert response.json()["error"]["param"] == case.param
    assert service.counts() == before


def check_body(response: httpx.Response) -> None:
    body = response.json()
    assert (
        {"error", "message", "detail", "request_id"}
        <= set(body)
        <= {"error", "message", "detail", "request_id", "errors"}
    )
    assert set(body["error"]) == {"message", "type", "code", "param"}
    assert body["message"] == body["detail"] == body["error"]["message"]
    assert body["error"]["type"]
    assert body["error"]["code"]
    assert body["request_id"] == response.headers["x-request-id"]


def test_the_table_is_long_enough_and_no_case_is_there_twice() -> None:
    assert len(CASES) >= 45
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.status != 500 for case in CASES)


def body_of(size: int) -> bytes:
    start = b'{"query": "a", "ids": ["a"], "x": "'
    return start + b"x" * (size - len(start) - 2) + b'"}'


@pytest.mark.parametrize("announced", [True, False], ids=["with Content-Length", "chunked"])
@pytest.mark.parametrize(("over", "status"), [(0, 200), (1, 413)], ids=["at the limit", "a byte over"])
def test_the_body_limit(service: Any, announced: bool, over: int, status: int) -> None:
    body = body_of(100_000 + over)

    async def chunks():
        for start in range(0, len(body), 7000):
            yield body[start : start + 7000]

    before = service.counts()
    for path in ("/rerank", "/search"):
        response = service("POST", path, content=body if announced else chunks(), headers=JSON)
        assert ("content-length" in response.request.headers) is announced
        assert response.status_code == status, path
        if over:
            check_body(response)
            assert response.json()["error"]["param"] == "max_body_bytes"
            assert "100000" in response.json()["message"]
    assert service.counts() == before


@pytest.mark.parametrize("length", ["9" * 19, "9" * 5000, "²", "-1", "x"])
def test_a_strange_content_length_is_no_fault(service: Any, length: str) -> None:
    headers = [(b"content-length", length.encode("latin-1")), (b"content-type", b"application/json")]
    response = service("POST", "/rerank", content=body_of(100), headers=headers)
    assert response.status_code == (413 if length.startswith("9") else 200)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/rerank", {"query": "words", "ids": ["a"]}, "query"),
        ("/search", {"query": "words"}, "query"),
        ("/rerank", {"query": [ROW], "documents": [[ROW], "words"]}, "documents[1]"),
    ],
)
def test_text_without_an_encoder_names_the_setting(build, path: str, body: Any, param: str) -> None:
    service = build(encoder=False)
    service("PUT", "/collections/default", json={"dim": DIM})
    response = service("POST", path, json=body)
    assert response.status_code == 422
    check_body(response)
    assert "setting encoder is none" in response.json()["message"]
    assert response.json()["error"]["param"] == param


def test_documents_as_text_without_an_encoder_are_refused_by_index(build) -> None:
    service = build(encoder=False)
    assert service("PUT", "/collections/default", json={}).json()["error"]["param"] == "dim"
    service("PUT", "/collections/default", json={"dim": DIM})
    documents = [{"id": "t", "text": "words"}, {"id": "v", "vectors": [ROW]}]
    response = service("PUT", PUT, json={"documents": documents})
    assert response.status_code == 207
    assert [(e["index"], e["code"]) for e in response.json()["errors"]] == [(0, "no_encoder")]

"""Documents over HTTP: every format of an upsert, partial success, reading back, deleting."""

import base64
import json
import struct
import threading
import time
from urllib.parse import quote

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save

DIM = 16
DOCUMENTS = "/collections/default/documents"
SAFETENSORS = {"content-type": "application/vnd.safetensors"}
MSGPACK = {"content-type": "application/msgpack", "accept": "application/msgpack"}


def rows(rng, count):
    return rng.standard_normal((count, DIM)).astype(np.float32)


def read(service, id, **params):
    return service("GET", f"{DOCUMENTS}/{quote(id, safe='')}", params=params)


def test_each_form_of_vectors_is_stored_exactly(service, rng):
    matrix = rows(rng, 3)
    half = matrix.astype(np.float16)
    data = {"data": base64.b64encode(half.tobytes()).decode(), "shape": [3, DIM], "dtype": "float16"}
    body = {"documents": [{"id": "nested", "vectors": matrix.tolist()}, {"id": "packed", "vectors": data}]}
    assert service("PUT", DOCUMENTS, json=body).json() == {"upserted": 2, "total": 2}
    raw = {"data": matrix.tobytes(), "shape": [3, DIM], "dtype": "float32"}
    response = service(
        "PUT",
        DOCUMENTS,
        content=msgspec.msgpack.encode({"documents": [{"id": "raw", "vectors": raw, "payload": {"a": 1}}]}),
        headers=MSGPACK,
    )
    assert msgspec.msgpack.decode(response.content) == {"upserted": 1, "total": 3}

    assert read(service, "nested").json()["vectors"] == matrix.tolist()
    assert read(service, "packed").json()["vectors"] == half.astype(np.float32).tolist()
    assert read(service, "raw").json()["payload"] == {"a": 1}
    response = service("GET", f"{DOCUMENTS}/raw", headers=MSGPACK)
    vectors = msgspec.msgpack.decode(response.content)["vectors"]
    assert vectors == {"data": matrix.tobytes(), "shape": [3, DIM], "dtype": "float32"}


def test_text_is_encoded_and_kept(service, rng):
    documents = [
        {"id": "text", "text": "three plain words"},
        {"id": "vectors as text", "vectors": "two words"},
        {"id": "both", "vectors": rows(rng, 5).tolist(), "text": "not what was encoded"},
        {"id": "two texts", "vectors": "encode this", "text": "keep this"},
    ]
    assert service("PUT", DOCUMENTS, json={"documents": documents}).json()["upserted"] == 4
    kept = {d["id"]: read(service, d["id"], vectors="false").json() for d in documents}
    assert {id: (d["tokens"], d["text"]) for id, d in kept.items()} == {
        "text": (3, "three plain words"),
        "vectors as text": (2, "two words"),
        "both": (5, "not what was encoded"),
        "two texts": (2, "keep this"),
    }
    assert all("vectors" not in document for document in kept.values())


@pytest.mark.parametrize(
    "id",
    [
        "a/b", "/a", "a/", "a//b", "a/../b", "100%", "a%2Fb", "%", "?x=1&y", "#frag", "a b", "a+b", "tab\t",
        "line\nend\n", "🦊/😀", "é", "e\u0301", "delete", "'\"\\", "x" * 1024, "é" * 512,
    ],
)  # fmt: skip
def test_ids_round_trip_exactly(service, rng, id):
    body = {"documents": [{"id": id, "vectors": rows(rng, 1).tolist()}]}
    assert service("PUT", DOCUMENTS, json=body).status_code == 200
    response = read(service, id, vectors="false")
    assert response.status_code == 200
    assert response.json()["id"] == id
    ask = {"query": rows(rng, 1).tolist(), "ids": [id]}
    assert service("POST", "/rerank", json=ask).json()["results"][0]["id"] == id
    assert service("POST", f"{DOCUMENTS}/delete", json={"ids": [id]}).json() == {
        "deleted": [id],
        "missing": [],
    }
    assert read(service, id).status_code == 404


def test_one_bad_document_does_not_take_its_batch_along(service, rng):
    good = rows(rng, 2).tolist()
    documents = [
        {"id": "first", "vectors": good},
        {"id": "blank", "text": " \n"},
        {"vectors": good},
        {"id": "wide", "vectors": [[1.0] * (DIM + 8)]},
        {"id": "first", "vectors": good},
        {"id": "huge", "vectors": [[1e300] + [0.0] * (DIM - 1)]},
        {"id": "last", "vectors": good},
    ]
    response = service("PUT", DOCUMENTS, json={"documents": documents})
    assert response.status_code == 207
    answer = response.json()
    assert (answer["upserted"], answer["total"]) == (2, 2)
    assert [(e["index"], e["id"], e["status"], e["code"], e["param"]) for e in answer["errors"]] == [
        (1, "blank", 422, "empty_document", "documents[1].text"),
        (2, None, 422, "invalid_input", "documents[2].id"),
        (3, "wide", 422, "invalid_input", "documents[3].vectors"),
        (4, "first", 422, "invalid_input", "documents[4].id"),
        (5, "huge", 422, "invalid_input", "documents[5].vectors"),
    ]
    assert "documents[0]" in answer["errors"][3]["message"]  # which one it repeats, by the client's count
    assert all(e["param"].partition("]")[0] in e["message"] for e in answer["errors"])


def test_an_id_that_looks_like_a_place_is_only_an_id(service, rng):
    documents = [{"id": f"documents[{'9' * 900}]", "vectors": rows(rng, 1).tolist()}] * 2
    documents += [{"id": "documents[99]", "vectors": rows(rng, 1).tolist()}] * 2
    response = service("PUT", DOCUMENTS, json={"documents": documents})
    assert response.status_code == 207
    assert [e["param"] for e in response.json()["errors"]] == ["documents[1].id", "documents[3].id"]


def test_a_setting_refuses_the_whole_batch(build, rng):
    service = build(invalid_documents="refuse")
    service("PUT", "/collections/default", json={"dim": DIM})
    documents = [{"id": "good", "vectors": rows(rng, 2).tolist()}, {"id": "blank", "text": ""}]
    response = service("PUT", DOCUMENTS, json={"documents": documents})
    assert response.status_code == 422
    answer = response.json()
    assert answer["error"]["code"] == "documents_refused"
    assert [e["index"] for e in answer["errors"]] == [1]
    assert service("GET", "/collections/default").json()["documents"] == 0


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_safetensors_body(service, rng, dtype):
    lengths = np.array([1, 17, 2], np.int64)
    exact = rows(rng, 20)
    if dtype == "F16":
        exact = exact.astype(np.float16)
        body = save({"tokens": exact, "lengths": lengths}, _metadata(["a", "b", "c"]))
    elif dtype == "F32":
        body = save({"tokens": exact, "lengths": lengths}, _metadata(["a", "b", "c"]))
    else:  # NumPy has no bfloat16, so write the header by hand
        bits = (exact.view(np.uint32) >> 16).astype(np.uint16)
        exact = (bits.astype(np.uint32) << 16).view(np.float32)
        body = _safetensors(
            {"tokens": ("BF16", bits), "lengths": ("I64", lengths)}, _metadata(["a", "b", "c"])
        )
    response = service("PUT", DOCUMENTS, content=body, headers=SAFETENSORS)
    assert response.json() == {"upserted": 3, "total": 3}
    parts = np.split(exact.astype(np.float32), [1, 18])
    for id, expected in zip("abc", parts, strict=True):
        document = read(service, id).json()
        assert document["vectors"] == expected.tolist()
        assert document["text"] == f"text of {id}"
    assert read(service, "b").json()["payload"] == {"of": "b"}
    assert "payload" not in read(service, "c").json()


def test_a_safetensors_document_without_rows_is_refused_by_index(service, rng):
    body = save({"tokens": rows(rng, 3), "lengths": np.array([3, 0], np.int64)}, {"ids": '["a", "b"]'})
    response = service("PUT", DOCUMENTS, content=body, headers=SAFETENSORS)
    assert response.status_code == 207
    assert [(e["index"], e["id"]) for e in response.json()["errors"]] == [(1, "b")]


def test_a_large_json_body_is_cut_and_stored_the_same(build, rng):
    service = build(max_body_bytes=1 << 26, max_document_tokens=10_000)
    service("PUT", "/collections/default", json={"dim": DIM, "dtype": "float32"})
    documents = [{"id": f"{i}", "vectors": rows(rng, 6000).tolist(), "text": '}, {"[\\'} for i in range(8)]
    documents[4]["vectors"] = 'nobody is called \\" }'
    documents[5]["vectors"] = [[]]
    response = service("PUT", DOCUMENTS, json={"x": 1, "documents": documents, "y": "z"})
    assert len(response.request.content) > 8 << 20
    assert response.status_code == 207
    assert response.json()["upserted"] == 7
    assert [e["index"] for e in response.json()["errors"]] == [5]
    stored = read(service, "3").json()
    assert stored["vectors"] == documents[3]["vectors"]
    assert stored["text"] == '}, {"[\\'


def test_an_upsert_replaces_text_and_payload_too(service, rng):
    first = {"id": "a", "vectors": rows(rng, 2).tolist(), "text": "old", "payload": [1]}
    service("PUT", DOCUMENTS, json={"documents": [first]})
    old = read(service, "a").json()
    service(
        "PUT", DOCUMENTS, json={"documents": [{"id": "a", "vectors": rows(rng, 3).tolist(), "payload": None}]}
    )
    new = read(service, "a").json()
    assert new["tokens"] == 3
    assert "text" not in new
    assert "payload" not in new
    assert new["generation"] > old["generation"]


def test_delete_tells_what_was_there(service, rng):
    service("PUT", DOCUMENTS, json={"documents": [{"id": "a", "vectors": rows(rng, 1).tolist()}]})
    response = service("POST", f"{DOCUMENTS}/delete", json={"ids": ["b", "a", "a"]})
    assert response.json() == {"deleted": ["a"], "missing": ["b"]}
    assert service("GET", "/collections/default").json()["documents"] == 0


def test_uploads_beyond_the_limit_wait_and_then_are_told_to_come_back(build, rng):
    service = build(max_concurrent_uploads=1, deadline_s=0.2)
    service("PUT", "/collections/default", json={"dim": DIM})
    collection = service.deps.store.collection("default")
    commit, entered, go = type(collection).commit, threading.Event(), threading.Event()

    def slow(self, prepared):
        entered.set()
        go.wait(10)
        return commit(self, prepared)

    async def two():
        import asyncio

        body = {"documents": [{"id": "a", "vectors": rows(rng, 1).tolist()}]}
        first = asyncio.create_task(service.http.put(DOCUMENTS, json=body))
        await asyncio.to_thread(entered.wait, 10)
        second = await service.http.put(DOCUMENTS, json=body)
        go.set()
        return await first, second

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(collection), "commit", slow)
        started = time.perf_counter()
        first, second = service.runner.run(two())
    assert time.perf_counter() - started < 5
    assert first.status_code == 200
    assert second.status_code == 429
    assert second.headers["retry-after"] == "2"
    assert "max_concurrent_uploads" in second.json()["message"]


def _metadata(ids):
    payloads = [{"of": id} if id != "c" else None for id in ids]
    return {
        "ids": json.dumps(ids),
        "texts": json.dumps([f"text of {id}" for id in ids]),
        "payloads": json.dumps(payloads),
    }


def _safetensors(tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, array) in tensors.items():
        begin = len(data)
        data += array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, len(data)]}
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + data

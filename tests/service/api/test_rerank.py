"""POST /rerank: what comes back, in which order, for every form of query and candidates."""

import base64
import threading
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from maxsim_serve.api import rerank

DIM = 16


def reference(query: NDArray[Any], document: NDArray[Any]) -> float:
    return float((query.astype(np.float64) @ document.astype(np.float64).T).max(axis=1).sum())


def matrix(rng: np.random.Generator, rows: int) -> NDArray[np.float32]:
    return rng.standard_normal((rows, DIM)).astype(np.float32)


def packed(array: NDArray[Any], dtype: str | None = None) -> dict[str, Any]:
    data = base64.b64encode(array.tobytes()).decode()
    return {"data": data, "shape": list(array.shape), "dtype": dtype or str(array.dtype)}


@pytest.fixture
def stored(service, rng):
    """Ids → matrices, put into `default`."""
    documents = {f"L{rows}": matrix(rng, rows) for rows in (1, 17, 63, 3, 40)}
    body = {"documents": [{"id": id, "vectors": m.tolist()} for id, m in documents.items()]}
    assert service("PUT", "/collections/default/documents", json=body).json() == {"upserted": 5, "total": 5}
    return documents


def test_stored_candidates_come_back_in_order_of_their_scores(service, stored, rng):
    query = matrix(rng, 7)
    answer = service("POST", "/rerank", json={"query": query.tolist(), "ids": list(stored)}).json()

    expected = sorted(stored, key=lambda id: -reference(query, stored[id]))
    assert [result["id"] for result in answer["results"]] == expected
    assert [list(stored)[result["index"]] for result in answer["results"]] == expected
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == pytest.approx([reference(query, stored[id]) for id in expected], rel=1e-5)


def test_the_answer_has_its_keys_and_nothing_is_null(service, stored, rng):
    response = service(
        "POST", "/rerank", json={"query": matrix(rng, 2).tolist(), "ids": ["L17", "gone", "L1", "gone"]}
    )
    answer = response.json()
    assert list(answer) == ["id", "object", "model", "results", "missing", "usage", "meta"]
    assert answer["id"] == response.headers["x-request-id"]
    assert answer["object"] == "rerank"
    assert answer["model"] == "words"
    assert answer["missing"] == ["gone"]
    assert answer["usage"] == {"query_tokens": 2, "document_tokens": 18}
    assert answer["meta"]["collection"] == "default"
    assert answer["meta"]["candidates"] == 4
    assert answer["meta"]["kernel"]
    assert {"parse", "queue", "lookup", "kernel", "topk"} <= set(answer["meta"]["timings_ms"])
    assert all(set(result) == {"index", "id", "relevance_score"} for result in answer["results"])
    assert "null" not in response.text


def test_duplicate_ids_keep_their_own_index(service, stored, rng):
    answer = service(
        "POST", "/rerank", json={"query": matrix(rng, 3).tolist(), "ids": ["L3", "L1", "L3"]}
    ).json()
    assert sorted(result["index"] for result in answer["results"]) == [0, 1, 2]
    same = [result for result in answer["results"] if result["id"] == "L3"]
    assert [result["index"] for result in same] == [0, 2]
    assert same[0]["relevance_score"] == same[1]["relevance_score"]


@pytest.mark.parametrize(
    ("top_n", "count"), [(None, 5), (0, 5), (1, 1), (5, 5), (6, 5), (2**31, 5), (2**63, 5), (2**70, 5)]
)
def test_top_n(service, stored, rng, top_n, count):
    body = {"query": matrix(rng, 3).tolist(), "ids": list(stored), "top_n": top_n}
    assert len(service("POST", "/rerank", json=body).json()["results"]) == count


def test_all_ids_unknown_is_an_empty_answer(service, rng):
    response = service("POST", "/rerank", json={"query": matrix(rng, 1).tolist(), "ids": ["x", "y"]})
    assert response.status_code == 200
    assert response.json()["results"] == []
    assert response.json()["missing"] == ["x", "y"]


def test_every_encoding_of_a_query_gives_the_same_scores(service, stored, rng):
    query = matrix(rng, 5).astype(np.float16).astype(np.float32)  # numbers that float16 holds exactly
    half = query.astype(np.float16)
    raw = {"data": half.tobytes(), "shape": list(half.shape), "dtype": "float16"}
    ids = list(stored)
    answers = [
        service("POST", "/rerank", json={"query": form, "ids": ids}).json()["results"]
        for form in (query.tolist(), packed(query), packed(half))
    ]
    body = msgspec.msgpack.encode({"query": raw, "ids": ids})
    headers = {"content-type": "application/msgpack", "accept": "application/msgpack"}
    response = service("POST", "/rerank", content=body, headers=headers)
    assert response.headers["content-type"] == "application/msgpack"
    answers.append(msgspec.msgpack.decode(response.content)["results"])
    assert all(answer == answers[0] for answer in answers)


def test_bfloat16_is_widened_exactly(service, stored, rng):
    bits = (matrix(rng, 4).view(np.uint32) >> 16).astype(np.uint16)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    ids = list(stored)
    narrow = service("POST", "/rerank", json={"query": packed(bits, "bfloat16"), "ids": ids}).json()
    exact = service("POST", "/rerank", json={"query": packed(wide), "ids": ids}).json()
    assert narrow["results"] == exact["results"]


def test_int8_numbers_are_taken_as_they_are(service, stored, rng):
    small = rng.integers(-128, 128, (3, DIM)).astype(np.int8)
    ids = list(stored)
    narrow = service("POST", "/rerank", json={"query": packed(small), "ids": ids}).json()
    wide = service("POST", "/rerank", json={"query": small.astype(float).tolist(), "ids": ids}).json()
    assert narrow["results"] == wide["results"]


def test_inline_documents_of_every_form(service, rng):
    query = matrix(rng, 3)
    first, second = matrix(rng, 4), matrix(rng, 9).astype(np.float16)
    body = {
        "query": query.tolist(),
        "documents": [first.tolist(), packed(second), "some words", {"text": "other words here"}],
        "return_documents": True,
    }
    answer = service("POST", "/rerank", json=body).json()
    by_index = {result["index"]: result for result in answer["results"]}
    assert by_index[0]["relevance_score"] == pytest.approx(reference(query, first), rel=1e-5)
    assert by_index[1]["relevance_score"] == pytest.approx(reference(query, second), rel=1e-5)
    assert by_index[2]["document"] == {"text": "some words"}
    assert by_index[3]["document"] == {"text": "other words here"}
    assert "document" not in by_index[0]
    assert all("id" not in result for result in answer["results"])
    assert "collection" not in answer["meta"]
    assert answer["usage"] == {"query_tokens": 3, "document_tokens": 4 + 9 + 2 + 3}
    assert answer["meta"]["timings_ms"]["encode"] > 0


def test_stored_and_inline_scores_are_the_same_bits(service, stored, rng):
    query = matrix(rng, 6).tolist()
    by_id = service("POST", "/rerank", json={"query": query, "ids": list(stored)}).json()
    documents = [document.tolist() for document in stored.values()]
    inline = service("POST", "/rerank", json={"query": query, "documents": documents}).json()
    assert [(r["index"], r["relevance_score"]) for r in by_id["results"]] == [
        (r["index"], r["relevance_score"]) for r in inline["results"]
    ]


def test_text_against_text(service):
    answer = service(
        "POST", "/rerank", json={"query": "red apple", "documents": ["blue car", "a red apple", "red car"]}
    ).json()
    assert [result["index"] for result in answer["results"]] == [1, 2, 0]
    assert answer["results"][0]["relevance_score"] == pytest.approx(2.0, rel=1e-5)


def test_explanations_name_the_token_that_won(service, stored, rng):
    query = matrix(rng, 3)
    answer = service(
        "POST", "/rerank", json={"query": query.tolist(), "ids": list(stored), "explain": True, "top_n": 2}
    ).json()
    assert len(answer["results"]) == 2
    for result in answer["results"]:
        similarities = query.astype(np.float64) @ stored[result["id"]].astype(np.float64).T
        assert [match["query_token"] for match in result["explanation"]] == [0, 1, 2]
        assert [match["token"] for match in result["explanation"]] == similarities.argmax(axis=1).tolist()
        total = sum(match["similarity"] for match in result["explanation"])
        assert total == pytest.approx(result["relevance_score"], rel=1e-5)


def test_stored_documents_are_shown_on_request(service, rng):
    rows = matrix(rng, 2).tolist()
    documents = (
        f'{{"documents": [{{"id": "both", "vectors": {rows}, "text": "näin", '
        f'"payload": {{"n": [1,  2.50]}}}},'
        f'{{"id": "bare", "vectors": {rows}}}]}}'
    )
    service("PUT", "/collections/default/documents", content=documents)
    body = {"query": matrix(rng, 1).tolist(), "ids": ["both", "bare"], "return_documents": True}
    response = service("POST", "/rerank", json=body)
    shown = {result["id"]: result.get("document", "none") for result in response.json()["results"]}
    assert shown == {"both": {"text": "näin", "payload": {"n": [1, 2.5]}}, "bare": "none"}
    assert '"payload":{"n": [1,  2.50]}' in response.text  # verbatim, spaces and all

    response = service("POST", "/rerank", json=body, headers={"accept": "application/msgpack"})
    results = msgspec.msgpack.decode(response.content)["results"]
    assert {r["id"]: r.get("document", "none") for r in results} == shown


def test_the_collection_comes_from_the_path_the_body_or_the_setting(service, rng):
    row = matrix(rng, 1).tolist()
    service("PUT", "/collections/other", json={"dim": DIM})
    service("PUT", "/collections/other/documents", json={"documents": [{"id": "a", "vectors": row}]})
    ask = {"query": row, "ids": ["a"]}
    assert service("POST", "/rerank", json=ask).json()["missing"] == ["a"]
    for path, body in (("/c/other/rerank", ask), ("/rerank", ask | {"collection": "other"})):
        answer = service("POST", path, json=body).json()
        assert answer["missing"] == []
        assert answer["meta"]["collection"] == "other"


def test_a_large_body_is_parsed_off_the_loop_with_the_same_result(build, rng):
    service = build(max_body_bytes=10_000_000, max_document_tokens=1000)
    query, documents = matrix(rng, 4), [matrix(rng, 500) for _ in range(5)]
    response = service(
        "POST", "/rerank", json={"query": query.tolist(), "documents": [d.tolist() for d in documents]}
    )
    assert len(response.request.content) > 1 << 19
    for result in response.json()["results"]:
        expected = reference(query, documents[result["index"]])
        assert result["relevance_score"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("form", "rows", "on_loop"), [("msgpack", 1024, True), ("msgpack", 1537, False), ("json", 500, False)]
)
def test_what_takes_long_to_parse_is_parsed_elsewhere(build, rng, monkeypatch, form, rows, on_loop):
    service, threads = build(max_query_tokens=2048, max_body_bytes=4 << 20), []
    parse = rerank._parse

    def parsed(*asked):
        threads.append(threading.get_ident())
        return parse(*asked)

    monkeypatch.setattr(rerank, "_parse", parsed)
    query = rng.standard_normal((rows, 128)).astype(np.float16)
    ids = [f"document-{number}" for number in range(1000)]
    if form == "msgpack":
        vectors = {"data": query.tobytes(), "shape": list(query.shape), "dtype": "float16"}
        body = msgspec.msgpack.encode({"query": vectors, "ids": ids})
    else:
        body = msgspec.json.encode({"query": query.tolist(), "ids": ids})
    service("POST", "/rerank", json={"query": [[1.0]], "ids": ["a"]})
    service("POST", "/rerank", content=body, headers={"content-type": f"application/{form}"})
    small, large = threads
    assert (small == large) == on_loop


def test_stages_are_measured(service, stored, rng):
    service("POST", "/rerank", json={"query": "two words", "ids": list(stored)})
    # The engine counts after it has answered.
    service.until(lambda: service.sample("maxsim_rerank_candidates_count") == 1)
    for stage in ("parse", "encode", "queue", "lookup", "kernel", "topk", "serialize"):
        assert service.sample("maxsim_stage_duration_seconds_count", stage=stage) == 1, stage
    assert service.sample("maxsim_http_requests_total", route="/rerank", method="POST", code="200") == 1

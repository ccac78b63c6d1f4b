"""POST /search: exact over the whole collection, or over a subset of its ids."""

import numpy as np
import pytest

DIM = 16


def matrix(rng, rows):
    return rng.standard_normal((rows, DIM)).astype(np.float32)


@pytest.fixture
def stored(service, rng):
    documents = {f"document/{i}": matrix(rng, length) for i, length in enumerate([1, 17, 5, 33, 2, 60])}
    body = {
        "documents": [{"id": id, "vectors": m.tolist(), "text": f"<{id}>"} for id, m in documents.items()]
    }
    assert service("PUT", "/collections/default/documents", json=body).status_code == 200
    return documents


def best(query, documents):
    exact = {id: (query.astype(float) @ m.astype(float).T).max(axis=1).sum() for id, m in documents.items()}
    return sorted(exact, key=lambda id: -exact[id])


def ids_of(response):
    return [result["id"] for result in response.json()["results"]]


def test_the_whole_collection(service, stored, rng):
    query = matrix(rng, 4)
    response = service("POST", "/search", json={"query": query.tolist(), "top_k": 3})
    assert ids_of(response) == best(query, stored)[:3]
    answer = response.json()
    assert answer["object"] == "search"
    assert answer["meta"]["candidates"] == 6
    assert answer["missing"] == []
    assert all(set(result) == {"id", "relevance_score"} for result in answer["results"])


def test_top_k_defaults_to_ten_and_may_be_more_than_there_are(service, stored, rng):
    query = matrix(rng, 4)
    for body in ({}, {"top_k": 100}):
        assert ids_of(service("POST", "/search", json={"query": query.tolist()} | body)) == best(
            query, stored
        )


def test_a_subset_is_a_set(service, stored, rng):
    query = matrix(rng, 4)
    subset = ["document/2", "document/0", "document/2", "nowhere"]
    response = service("POST", "/c/default/search", json={"query": query.tolist(), "ids": subset})
    assert ids_of(response) == best(query, {id: stored[id] for id in subset[:2]})
    assert response.json()["missing"] == ["nowhere"]


def test_search_and_rerank_give_the_same_bits(service, stored, rng):
    query = matrix(rng, 9).tolist()
    found = service("POST", "/search", json={"query": query}).json()["results"]
    ranked = service("POST", "/rerank", json={"query": query, "ids": list(stored)[::-1]}).json()["results"]
    assert {r["id"]: r["relevance_score"] for r in found} == {r["id"]: r["relevance_score"] for r in ranked}


def test_documents_and_explanations_come_along(service, stored, rng):
    body = {"query": matrix(rng, 2).tolist(), "top_k": 2, "return_documents": True, "explain": True}
    results = service("POST", "/search", json=body).json()["results"]
    assert [result["document"] for result in results] == [{"text": f"<{r['id']}>"} for r in results]
    assert [len(result["explanation"]) for result in results] == [2, 2]


def test_an_empty_collection_has_no_results(service, rng):
    response = service("POST", "/search", json={"query": matrix(rng, 2).tolist()})
    assert response.status_code == 200
    assert response.json()["results"] == []


def test_a_deleted_document_is_not_found_again(service, stored, rng):
    query = matrix(rng, 3)
    first, second = best(query, stored)[:2]
    service("POST", "/collections/default/documents/delete", json={"ids": [first]})
    assert ids_of(service("POST", "/search", json={"query": query.tolist(), "top_k": 1})) == [second]

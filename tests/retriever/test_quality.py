"""What reranking buys: 50 judged questions through the whole stack, in PostgreSQL's order and reranked."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from maxsim_serve.cli.docstrings import docstrings

ROOT = Path(__file__).parents[2]
CRANFIELD = ROOT.parent / "shared" / "data" / "cranfield"

QUESTIONS = 50
# Encoding all 1,400 takes minutes on two busy cores. Every judged document of the 50 questions is in, and
# enough of the others that a question has hundreds of candidates which are wrong.
DOCUMENTS = 700


@pytest.fixture(scope="module")
def quality() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quality", ROOT / "loadtest" / "quality.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not CRANFIELD.is_dir(), reason="../shared/data/cranfield is not beside the checkout")
def test_reranking_improves_on_full_text_search(
    stack: Any, quality: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    qrels = quality.read_qrels(CRANFIELD / "qrels.tsv")
    queries = [query for query in quality.read_jsonl(CRANFIELD / "queries.jsonl") if query["_id"] in qrels]
    queries = queries[:: len(queries) // QUESTIONS][:QUESTIONS]
    assert len(queries) == QUESTIONS
    judged = {id for query in queries for id in qrels[query["_id"]]}
    corpus = quality.read_jsonl(CRANFIELD / "corpus.jsonl")
    chosen = [document for document in corpus if document["_id"] in judged]
    chosen += [document for document in corpus if document["_id"] not in judged][: DOCUMENTS - len(chosen)]
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(map(json.dumps, chosen)))

    service = stack.service()
    retriever = stack.retriever(service.url, "cranfield", rerank_budget_s="30")
    done = stack.ingest(path, service.url, "cranfield")
    empty = [document["_id"] for document in chosen if not (document["title"] + document["text"]).strip()]
    assert done.returncode == (3 if empty else 0), done.stderr
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == empty

    own, reranked, latencies_ms = [], [], []
    with httpx.Client(base_url=retriever.url, timeout=60) as http:
        for query in queries:
            answer = (
                http.post("/search", json={"query": query["text"], "top_k": 10}).raise_for_status().json()
            )
            assert answer["reranked"] and answer["reranker"]["missing"] == 0, answer["reranker"]
            assert answer["results"] == answer["reranker"]["results"]
            grades = qrels[query["_id"]]
            own.append(quality.ndcg(grades, [hit["id"] for hit in answer["retriever"]["results"]]))
            reranked.append(quality.ndcg(grades, [hit["id"] for hit in answer["results"]]))
            latencies_ms.append((answer["retriever"]["latency_ms"], answer["reranker"]["latency_ms"]))
    ours, theirs = sum(reranked) / QUESTIONS, sum(own) / QUESTIONS
    retrieve_ms, rerank_ms = (sorted(column)[QUESTIONS // 2] for column in zip(*latencies_ms, strict=True))
    with capsys.disabled():
        print(
            f"\nCranfield, {QUESTIONS} questions, {len(chosen)} documents: nDCG@10 {theirs:.3f} "
            f"by PostgreSQL, {ours:.3f} reranked; medians {retrieve_ms:.0f} ms and {rerank_ms:.0f} ms"
        )
    assert ours > theirs


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(CRANFIELD.is_dir(), reason="Cranfield is there, which has judgments")
def test_fifty_questions_to_the_demo_corpus(stack: Any, tmp_path: Path) -> None:
    """Each document is asked for by its own first sentence, so it must be among the best of both orders."""
    corpus = docstrings(300)
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps({"id": d.name, "text": d.text}) for d in corpus))
    service = stack.service()
    retriever = stack.retriever(service.url, "docstrings", rerank_budget_s="30")
    done = stack.ingest(path, service.url, "docstrings")
    assert done.returncode == 0, done.stderr
    found = 0
    with httpx.Client(base_url=retriever.url, timeout=60) as http:
        for document in corpus[:QUESTIONS]:
            body = {"query": document.first_sentence, "top_k": 10}
            answer = http.post("/search", json=body).raise_for_status().json()
            assert answer["reranked"], answer["reranker"]
            found += document.name in [hit["id"] for hit in answer["results"]]
    assert found >= 0.9 * QUESTIONS

"""All of it at once, for real: PostgreSQL, the service, the retriever before it, Prometheus over both.

Fifty judged questions go through the retriever, and one client loads the service; then reranking must have
bought something, and every rule, every panel and the median must say what happened.
"""

import json
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from prometheus import CONFIG, Prometheus
from quality import ndcg, read_jsonl, read_qrels
from servers import Server

from maxsim_serve.cli.docstrings import docstrings

CRANFIELD = Path(__file__).parents[3] / "shared" / "data" / "cranfield"

QUESTIONS = 50
# Encoding all 1,400 takes minutes on two busy cores. Every judged document of the 50 questions is in, and
# enough of the others that a question has hundreds of candidates which are wrong.
DOCUMENTS = 500
LOAD_IDS = 200
RERANKS = 200
SCRAPED_S = 30  # by then Prometheus has seen what happened, and its rules have


@dataclass(frozen=True)
class Judged:
    """A corpus as JSON lines have it, questions to it, and for each the grades of documents."""

    name: str
    documents: list[dict[str, str]]
    questions: list[tuple[str, dict[str, int]]]


def cranfield() -> Judged:
    qrels = read_qrels(CRANFIELD / "qrels.tsv")
    queries = [query for query in read_jsonl(CRANFIELD / "queries.jsonl") if query["_id"] in qrels]
    queries = queries[:: len(queries) // QUESTIONS][:QUESTIONS]
    judged = {id for query in queries for id in qrels[query["_id"]]}
    corpus = read_jsonl(CRANFIELD / "corpus.jsonl")
    chosen = [document for document in corpus if document["_id"] in judged]
    chosen += [document for document in corpus if document["_id"] not in judged][: DOCUMENTS - len(chosen)]
    return Judged("cranfield", chosen, [(query["text"], qrels[query["_id"]]) for query in queries])


def demo() -> Judged:
    """Each document is asked for by its own first sentence."""
    corpus = docstrings(300)
    documents = [{"_id": document.name, "title": "", "text": document.text} for document in corpus]
    return Judged("demo", documents, [(d.first_sentence, {d.name: 1}) for d in corpus[:QUESTIONS]])


@dataclass
class Load:
    """One client that asks, writes and errs, over and over; what it measured is in seconds."""

    url: str
    collection: str
    ids: list[str]
    dim: int
    reranks_s: list[float] = field(default_factory=list)
    transports_s: list[float] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        query = np.random.default_rng(3).standard_normal((32, self.dim)).round(3).tolist()
        rerank = json.dumps({"query": query, "ids": [*self.ids, "nowhere"], "top_n": 5}).encode()
        small = {"documents": [{"id": "extra", "vectors": query}]}
        documents = f"/collections/{self.collection}/documents"
        with httpx.Client(base_url=self.url, timeout=30) as client:
            while not self.stop.is_set():
                # Not the retriever's route: the median of this one is of these requests alone.
                self._timed(client, self.reranks_s, "POST", f"/c/{self.collection}/rerank", content=rerank)
                self._timed(client, self.transports_s, "GET", "/livez")
                if len(self.reranks_s) % 10 == 1:
                    body = {"collection": self.collection, "query": query, "top_k": 3}
                    client.post("/search", json=body).raise_for_status()
                    client.put(documents, json=small).raise_for_status()
                    client.post(f"{documents}/delete", json={"ids": ["extra"]}).raise_for_status()
                    client.get(f"/no/such/path/{len(self.reranks_s)}")

    @staticmethod
    def _timed(client: httpx.Client, into: list[float], method: str, path: str, **content: Any) -> None:
        started = time.perf_counter()
        client.request(method, path, **content).raise_for_status()
        into.append(time.perf_counter() - started)

    @contextmanager
    def running(self) -> Iterator[None]:
        client = threading.Thread(target=self.run)
        client.start()
        try:
            eventually(lambda: len(self.reranks_s) >= RERANKS or not client.is_alive())
            assert client.is_alive()
            yield
        finally:
            self.stop.set()
            client.join()


def eventually(holds: Callable[[], bool]) -> None:
    """Wait for it as long as Prometheus may take, then leave the verdict to what follows."""
    deadline = time.monotonic() + SCRAPED_S
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_stack(
    stack: Any, tmp_path: Path, subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = cranfield() if CRANFIELD.is_dir() else demo()
    service = stack.service()
    retriever = stack.retriever(service, judged.name, rerank_budget_s="30")
    prometheus = stack.prometheus(maxsim=service.port, retriever=retriever.port)
    ingest(stack, service, judged, tmp_path / "corpus.jsonl")

    with subtests.test("reranking improves on full-text search"):
        said = reranking_improves(retriever, judged)
        with capsys.disabled():
            print(f"\n{said}")

    ids = [document["_id"] for document in judged.documents if text_of(document)][:LOAD_IDS]
    dim = httpx.get(f"{service.url}/collections/{judged.name}").json()["dim"]
    load = Load(service.url, judged.name, ids, dim)
    with load.running():
        with subtests.test("every target is scraped, the retriever too"):
            every_target_is_scraped(prometheus, service, retriever)
        with subtests.test("every rule is loaded and evaluates"):
            every_rule_is_loaded(prometheus)
        with subtests.test("every recording rule returns data"):
            returns_data(prometheus, recording_rules())
        with subtests.test("every query of the dashboard returns data"):
            returns_data(prometheus, panel_queries())
        with subtests.test("no alert begins for a service that is well"):
            # A stranger's id in every rerank and a busy machine are no reasons to fail.
            slow = "MaxsimLatencyOverObjective|MaxsimMissingIds"
            assert prometheus.query(f'ALERTS{{alertname!~"{slow}"}}') == []
        for server in (service, retriever):
            with subtests.test("promtool finds no fault with the metrics", url=server.url):
                promtool_finds_no_fault(httpx.get(f"{server.url}/metrics").text)

    with subtests.test("the median is what the client measured, less transport"):
        said = the_median_is_honest(prometheus, load)
        with capsys.disabled():
            print(said)


def text_of(document: dict[str, str]) -> str:
    return f"{document['title']} {document['text']}".strip()


def ingest(stack: Any, service: Server, judged: Judged, path: Path) -> None:
    """Documents without a text are refused by name, and are the only ones."""
    path.write_text("\n".join(map(json.dumps, judged.documents)))
    done = stack.ingest(path, service, judged.name)
    empty = [document["_id"] for document in judged.documents if not text_of(document)]
    assert done.returncode == (3 if empty else 0), done.stderr
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == empty


def reranking_improves(retriever: Server, judged: Judged) -> str:
    own, reranked, latencies_ms = [], [], []
    with httpx.Client(base_url=retriever.url, timeout=60) as http:
        for question, grades in judged.questions:
            body = {"query": question, "top_k": 10}
            answer = http.post("/search", json=body).raise_for_status().json()
            assert answer["reranked"] and answer["reranker"]["missing"] == 0, answer["reranker"]
            assert answer["results"] == answer["reranker"]["results"]
            own.append(ndcg(grades, [hit["id"] for hit in answer["retriever"]["results"]]))
            reranked.append(ndcg(grades, [hit["id"] for hit in answer["results"]]))
            latencies_ms.append((answer["retriever"]["latency_ms"], answer["reranker"]["latency_ms"]))
    assert len(own) == QUESTIONS
    ours, theirs = statistics.mean(reranked), statistics.mean(own)
    retrieve_ms, rerank_ms = map(statistics.median, zip(*latencies_ms, strict=True))
    if judged.name == "cranfield":
        assert ours > theirs
    else:  # known items, which full text finds as well: nine of ten must be there
        assert sum(gain > 0 for gain in reranked) >= 0.9 * QUESTIONS
    return (
        f"{judged.name}, {QUESTIONS} questions, {len(judged.documents)} documents: nDCG@10 {theirs:.3f} by "
        f"PostgreSQL, {ours:.3f} reranked; medians {retrieve_ms:.0f} ms and {rerank_ms:.0f} ms"
    )


def every_target_is_scraped(prometheus: Prometheus, service: Server, retriever: Server) -> None:
    up = {
        "maxsim": service.port,
        "retriever": retriever.port,
        "prometheus": prometheus.port,
    }
    targets = prometheus.ask("targets", state="active")["activeTargets"]
    assert {target["labels"]["job"]: target["labels"]["instance"] for target in targets} == {
        job: f"127.0.0.1:{port}" for job, port in up.items()
    }
    assert {target["health"] for target in targets} == {"up"}
    searched = 'sum(retriever_searches_total{job="retriever",order="reranked"})'
    eventually(lambda: prometheus.query(searched) == [QUESTIONS])
    assert prometheus.query(searched) == [QUESTIONS]
    # What the dashboard's variable offers.
    instances = prometheus.ask("label/instance/values", **{"match[]": "maxsim_ready"})
    assert instances == [f"127.0.0.1:{service.port}"]


def every_rule_is_loaded(prometheus: Prometheus) -> None:
    wanted = set()
    for path in (CONFIG / "rules").glob("*.yml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            wanted |= {rule.get("record") or rule.get("alert") for rule in group["rules"]}
    loaded = {rule["name"]: rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]}
    assert set(loaded) == wanted
    assert {name: rule["health"] for name, rule in loaded.items()} == dict.fromkeys(wanted, "ok")


def recording_rules() -> dict[str, str]:
    """Expressions by what a failure calls them."""
    groups = yaml.safe_load((CONFIG / "rules" / "recording.yml").read_text())["groups"]
    return {rule["record"]: rule["record"] for group in groups for rule in group["rules"]}


def panel_queries() -> dict[str, str]:
    """All but those of panels marked `GPU only.`, whose series a machine without a GPU need not have."""
    queries, exempt = {}, set()
    for panel in json.loads((CONFIG / "grafana/dashboards/maxsim.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            if panel["description"].startswith("GPU only."):
                exempt.add(panel["title"])
            else:
                expression = target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*")
                queries[f"{panel['title']}, {target['refId']}"] = expression
    assert exempt == {
        "GPU memory by purpose",
        "Stream bandwidth",
        "Kernel compilations",
        "Requests by CUDA graph",
    }
    assert len(queries) >= 30
    return queries


def returns_data(prometheus: Prometheus, expressions: dict[str, str]) -> None:
    def without() -> list[str]:
        return [
            f"{name}: {expression}"
            for name, expression in expressions.items()
            if not np.isfinite(prometheus.query(expression)).any()
        ]

    eventually(lambda: not without())
    assert without() == []


def promtool_finds_no_fault(metrics: str) -> None:
    done = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def the_median_is_honest(prometheus: Prometheus, load: Load) -> str:
    route = '{route="/c/{collection}/rerank"}'
    count = f"sum(maxsim_http_request_duration_seconds_count{route})"
    eventually(lambda: prometheus.query(count) == [len(load.reranks_s)])
    assert prometheus.query(count) == [len(load.reranks_s)]
    client_s = statistics.median(load.reranks_s) - statistics.median(load.transports_s)
    buckets = f"sum by (le) (rate(maxsim_http_request_duration_seconds_bucket{route}[5m]))"
    (histogram_s,) = prometheus.query(f"histogram_quantile(0.5, {buckets})")
    assert histogram_s == pytest.approx(client_s, rel=0.2)
    return (
        f"median of {len(load.reranks_s)} reranks: {1e3 * histogram_s:.2f} ms by the histogram, "
        f"{1e3 * client_s:.2f} ms by the client, less transport"
    )

"""nDCG@10 of judged collections, ingested and searched through HTTP.

    python loadtest/quality.py DIR [DIR …]                      starts a service of its own
    python loadtest/quality.py DIR --url http://127.0.0.1:8080  uses a running one, with an encoder

DIR holds `corpus.jsonl`, `queries.jsonl` and `qrels.tsv` (query-id, corpus-id, score; one header line), as
BEIR writes them. Documents are `title text`; gains are the grades, discounted by log2(rank + 1), as in
trec_eval.
"""

import argparse
import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from maxsim_serve.cli.client import Client, collection_path
from maxsim_serve.cli.journal import Progress
from maxsim_serve.cli.jsonl import JsonLines
from maxsim_serve.cli.local import LocalService
from maxsim_serve.cli.records import START, batches
from maxsim_serve.cli.upload import Refused, upload

_DEPTH = 10
_Qrels = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Measured:
    """One row of the table."""

    name: str
    stored: int
    refused: list[Refused]
    queries: int
    ndcg: float
    ingest_s: float
    search_ms: float


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directories", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--url", help="a running service; its collection of the directory's name is replaced")
    parser.add_argument(
        "--encoder", default="minilm", help="of a service started here (default: %(default)s)"
    )
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = args.url
        if url is None:
            url = stack.enter_context(LocalService(encoder=args.encoder, on_wait=lambda _: None)).url
        client = stack.enter_context(Client(url, api_key=os.environ.get("MAXSIM_API_KEY")))
        print(f"service {url}, encoder {client.request('GET', '/info')['settings']['encoder']}", flush=True)
        rows = [measure(client, directory) for directory in args.directories]
    report(rows)
    return 0


def measure(client: Client, directory: Path) -> Measured:
    """Put the corpus into a new collection, search it for every judged query, and score the answers."""
    name = directory.name
    present = [collection["name"] for collection in client.request("GET", "/collections")["collections"]]
    if name in present:
        client.request("DELETE", collection_path(name))
    client.request("PUT", collection_path(name), json={})

    started = time.perf_counter()
    refused: list[Refused] = []
    stored = 0
    corpus = JsonLines(directory / "corpus.jsonl")
    with tqdm(
        total=corpus.total_bytes, unit="B", unit_scale=True, desc=f"{name}: ingest", disable=None
    ) as bar:
        pending = batches(corpus.read(START), most_documents=None, most_bytes=1 << 24)
        for progress, rejected in upload(client, name, pending, Progress()):
            refused += rejected
            stored = progress.stored
            bar.update(progress.offset_bytes - bar.n)
    ingest_s = time.perf_counter() - started

    qrels = read_qrels(directory / "qrels.tsv")
    queries = [query for query in read_jsonl(directory / "queries.jsonl") if query["_id"] in qrels]
    started = time.perf_counter()
    scores = []
    for query in tqdm(queries, unit="query", desc=f"{name}: search", disable=None):
        body = {"collection": name, "query": query["text"], "top_k": _DEPTH}
        results = client.request("POST", "/search", json=body)["results"]
        scores.append(ndcg(qrels[query["_id"]], [result["id"] for result in results]))
    search_s = time.perf_counter() - started
    return Measured(
        name,
        stored,
        refused,
        len(queries),
        sum(scores) / len(scores),
        ingest_s,
        1e3 * search_s / len(queries),
    )


def ndcg(grades: Mapping[str, int], ranked: Sequence[str]) -> float:
    """nDCG at 10 of one ranking: gain is the grade (0 for what is not judged), discount log2(rank + 1)."""
    best = dcg(sorted(grades.values(), reverse=True))
    return dcg([grades.get(id, 0) for id in ranked]) / best if best > 0 else 0.0


def dcg(gains: Sequence[int]) -> float:
    return sum(max(gain, 0) / math.log2(rank + 1) for rank, gain in enumerate(gains[:_DEPTH], 1))


def read_jsonl(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def read_qrels(path: Path) -> _Qrels:
    """Grades by query and document; the first line is a header."""
    qrels: _Qrels = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        query, document, grade = line.split("\t")
        qrels.setdefault(query, {})[document] = int(grade)
    return qrels


def report(rows: Sequence[Measured]) -> None:
    print("\n| collection | stored | refused | queries | nDCG@10 | ingest, s | search, ms a query |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print(
            f"| {row.name} | {row.stored} | {len(row.refused)} | {row.queries} | {row.ndcg:.4f} "
            f"| {row.ingest_s:.1f} | {row.search_ms:.1f} |"
        )
    for row in rows:
        for refused in row.refused:
            print(f"{row.name}, refused: {refused}")


if __name__ == "__main__":
    sys.exit(main())

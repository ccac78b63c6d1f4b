"""`maxsim demo`: a real service behind a small retriever, over the standard library's own docstrings."""

import argparse
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from .bm25 import BM25
from .client import Client, NotAnswering, RequestFailed, collection_path
from .docstrings import Docstring, docstrings
from .local import LocalService, ServiceDied

__all__ = ["add_parser", "run"]

_COLLECTION = "docstrings"
_DOCUMENTS = 300  # encoding them takes about 10 s on two cores
_BATCH = 25
_CANDIDATES = 100
_SHOWN = 3
_QUESTIONS = (
    "how do I run a function in another process?",
    "parse command line arguments",
    "show what changed between two versions of a text",
    "make a scratch folder that disappears afterwards",
    "read settings from an ini file",
    "make a random password",
)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "demo", help="start a service, fill it with docstrings, and ask it questions", description=__doc__
    )
    parser.add_argument("--port", type=int, default=0, help="port of the service; 0 takes a free one")
    parser.add_argument("--keep", action="store_true", help="leave the service running until Ctrl-C")
    return parser


def run(args: argparse.Namespace) -> int:
    started = time.perf_counter()
    try:
        with (
            tqdm(
                desc="start the service", bar_format="{desc}: {elapsed}", leave=False, disable=None
            ) as spinner,
            LocalService(encoder="minilm", port=args.port, on_wait=lambda _: spinner.refresh()) as service,
        ):
            spinner.close()
            print(f"service    {service.url}, ready after {time.perf_counter() - started:.1f} s", flush=True)
            print(f"API        {service.url}/docs, while it runs")
            with Client(service.url) as client:
                _show(client)
            print(f"\n{time.perf_counter() - started:.0f} s in all.", flush=True)
            if args.keep:
                _wait(service)
        print("service    stopped")
    except (ServiceDied, NotAnswering, RequestFailed) as error:
        print(f"maxsim demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _show(client: Client) -> None:
    corpus = docstrings(_DOCUMENTS)
    texts = [f"{document.name}: {document.text}" for document in corpus]
    _ingest(client, corpus, texts)
    retriever = BM25(texts)
    by_name = {document.name: document for document in corpus}
    print(
        f"\nFor each question: BM25 retrieves {_CANDIDATES} candidates, POST /rerank puts them in order.\n"
        f"Below are the best {_SHOWN}: MaxSim score, rank by BM25, name, first sentence."
    )
    for question in _QUESTIONS:
        candidates = [corpus[i].name for i in retriever.top(question, _CANDIDATES)]
        body = {"collection": _COLLECTION, "query": question, "ids": candidates, "top_n": _SHOWN}
        started = time.perf_counter()
        answer = client.request("POST", "/rerank", json=body)
        _print_answer(question, answer, by_name, 1e3 * (time.perf_counter() - started))


def _ingest(client: Client, corpus: Sequence[Docstring], texts: Sequence[str]) -> None:
    client.request("PUT", collection_path(_COLLECTION), json={})
    path = collection_path(_COLLECTION, "/documents")
    started = time.perf_counter()
    with tqdm(total=len(corpus), desc="encode and store", unit="doc", leave=False, disable=None) as bar:
        for start in range(0, len(corpus), _BATCH):
            batch = zip(corpus[start : start + _BATCH], texts[start : start + _BATCH], strict=True)
            documents = [{"id": document.name, "text": text} for document, text in batch]
            answer = client.request("PUT", path, json={"documents": documents})
            if "errors" in answer:
                raise RequestFailed(207, answer["errors"][0]["message"])
            bar.update(len(documents))
    elapsed_s = time.perf_counter() - started
    tokens = client.request("GET", collection_path(_COLLECTION))["tokens"]
    print(
        f"corpus     {len(corpus)} docstrings of the standard library, {tokens:,} tokens: "
        f"encoded and stored in {elapsed_s:.1f} s ({len(corpus) / elapsed_s:.0f}/s)",
        flush=True,
    )


def _print_answer(
    question: str, answer: dict[str, Any], by_name: dict[str, Docstring], elapsed_ms: float
) -> None:
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    longest = max(len(result["id"]) for result in answer["results"])
    print(f"\n▸ {question}")
    for rank, result in enumerate(answer["results"], 1):
        score, retrieved = result["relevance_score"], f"#{result['index'] + 1}"
        head = f"  {rank}. {score:6.2f}  BM25 {retrieved:<4}  {result['id']:<{longest}}  "
        gist = by_name[result["id"]].first_sentence
        print(head + textwrap.shorten(gist, max(width - len(head), 20), placeholder="…"))
    stages = " · ".join(f"{stage} {stage_ms:.2f}" for stage, stage_ms in answer["meta"]["timings_ms"].items())
    print(f"     {answer['meta']['candidates']} candidates in {elapsed_ms:.1f} ms: {stages}", flush=True)


def _wait(service: LocalService) -> None:
    print(f"\nThe service goes on at {service.url}/docs; Ctrl-C stops it.", flush=True)
    try:
        while service.is_running:
            time.sleep(0.2)
    except KeyboardInterrupt:
        print()

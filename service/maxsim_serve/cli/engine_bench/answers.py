"""Whether the service answers what the library does on the same GPU, to the bit."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import httpx
import numpy as np
import torch
from numpy.typing import NDArray

import maxsim

from ..scrape import read_metrics, total
from .corpus import DIM, Corpus
from .rows import Goal, Report
from .wire import Connection, rerank

__all__ = ["equal_to_library", "random_sizes"]

_CROWD = 64


class _Asked(NamedTuple):
    query: NDArray[np.float16]
    chosen: NDArray[np.int64]


def equal_to_library(report: Report, port: int, collection: str, corpus: Corpus, name: str) -> None:
    """Add how many scores differ: of requests by themselves, and of 64 at a time."""
    rng = np.random.default_rng(4)
    asked = [
        _Asked(
            rng.standard_normal((int(rows), DIM)).astype(np.float16),
            rng.integers(0, len(corpus), int(count)),
        )
        for rows, count in zip(rng.integers(1, 200, _CROWD), rng.integers(1, 1500, _CROWD), strict=True)
    ]
    wanted = _library(corpus, asked)
    with Connection(port) as connection:
        alone = [_ask(connection, collection, one) for one in asked]
    crowd = _crowd(port, collection, asked * 4)
    report.add(f"{name}: scores that differ, alone", _different(alone, wanted), "", Goal(0))
    report.add(f"{name}: scores that differ, {_CROWD}-way", _different(crowd, wanted * 4), "", Goal(0))


def random_sizes(
    report: Report, client: httpx.Client, port: int, collection: str, corpus: Corpus, requests: int = 5000
) -> None:
    """Requests of sizes of their own, 16 at a time; what was compiled since the service was ready."""
    rng = np.random.default_rng(5)
    asked = [
        _Asked(
            rng.standard_normal((int(rows), DIM)).astype(np.float16),
            rng.integers(0, len(corpus), int(count)),
        )
        for rows, count in zip(rng.integers(1, 300, 200), rng.integers(1, 2500, 200), strict=True)
    ]
    sent = [asked[number % len(asked)] for number in range(requests)]
    with ThreadPoolExecutor(16) as threads:
        shares = [sent[first::16] for first in range(16)]
        list(threads.map(lambda some: _asks(port, collection, some), shares))
    metrics = read_metrics(client)
    compiled = total(metrics, "maxsim_kernel_compilations_total", phase="live") or 0.0
    report.add(f"compilations after ready, {requests:,} random requests", compiled, "", Goal(0))
    report.add("of those answered by a graph", total(metrics, "maxsim_graph_replays_total") or 0.0, "")


def _library(corpus: Corpus, asked: Sequence[_Asked]) -> list[NDArray[np.float32]]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = torch.from_numpy(corpus.tokens).to(device)
    scores = []
    for query, chosen in asked:
        starts, lengths = (torch.from_numpy(of[chosen]).to(device) for of in (corpus.starts, corpus.lengths))
        documents = maxsim.Spans(tokens, starts, lengths)
        scores.append(maxsim.score(torch.from_numpy(query).to(device), documents)[0].cpu().numpy())
    return scores


def _ask(connection: Connection, collection: str, one: _Asked) -> NDArray[np.float32]:
    """The scores by position; each candidate has its own, duplicates among them."""
    answer = connection.ask(rerank(collection, one.query, [f"d{number}" for number in one.chosen.tolist()]))
    scores = np.full(len(one.chosen), np.nan, np.float32)
    for result in answer.body["results"]:
        scores[result["index"]] = result["relevance_score"]
    return scores


def _asks(port: int, collection: str, some: Sequence[_Asked]) -> list[NDArray[np.float32]]:
    with Connection(port) as connection:
        return [_ask(connection, collection, one) for one in some]


def _crowd(port: int, collection: str, asked: Sequence[_Asked]) -> list[NDArray[np.float32]]:
    """All of them, in their order, 64 at a time on connections of their own."""
    with ThreadPoolExecutor(_CROWD) as threads:
        shares = [asked[first::_CROWD] for first in range(_CROWD)]
        answers = list(threads.map(lambda some: _asks(port, collection, some), shares))
    return [answers[number % _CROWD][number // _CROWD] for number in range(len(asked))]


def _different(found: Sequence[NDArray[np.float32]], wanted: Sequence[NDArray[np.float32]]) -> int:
    return sum(int((a != b).sum()) for a, b in zip(found, wanted, strict=True))

"""One search: candidates from PostgreSQL, their order from the reranker, or else the retriever's own."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel

from .database import Candidate, Database
from .metrics import Metrics
from .reranker import NotReranked, Reason, Reranked, Reranker

__all__ = ["Answer", "Searcher"]

_log = logging.getLogger(__name__)


class Hit(BaseModel):
    """`retrieved_rank` is the place, from 1, in the retriever's own order."""

    id: str
    title: str
    score: float
    retrieved_rank: int


class Retrieved(BaseModel):
    candidates: int
    latency_ms: float
    results: list[Hit]


class RerankReport(BaseModel):
    """`results` is absent where the reranker did not answer; `reason` and `message` then say why."""

    latency_ms: float
    tries: int
    results: list[Hit] | None = None
    missing: int | None = None
    timings_ms: dict[str, float] | None = None
    reason: Reason | Literal["nothing_found"] | None = None
    message: str | None = None


class Answer(BaseModel):
    """`results` is the order to show; `reranked` says whose. Both orders follow, with what each took."""

    request_id: str
    reranked: bool
    latency_ms: float
    results: list[Hit]
    retriever: Retrieved
    reranker: RerankReport


class Searcher:
    def __init__(self, database: Database, reranker: Reranker, metrics: Metrics, *, candidates: int) -> None:
        self._database = database
        self._reranker = reranker
        self._metrics = metrics
        self._candidates = candidates

    async def search(self, query: str, top_k: int, request_id: str, headers: Mapping[str, str]) -> Answer:
        """`headers` go on to the reranker. Raises psycopg.Error; the reranker's failure is no error."""
        started = time.perf_counter()
        found = await self._database.search(query, self._candidates)
        retrieve_s = time.perf_counter() - started
        self._metrics.stage_duration.labels("retrieve").observe(retrieve_s)
        own = [_hit(candidate, candidate.score, rank) for rank, candidate in enumerate(found[:top_k], 1)]
        report = await self._rerank(query, found, top_k, request_id, headers)
        self._metrics.searches.labels(report.reason or "reranked").inc()
        return Answer(
            request_id=request_id,
            reranked=report.results is not None,
            latency_ms=1e3 * (time.perf_counter() - started),
            results=own if report.results is None else report.results,
            retriever=Retrieved(candidates=len(found), latency_ms=1e3 * retrieve_s, results=own),
            reranker=report,
        )

    async def _rerank(
        self,
        query: str,
        found: Sequence[Candidate],
        top_k: int,
        request_id: str,
        headers: Mapping[str, str],
    ) -> RerankReport:
        if not found:
            return RerankReport(latency_ms=0.0, tries=0, reason="nothing_found")
        started = time.perf_counter()
        answer: Reranked | NotReranked
        try:
            answer = await self._reranker.rerank(query, [c.id for c in found], top_k, headers)
        except NotReranked as error:
            _log.warning("request %s keeps the retriever's order: %s: %s", request_id, error.reason, error)
            answer = error
        rerank_s = time.perf_counter() - started
        self._metrics.stage_duration.labels("rerank").observe(rerank_s)
        self._metrics.retries.inc(max(answer.tries - 1, 0))
        if isinstance(answer, NotReranked):
            return RerankReport(
                latency_ms=1e3 * rerank_s, tries=answer.tries, reason=answer.reason, message=str(answer)
            )
        self._metrics.missing.inc(len(answer.missing))
        return RerankReport(
            latency_ms=1e3 * rerank_s,
            tries=answer.tries,
            results=_in_order(found, answer)[:top_k],
            missing=len(answer.missing),
            timings_ms=answer.timings_ms,
        )


def _in_order(found: Sequence[Candidate], answer: Reranked) -> list[Hit]:
    """The reranker's results, then what it does not hold, in the retriever's order and with its scores."""
    rank_of = {candidate.id: rank for rank, candidate in enumerate(found)}
    ordered = [_hit(found[rank_of[id]], score, rank_of[id] + 1) for id, score in answer.results]
    ordered += [_hit(found[rank_of[id]], found[rank_of[id]].score, rank_of[id] + 1) for id in answer.missing]
    return ordered


def _hit(candidate: Candidate, score: float, rank: int) -> Hit:
    return Hit(id=candidate.id, title=candidate.title, score=score, retrieved_rank=rank)

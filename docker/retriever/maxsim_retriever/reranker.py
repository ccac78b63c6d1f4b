"""The client of `POST /rerank`: pooled, within a budget of time, and never the reason that a search fails."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx

__all__ = ["NotReranked", "Reason", "Reranked", "Reranker", "retry_after_s"]

Reason = Literal["unreachable", "timeout", "busy", "refused"]

_BUSY = frozenset({429, 503})
_FIRST_PAUSE_S = 0.05  # after a broken connection, which names no Retry-After; doubled each time


@dataclass(frozen=True)
class Reranked:
    """Ids and scores, best first; `missing` are ids that the reranker does not hold."""

    results: list[tuple[str, float]]
    missing: list[str]
    tries: int
    timings_ms: dict[str, float]


class NotReranked(Exception):
    """`reason` is one of four words, for metrics; the message says more."""

    def __init__(self, reason: Reason, message: str, tries: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.tries = tries


class Reranker:
    """Tries again on 429, 503 and broken connections, for as long as the budget of one request lasts."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        *,
        collection: str,
        budget_s: float,
        tries: int,
        retry_after_cap_s: float,
    ) -> None:
        self._http = http
        self._collection = collection
        self._budget_s = budget_s
        self._tries = tries
        self._retry_after_cap_s = retry_after_cap_s

    async def rerank(
        self, query: str, ids: Sequence[str], top_n: int, headers: Mapping[str, str]
    ) -> Reranked:
        """Raises NotReranked and nothing else."""
        body = {"collection": self._collection, "query": query, "ids": list(ids), "top_n": top_n}
        deadline = time.monotonic() + self._budget_s
        failure = NotReranked("timeout", "no time for a try", 0)
        for number in range(1, self._tries + 1):
            try:
                # httpx's own timeout is for each read; a reranker that trickles must not outlast the budget.
                async with asyncio.timeout_at(_loop_time(deadline)):
                    answer = await self._http.post("/rerank", json=body, headers=headers)
                    if answer.status_code == 200:
                        return _read(answer.json(), number)
                failure, pause_s = self._refusal(answer, number)
            except (TimeoutError, httpx.TimeoutException) as error:
                message = f"no answer within {self._budget_s} s ({type(error).__name__})"
                raise NotReranked("timeout", message, number) from None
            except httpx.TransportError as error:
                failure = NotReranked("unreachable", f"{type(error).__name__}: {error}", number)
                pause_s = _FIRST_PAUSE_S * 2 ** (number - 1)
            except (ValueError, KeyError, TypeError) as error:
                raise NotReranked("refused", f"an answer that cannot be read: {error!r}", number) from None
            # Up to a fifth more, so that all who were refused together do not come back together.
            pause_s *= 1 + 0.2 * random.random()
            if number == self._tries or time.monotonic() + pause_s >= deadline:
                break
            await asyncio.sleep(pause_s)
        raise failure

    def _refusal(self, answer: httpx.Response, number: int) -> tuple[NotReranked, float]:
        """The failure that this answer is if it was the last, and the seconds to wait before another try."""
        message = f"{answer.status_code}: {answer.text[:200]}"
        if answer.status_code not in _BUSY:
            raise NotReranked("refused", message, number)
        wait_s = retry_after_s(answer.headers.get("retry-after"))
        if wait_s is None:
            return NotReranked("busy", message, number), _FIRST_PAUSE_S * 2 ** (number - 1)
        if wait_s > self._retry_after_cap_s:  # asking earlier than told would only add to the load
            raise NotReranked("busy", f"{message} (Retry-After {wait_s:g} s)", number)
        return NotReranked("busy", message, number), wait_s


def retry_after_s(value: str | None) -> float | None:
    """The header in seconds; None where it is absent, or a date, which this service never sends."""
    try:
        seconds = float(value) if value is not None else None
    except ValueError:
        return None
    return seconds if seconds is not None and 0 <= seconds < float("inf") else None


def _read(answer: Any, tries: int) -> Reranked:
    results = [(str(row["id"]), float(row["relevance_score"])) for row in answer["results"]]
    timings_ms = answer.get("meta", {}).get("timings_ms", {})
    return Reranked(results, list(answer.get("missing", [])), tries, dict(timings_ms))


def _loop_time(deadline: float) -> float:
    return asyncio.get_running_loop().time() + deadline - time.monotonic()

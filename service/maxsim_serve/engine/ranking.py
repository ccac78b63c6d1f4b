"""One request's scores → its ranking."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maxsim.topk import order, order_all

from .candidates import Resolved
from .job import Explanation, Job, Ranking
from .scorer import Best, Scorer

__all__ = ["Work", "rank_all"]


class Work:
    """A job whose candidates are resolved. It was `taken` from the queue then, by time.perf_counter()."""

    __slots__ = ("job", "resolved", "taken", "timings_s", "wanted")

    def __init__(self, job: Job, resolved: Resolved, timings_s: dict[str, float], taken: float) -> None:
        self.job = job
        self.resolved = resolved
        self.timings_s = timings_s
        self.taken = taken
        # Missing positions hold −∞, which nothing stored scores: the best `found` are those that exist.
        found = resolved.count - len(resolved.missing)
        self.wanted = found if job.top_n is None else min(job.top_n, found)


def rank_all(
    batch: Sequence[Work], results: Sequence[NDArray[np.float32] | Best], kernel: str, scorer: Scorer
) -> Sequence[Ranking | Exception]:
    """The ranking of each request of a batch from its scores, or from the best of them, or what explaining it
    raised; `kernel` made the scores."""
    started = time.perf_counter()
    if len(batch) == 1:  # sooner done without lists
        best = _best(results[0], batch[0].wanted)
        return [_ranking(batch[0], best, kernel, scorer, started, time.perf_counter())]
    whole = [
        (work, result) for work, result in zip(batch, results, strict=True) if not isinstance(result, Best)
    ]
    ordered = iter(order_all([scores for _, scores in whole], [work.wanted for work, _ in whole]))
    ended = time.perf_counter()
    ranked: list[Ranking | Exception] = []
    for work, result in zip(batch, results, strict=True):
        best = result if isinstance(result, Best) else Best(*next(ordered))
        try:
            ranked.append(_ranking(work, best, kernel, scorer, started, ended))
        except Exception as error:
            ranked.append(error)
    return ranked


def _best(result: NDArray[np.float32] | Best, wanted: int) -> Best:
    if isinstance(result, Best):
        return result
    positions = order(result, wanted)
    return Best(positions, result[positions])


def _ranking(work: Work, best: Best, kernel: str, scorer: Scorer, started: float, ended: float) -> Ranking:
    """The best were looked for from `started` until `ended`."""
    resolved, job = work.resolved, work.job
    positions, scores = best
    ids = None if resolved.ids is None else [resolved.ids[i] for i in positions.tolist()]
    explanations = None
    if job.explain:
        explanations = _explain(job.query, resolved, positions.tolist(), scorer)
        ended = time.perf_counter()
    work.timings_s["topk"] = ended - started
    return Ranking(
        positions,
        scores,
        ids,
        resolved.missing,
        resolved.count,
        resolved.tokens,
        work.timings_s,
        kernel,
        ended - work.taken,
        explanations,
    )


def _explain(
    query: NDArray[np.generic], resolved: Resolved, positions: Sequence[int], scorer: Scorer
) -> list[Explanation]:
    spans = {}
    wanted = set(positions)
    for part in resolved.parts:
        for start, length, position in zip(
            part.starts.tolist(), part.lengths.tolist(), part.positions.tolist(), strict=True
        ):
            if position in wanted:
                spans[position] = part.tokens[start : start + length]
    explained = [scorer.explain(query, spans[position]) for position in positions]
    return [Explanation(tokens.numpy(), similarities.numpy()) for tokens, similarities in explained]

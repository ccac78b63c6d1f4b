"""One request's scores → its ranking."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maxsim.topk import order

from .candidates import Resolved
from .job import Explanation, Job, Ranking
from .scorer import Best, Scorer

__all__ = ["Work", "rank"]


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


def rank(work: Work, result: NDArray[np.float32] | Best, kernel: str, scorer: Scorer) -> Ranking:
    """The ranking of one request from its scores, or from the best of them; `kernel` made them."""
    started = time.perf_counter()
    resolved, job = work.resolved, work.job
    if isinstance(result, Best):
        positions, scores = result
    else:
        positions = order(result, work.wanted)
        scores = result[positions]
    ids = None if resolved.ids is None else [resolved.ids[i] for i in positions.tolist()]
    explanations = _explain(job.query, resolved, positions.tolist(), scorer) if job.explain else None
    ended = time.perf_counter()
    work.timings_s["topk"] = ended - started
    return Ranking(
        positions=positions,
        scores=scores,
        ids=ids,
        missing=resolved.missing,
        candidates=resolved.count,
        document_tokens=resolved.tokens,
        timings_s=work.timings_s,
        kernel=kernel,
        engine_s=ended - work.taken,
        explanations=explanations,
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

"""A ranking as the answer of `/rerank` and `/search`."""

import asyncio
from collections.abc import Sequence
from itertools import repeat
from typing import cast

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from ..engine import Explanation, Ranking
from ..errors import InvalidInput
from ..record import RequestRecord
from ..store import Collection
from .content import reply, wants_msgpack
from .deps import ApiDeps
from .query import Clock
from .schemas import Answer, Document, Match, RankMeta, Result, Usage

__all__ = ["answer", "checked_count", "payload_of", "ranked", "show_stored"]


def checked_count(count: int, most: int, field: str, setting: str) -> None:
    """Raises `InvalidInput` for a list without items, and for more of them than the setting allows."""
    if count == 0:
        raise InvalidInput(f"{field} is empty; send at least one", param=field, code="empty")
    if count > most:
        raise InvalidInput(
            f"{field} has {count} items, the setting {setting} allows {most}", param=field, code="over_limit"
        )


async def show_stored(results: Sequence[Result], collection: Collection, request: Request) -> None:
    """Set `document` of each result whose stored document has a text or a payload."""
    described = await asyncio.to_thread(collection.describe, [str(result.id) for result in results])
    for result in results:
        # Deleted since it was scored, or nothing but vectors: there is no document to show.
        found = described.get(str(result.id))
        if found is not None and (found.text is not None or found.payload is not None):
            text = msgspec.UNSET if found.text is None else found.text
            result.document = Document(text, payload_of(found.payload, request))


def payload_of(stored: bytes | None, request: Request) -> object:
    """A stored payload, to be written into the answer: JSON as it came, or decoded for MessagePack."""
    if stored is None:
        return msgspec.UNSET
    return msgspec.json.decode(stored) if wants_msgpack(request) else msgspec.Raw(stored)


def ranked(ranking: Ranking, ids: Sequence[str], *, with_index: bool) -> list[Result]:
    """The ranking's rows as results. `ids` are the request's, by position; empty where it named none.

    Raises `InvalidInput` for scores that left float32: finite vectors can still be too large to multiply.
    """
    if not np.isfinite(ranking.scores).all():
        raise InvalidInput(
            "a score does not fit float32: query and documents are too large; scale them, or use normalize",
            param="query",
            code="overflow",
        )
    positions = ranking.positions.tolist()
    names = [ids[position] for position in positions] if ids else ranking.ids
    results = list(
        map(
            Result,
            ranking.scores.tolist(),
            positions if with_index else repeat(msgspec.UNSET),
            repeat(msgspec.UNSET) if names is None else names,
        )
    )
    if ranking.explanations is not None:
        for result, explanation in zip(results, ranking.explanations, strict=True):
            result.explanation = _matches(explanation)
    return results


def answer(
    request: Request,
    deps: ApiDeps,
    clock: Clock,
    ranking: Ranking,
    results: list[Result] | msgspec.Raw,
    *,
    kind: str,
    query_tokens: int,
    collection: str | None,
    ids: Sequence[str],
) -> Response:
    """The whole answer in the format the client asks for; an unknown id is named once in `missing`.

    `results` may be written in that format already.
    """
    record: RequestRecord = request.state.record
    record.candidates, record.kernel = ranking.candidates, ranking.kernel
    clock.timings_s.update(ranking.timings_s)
    return reply(
        request,
        Answer(
            id=request.state.request_id,
            object=kind,
            model=deps.model_name,
            results=cast(list[Result], results),
            missing=list(dict.fromkeys(ids[i] for i in ranking.missing.tolist())),
            usage=Usage(query_tokens, ranking.document_tokens),
            meta=RankMeta(
                collection=msgspec.UNSET if collection is None else collection,
                candidates=ranking.candidates,
                kernel=ranking.kernel,
                engine_ms=1e3 * ranking.engine_s,
                timings_ms={stage: 1e3 * seconds for stage, seconds in clock.timings_s.items()},
            ),
        ),
    )


def _matches(explanation: Explanation) -> list[Match]:
    pairs = zip(explanation.tokens.tolist(), explanation.similarities.tolist(), strict=True)
    return [Match(i, token, similarity) for i, (token, similarity) in enumerate(pairs)]

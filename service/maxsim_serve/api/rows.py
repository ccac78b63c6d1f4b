"""The results of a ranking by id as bytes, without an object a result, where `_rows.c` was built.

A thousand results are a thousand objects to make and to read: half a millisecond beside some ten of scoring.
"""

from collections.abc import Sequence

import msgspec

from ..engine import Ranking

try:
    from . import _rows
except ImportError:
    compiled = False
else:
    compiled = True

__all__ = ["compiled", "rows"]


def rows(ranking: Ranking, ids: Sequence[str], *, msgpack: bool) -> msgspec.Raw | None:
    """`[{relevance_score, index, id}, …]`, to the byte as msgspec writes a list of `Result`.

    None for what takes `Result`s: explanations, scores that are not finite or very large or small, ids to
    escape in JSON, and where there is no compiled writer.
    """
    if not compiled or not isinstance(ids, list) or ranking.explanations is not None:
        return None
    write = _rows.as_msgpack if msgpack else _rows.as_json
    written = write(ranking.scores, ranking.positions, ids)
    return None if written is None else msgspec.Raw(written)

"""What the kernels for Hopper are told, as `prepare` has it of the others: imported where there is one."""

from maxsim.forward import hopper as long
from maxsim.forward import short_hopper as short
from maxsim.forward.choose import Choice, processors
from maxsim.forward.copy_engine import frame
from maxsim.forward.launch import Launch
from maxsim.forward.operands import DOCUMENT, LISTED, QUERY, places
from maxsim.forward.segments import MOST_ROUNDS
from maxsim.forward.variant import Frame
from maxsim.rows import Layout

__all__ = ["long_query", "short_query"]

LONGEST = (1 << 31) - 1

# What each kernel takes, in the order of its parameters.
_SHORT = places(*QUERY, "query_mask", *DOCUMENT, *LISTED, "scores", "scratch")
_MAXIMA = places(*DOCUMENT, "document_index", "scratch", "nothing", "scores")
_SUMS = places(*DOCUMENT, "document_index", "scores", "scratch", "scores")
_SCORES = places(*DOCUMENT, "document_index", "scores", "nothing", "scores")
_QUERIES, _DOCUMENTS = places("queries", "documents")


def short_query(choice: Choice, left: Layout, right: Layout, listed: bool, pairs: int) -> Launch:
    """As `prepare.short_query`."""
    config, cells = choice.config, pairs * choice.segments
    span = LONGEST  # tokens of a segment, whole tiles: no limit where a document is one
    if choice.segments > 1:
        span = -(-(right.longest or 1) // (choice.segments * config.tokens)) * config.tokens
    tile = (config.columns, config.query_rows, config.tokens)
    return Launch(
        short.KERNEL,
        programs=-(-cells // config.pairs),
        key=(config.key, left.dtype, right.masked),
        tensors=_SHORT,
        numbers=(
            left.item_step, left.length, int(left.listed), int(left.masked),
            right.item_step, right.length, int(right.listed),
            left.items, right.items, int(listed), cells, choice.segments, span, config.query_rows,
        ),
        constants=(*tile, config.stages, config.pairs, config.options.num_warps, right.masked),
        options=config.options,
        device=right.device,
        boxes=_boxes(left, right, config.query_rows, config.tokens, config.columns),
    )  # fmt: skip


def long_query(
    choice: Choice, left: Layout, right: Layout, listed: bool, columns: int, total_columns: int, rows: int,
    sum_rows: int, stride: int,
) -> Launch:  # fmt: skip
    """Of all `rows` of the query table, to the scratch [columns, segments, stride]: row maxima if `sum_rows`
    is 0, else sums of so many. A stride of 0 or 1 with sums: to the scores, as the kernel says."""
    config = choice.config
    chunks = -(-rows // config.query_rows)
    # One program an SM, and no more of them than need be for the rounds that the longest has: where the
    # last round is a short one, its documents would share the memory's rate among fewer programs. Of many
    # rounds the last matters less than an idle SM; in a graph it may be of documents that are not there.
    items = columns * choice.segments
    groups = max(min(processors(right.device) // chunks, items), 1)
    rounds = -(-items // groups)
    if rounds <= MOST_ROUNDS:
        groups = -(-items // rounds)
    tensors = _MAXIMA
    if sum_rows:
        tensors = _SUMS if stride > 1 else _SCORES
    tile = (config.columns, config.query_rows, config.tokens)
    return Launch(
        long.KERNEL,
        programs=groups * chunks,
        key=(config.key, right.dtype, right.masked, sum_rows),
        tensors=tensors,
        numbers=(
            rows, right.item_step, right.length, int(right.listed), right.items, int(listed), 0, columns,
            choice.segments, chunks, stride, stride, total_columns,
        ),
        constants=(*tile, config.stages, right.masked, sum_rows, long.REGISTERS),
        options=config.options,
        device=right.device,
        boxes=_boxes(left, right, config.query_rows // 2, config.tokens, config.columns),
    )  # fmt: skip


def _boxes(
    left: Layout, right: Layout, query_rows: int, tokens: int, columns: int
) -> tuple[tuple[int, Frame], ...]:
    """Which operands the copy engine reads, and in boxes of how many rows."""
    return (_QUERIES, frame(left, query_rows, columns)), (_DOCUMENTS, frame(right, tokens, columns))

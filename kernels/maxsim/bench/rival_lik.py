"""Which functions of late-interaction-kernels 0.4.5 suit which work, and in which form they want it."""

import torch
from torch import Tensor

from maxsim import Ragged
from maxsim.bench.rivals import MOST_ELEMENTS, Offers, gathered
from maxsim.bench.work import Work

__all__ = ["offers"]

OVERFLOW = "left out: it addresses with 32 bits, and these documents have more than 2³¹ elements"
# The library itself cuts queries of more than 512 rows into chunks of 128; shorter ones can gain by it too.
CHUNK_ROWS, CHUNKED_ABOVE = 128, 512


def offers(work: Work) -> Offers:
    """Every function of the library for this work; see `maxsim.bench.rivals`."""
    documents = gathered(work)
    flat = Work(work.queries, documents, "dense" if work.form == "dense" else "packed")
    if len(documents) * flat.longest * documents.dim > MOST_ELEMENTS:
        return Offers(refused={"maxsim": OVERFLOW})
    found = Offers()
    if work.pairs is None:
        _every_pair(found, flat)
        return found
    if len(work.queries) == 1:
        _every_pair(found, flat)
    else:
        _candidates_of_each(found, flat)
    each = torch.arange(len(work.pairs[0]), device=documents.tokens.device)
    _list(found, "score_pairs_packed", work, documents, work.pairs[0], each)
    found = found.on_gathered()
    _list(found, "score_pairs_packed", work, work.documents, *work.pairs)
    return found


def _every_pair(found: Offers, work: Work) -> None:
    """Every query with every document; work is dense or packed."""
    import late_interaction_kernels as lik

    queries, padded = work.queries, work.padded
    rows, dim = queries.shape[1:]
    mask = None if work.same_length else work.mask.to(torch.int8)
    calls = found.calls
    half = queries.dtype == torch.float16
    if rows <= CHUNK_ROWS or rows > CHUNKED_ABOVE or half:
        calls["maxsim"] = lambda: lik.maxsim(queries, padded, d_mask=mask)
    else:
        found.refused["maxsim"] = (
            f"left out at {rows} rows except in float16, since its unrolled loop compiles long; "
            f"in chunks of {CHUNK_ROWS} rows instead"
        )
    if CHUNK_ROWS < rows <= CHUNKED_ABOVE and rows % CHUNK_ROWS == 0:
        chunks = queries.reshape(-1, CHUNK_ROWS, dim)
        calls[f"maxsim, in chunks of {CHUNK_ROWS} rows"] = lambda: (
            lik.maxsim(chunks, padded, d_mask=mask).view(len(queries), -1, len(padded)).sum(dim=1)
        )
    if work.form == "packed":
        query_offsets = work.packed_queries.offsets.to(torch.int32)
        packed_queries, tokens = work.packed_queries.tokens, work.documents.tokens
        offsets, longest = work.documents.offsets.to(torch.int32), work.longest
        calls["maxsim_varlen"] = lambda: lik.maxsim_varlen(
            packed_queries, tokens, query_offsets, offsets, rows, longest
        )


def _candidates_of_each(found: Offers, work: Work) -> None:
    """Several queries, each with as many candidates of its own; work holds the candidates query by query."""
    import late_interaction_kernels as lik

    queries, padded = work.queries, work.padded
    by_query = padded.view(len(queries), -1, *padded.shape[1:])
    mask = work.mask.view(by_query.shape[:3]).to(torch.int8)
    found.calls["maxsim, documents of each query"] = lambda: lik.maxsim(queries, by_query, d_mask=mask)


def _list(
    found: Offers, name: str, work: Work, documents: Ragged, query_index: Tensor, document_index: Tensor
) -> None:
    from late_interaction_kernels.score_pairs import score_pairs_packed

    if documents.tokens.numel() > MOST_ELEMENTS:
        found.refused[name] = OVERFLOW
        return
    pairs = query_index.to(torch.int32), document_index.to(torch.int32)
    queries, rows = work.packed_queries, work.queries.shape[1]
    query_offsets, offsets = queries.offsets.to(torch.int32), documents.offsets.to(torch.int32)
    longest = int(documents.lengths.max())
    found.calls[name] = lambda: score_pairs_packed(
        queries.tokens,
        documents.tokens,
        query_offsets,
        offsets,
        *pairs,
        max_seqlen_q=rows,
        max_seqlen_d=longest,
    )

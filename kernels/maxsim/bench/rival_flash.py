"""Which functions of flash-maxsim 0.3.0 suit which work, and in which form they want it."""

from functools import partial

import torch
from torch import Tensor

from maxsim.bench.rivals import MOST_ELEMENTS, Offers, gathered
from maxsim.bench.work import Work

__all__ = ["offers"]

OVERFLOW = "left out: it segfaults past 2³¹ elements"
# Fewer documents than this leave multiprocessors idle; its split-K functions are for them.
FEW_DOCUMENTS = 132
# `flash_maxsim_qreuse` reads the lengths of up to this many documents at once, past their end too.
QREUSE_DOCUMENTS = 4
CHUNK_ROWS = 128
# `flash_maxsim_packed` converts other dtypes to float16 and fills up other widths, in every call.
PACKED_DIM = 128


def offers(work: Work) -> Offers:
    """Every function of the library for this work; see `maxsim.bench.rivals`."""
    import flash_maxsim

    documents = gathered(work)
    # Its own form of the same documents; for a work list, the candidates gathered before.
    flat = Work(work.queries, documents, "dense" if work.form == "dense" else "packed")
    if len(flat.documents) * flat.longest * flat.documents.dim > MOST_ELEMENTS:
        return Offers(refused={"flash_maxsim": OVERFLOW})
    lengths = documents.lengths.to(torch.int32)
    found = Offers()
    if len(work.queries) > 1 and work.pairs is not None:
        _work_list(found, flat, lengths)
    elif len(work.queries) > 1:
        queries, padded = work.queries, flat.padded
        found.calls["flash_maxsim_batched"] = lambda: flash_maxsim.flash_maxsim_batched(
            queries, padded, lengths
        )
        for factor in (2, 8):
            found.calls[f"flash_maxsim_persistent, grid_factor={factor}"] = partial(
                flash_maxsim.flash_maxsim_persistent, queries, padded, lengths, factor
            )
    else:
        _one_query(found, flat, lengths)
    if work.pairs is not None:
        found = found.on_gathered()
        if len(work.queries) == 1:
            _in_place(found, work, lengths)
    return found


def _one_query(found: Offers, work: Work, lengths: Tensor) -> None:
    """One query against each document; work is dense or packed."""
    import flash_maxsim
    from flash_maxsim.flash_maxsim_exp import flash_maxsim_heuristic

    query, padded, tokens = work.queries[0], work.padded, work.documents.tokens
    rows, count = len(query), len(work.documents)
    offsets = work.documents.offsets.to(torch.int32)
    calls = found.calls
    calls["flash_maxsim"] = lambda: flash_maxsim.flash_maxsim(query, padded, lengths)
    calls["flash_maxsim_heuristic"] = lambda: flash_maxsim_heuristic(query, padded, lengths)
    for factor in (2, 8):
        calls[f"flash_maxsim_persistent, grid_factor={factor}"] = partial(
            flash_maxsim.flash_maxsim_persistent, query, padded, lengths, factor
        )
    if query.dtype == torch.float16 and query.shape[1] == PACKED_DIM:
        calls["flash_maxsim_packed"] = lambda: flash_maxsim.flash_maxsim_packed(query, tokens, offsets)
    else:
        found.refused["flash_maxsim_packed"] = "left out: it would copy these documents in every call"
    if work.form == "packed" and rows <= CHUNK_ROWS:
        longest = work.longest
        calls["flash_maxsim_rerank"] = lambda: flash_maxsim.flash_maxsim_rerank(
            query, tokens, offsets, longest
        )
    if rows > CHUNK_ROWS and count % QREUSE_DOCUMENTS == 0:
        calls["flash_maxsim_qreuse"] = lambda: flash_maxsim.flash_maxsim_qreuse(query, padded, lengths)
    if count < FEW_DOCUMENTS and work.longest >= 1024:
        calls["flash_maxsim, splitk"] = lambda: flash_maxsim.flash_maxsim(query, padded, lengths, splitk=True)
        if rows <= CHUNK_ROWS:
            calls["flash_maxsim_splitk, num_splits=64"] = lambda: flash_maxsim.flash_maxsim_splitk(
                query, padded, lengths, num_splits=64
            )


def _in_place(found: Offers, work: Work, lengths: Tensor) -> None:
    """One query's candidates read where they lie in the store, as ours are."""
    import flash_maxsim

    name = "flash_maxsim_rerank_direct"
    if work.documents.tokens.numel() > MOST_ELEMENTS:
        found.refused[name] = "left out: it addresses with 32 bits, and this store has more than 2³¹ elements"
        return
    assert work.pairs is not None
    query, tokens = work.queries[0], work.documents.tokens
    starts = work.documents.offsets[work.pairs[1]].to(torch.int32)
    longest = int(lengths.max())
    found.calls[name] = lambda: flash_maxsim.flash_maxsim_rerank_direct(
        query, tokens, starts, lengths, longest
    )


def _work_list(found: Offers, work: Work, lengths: Tensor) -> None:
    """Several queries, each with as many candidates of its own; work holds the candidates query by query."""
    import flash_maxsim

    queries, padded = work.queries, work.padded
    count, rows, dim = queries.shape
    candidates = len(work.documents) // count
    by_query = padded.view(count, candidates, *padded.shape[1:])
    repeated = queries.repeat_interleave(candidates, dim=0)  # [P, Lq, d]
    query_offsets = torch.arange(len(repeated) + 1, device=queries.device, dtype=torch.int32) * rows
    offsets, tokens, longest = work.documents.offsets.to(torch.int32), work.documents.tokens, work.longest
    calls = found.calls
    calls["flash_maxsim_batched, shared_docs=False"] = lambda: flash_maxsim.flash_maxsim_batched(
        queries, by_query, lengths, shared_docs=False
    )
    calls["flash_maxsim_pairs_dense"] = lambda: flash_maxsim.flash_maxsim_pairs_dense(
        repeated, padded, doc_lengths=lengths
    )
    calls["flash_maxsim_varlen"] = lambda: flash_maxsim.flash_maxsim_varlen(
        repeated.view(-1, dim), tokens, query_offsets, offsets, rows, longest
    )

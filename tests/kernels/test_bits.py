"""A pair's score has the same bits alone, in any company, in any order, by any route."""

import pytest
import torch

import maxsim
from maxsim import Ragged, Spans

# Every test runs once a kernel.
pytestmark = pytest.mark.usefixtures("kernel")


def pairs_of_one(documents):
    n = len(documents)
    return torch.zeros(n, dtype=torch.int64), torch.arange(n)


@pytest.fixture(params=[16, 128, 200, 1024], ids="d{}".format)
def dim(request):
    return request.param


@pytest.mark.parametrize("query_rows", [1, 17, 32, 300], ids="Lq{}".format)
def test_200_documents_together_alone_shuffled_and_split(unit, seeded, dim, query_rows):
    dtype = (torch.float16, torch.bfloat16, torch.float32)[query_rows % 3]
    lengths = torch.randint(1, 60, (200,), generator=seeded)
    lengths[:8] = torch.tensor([1, 1, 2, 3, 15, 16, 17, 250])
    gaps = torch.randint(0, 3, (200,), generator=seeded)
    starts = (lengths + gaps).cumsum(0) - lengths
    store = unit(int((lengths + gaps).sum()), dim, dtype=dtype)
    query = unit(query_rows, dim)
    spans = Spans(store, starts, lengths)
    together = maxsim.score(query, spans)[0]

    ragged = Ragged.from_list([spans[i] for i in range(200)])
    assert torch.equal(maxsim.score(query, ragged)[0], together)
    assert torch.equal(maxsim.score_pairs(query, spans, *pairs_of_one(spans)), together)

    shuffled = torch.randperm(200, generator=seeded)
    assert torch.equal(maxsim.score_pairs(query, spans, pairs_of_one(spans)[0], shuffled), together[shuffled])
    other = Spans(store, starts[shuffled], lengths[shuffled])
    assert torch.equal(maxsim.score(query, other)[0], together[shuffled])

    for part in (slice(0, 1), slice(1, 8), slice(8, 111), slice(111, 200)):
        assert torch.equal(maxsim.score(query, Spans(store, starts[part], lengths[part]))[0], together[part])

    for i in range(0, 200, 19):
        assert torch.equal(maxsim.score(query, spans[i])[0, 0], together[i])

    padded = torch.zeros(200, 250, dim, dtype=dtype)
    mask = torch.arange(250) < lengths[:, None]
    padded[mask] = ragged.tokens
    assert torch.equal(maxsim.score(query, padded, document_mask=mask)[0], together)


def test_beside_other_queries(unit, seeded, dim):
    queries = [unit(int(n), dim) for n in torch.randint(1, 90, (23,), generator=seeded)]
    documents = Ragged.from_list([unit(int(n), dim) for n in torch.randint(1, 60, (50,), generator=seeded)])
    scores = maxsim.score(Ragged.from_list(queries), documents)
    for query, row in zip(queries, scores, strict=True):
        assert torch.equal(maxsim.score(query, documents)[0], row)
    asked = torch.randint(0, 23, (300,), generator=seeded)
    wanted = torch.randint(0, 50, (300,), generator=seeded)
    pairs = maxsim.score_pairs(Ragged.from_list(queries), documents, asked, wanted)
    assert torch.equal(pairs, scores[asked, wanted])


def test_masked_rows_beside_the_same_rows_packed(unit, seeded, dim):
    queries, documents = unit(4, 33, dim), unit(30, 40, dim)
    keep_query = torch.rand(4, 33, generator=seeded) < 0.5
    keep = torch.rand(30, 40, generator=seeded) < 0.5
    keep[:, 7] = True
    masked = maxsim.score(queries, documents, query_mask=keep_query, document_mask=keep)
    packed = maxsim.score(Ragged.from_padded(queries, keep_query), Ragged.from_padded(documents, keep))
    assert torch.equal(masked, packed)


def test_at_any_alignment_in_memory(unit, dim):
    query, document = unit(32, dim), unit(77, dim)
    wanted = maxsim.score(query, document)
    for offset in (1, 3, 4, 7, 8, 13, 16):
        moved = torch.empty(77 * dim + 16)[offset : offset + 77 * dim].view(77, dim).copy_(document)
        assert torch.equal(maxsim.score(query, moved), wanted)


def test_with_any_number_of_threads(unit, seeded):
    query = unit(32, 128)
    documents = Ragged.from_list([unit(int(n), 128) for n in torch.randint(1, 200, (300,), generator=seeded)])
    before = torch.get_num_threads()
    try:
        scores = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            scores.append(maxsim.score(query, documents))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(scores[0], scores[1])
    assert torch.equal(scores[0], scores[2])

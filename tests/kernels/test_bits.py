"""A pair's score has the same bits alone, in any company, in any order, by any route."""

import pytest
import torch

import maxsim
from maxsim import Ragged, Spans

# Every test runs once a kernel.
pytestmark = pytest.mark.usefixtures("compiled")


def pairs_of_one(documents):
    n = len(documents)
    return torch.zeros(n, dtype=torch.int64), torch.arange(n)


@pytest.fixture(params=[16, 128, 200, 1024], ids="d{}".format)
def dim(request):
    return request.param


@pytest.mark.parametrize("query_rows", [1, 17, 32, 64, 300], ids="Lq{}".format)
def test_200_documents_together_alone_shuffled_and_split(unit, seeded, dim, query_rows):
    dtype = (torch.float16, torch.bfloat16, torch.float32)[query_rows % 3]
    lengths = torch.randint(1, 60, (200,), generator=seeded)
    lengths[:8] = torch.tensor([250, 1, 2, 3, 15, 16, 17, 1])
    gaps = torch.randint(0, 3, (200,), generator=seeded)
    starts = (lengths + gaps).cumsum(0) - lengths
    store = unit(int((lengths + gaps).sum()), dim, dtype=dtype)
    query = unit(query_rows, dim, dtype=torch.float32 if query_rows == 17 else dtype)
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
        # One document alone is cut into segments where it is long.
        assert torch.equal(maxsim.score(query, spans[i])[0, 0], together[i])

    padded = torch.zeros(200, 250, dim, dtype=dtype)
    mask = torch.arange(250) < lengths[:, None]
    padded[mask] = ragged.tokens
    assert torch.equal(maxsim.score(query, padded, document_mask=mask)[0], together)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
def test_beside_other_queries(unit, seeded, dim, dtype):
    lengths = torch.randint(1, 90, (23,), generator=seeded)
    queries = [unit(int(n), dim, dtype=dtype) for n in lengths]
    lengths = torch.randint(1, 60, (50,), generator=seeded)
    documents = Ragged.from_list([unit(int(n), dim, dtype=dtype) for n in lengths])
    packed = Ragged.from_list(queries)
    scores = maxsim.score(packed, documents)
    for query, row in zip(queries, scores, strict=True):
        assert torch.equal(maxsim.score(query, documents)[0], row)
    asked = torch.randint(0, len(queries), (300,), generator=seeded)
    wanted = torch.randint(0, len(documents), (300,), generator=seeded)
    pairs = maxsim.score_pairs(packed, documents, asked, wanted)
    assert torch.equal(pairs, scores[asked, wanted])


@pytest.mark.parametrize("query_rows", [32, 33, 64, 128], ids="Lq{}".format)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
def test_dense_queries_beside_others(unit, query_rows, dtype):
    queries, documents = unit(5, query_rows, 64, dtype=dtype), unit(75, 41, 64, dtype=dtype)
    scores = maxsim.score(queries, documents)
    for query, row in zip(queries, scores, strict=True):
        assert torch.equal(maxsim.score(query, documents)[0], row)
    assert torch.equal(maxsim.score(Ragged.from_list(list(queries)), documents), scores)


def test_masked_rows_beside_the_same_rows_packed(unit, seeded, dim):
    queries, documents = unit(4, 33, dim), unit(30, 40, dim)
    keep_query = torch.rand(4, 33, generator=seeded) < 0.5
    keep = torch.rand(len(documents), 40, generator=seeded) < 0.5
    keep[:, 7] = True
    masked = maxsim.score(queries, documents, document_mask=keep)
    assert torch.equal(masked, maxsim.score(queries, Ragged.from_padded(documents, keep)))
    masked = maxsim.score(queries, documents, query_mask=keep_query, document_mask=keep)
    packed = maxsim.score(Ragged.from_padded(queries, keep_query), Ragged.from_padded(documents, keep))
    assert torch.equal(masked, packed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
def test_at_any_alignment_in_memory(unit, dim, dtype):
    query, document = unit(32, dim, dtype=dtype), unit(77, dim, dtype=dtype)
    wanted = maxsim.score(query, document)
    for offset in (1, 3, 4, 7, 8, 13, 16):
        moved = (
            torch.empty(77 * dim + 16, dtype=dtype)[offset : offset + 77 * dim].view(77, dim).copy_(document)
        )
        assert torch.equal(maxsim.score(query, moved), wanted)


@pytest.mark.parametrize("query_rows", [9, 70], ids="Lq{}".format)
@pytest.mark.parametrize("documents", [1, 7], ids="Nd{}".format)
def test_where_a_gradient_is_wanted(unit, query_rows, documents):
    # Nobody has looked at the lengths on that way, which can mean another kernel.
    query = unit(query_rows, 64)
    packed = Ragged.from_list([unit(300 if i == 0 else 20 + i, 64) for i in range(documents)])
    index = pairs_of_one(packed)
    wanted = maxsim.score(query, packed)
    with_gradient = query.clone().requires_grad_()
    assert torch.equal(maxsim.score(with_gradient, packed).detach(), wanted)
    assert torch.equal(maxsim.score_pairs(with_gradient, packed, *index).detach(), wanted[0])
    queries = Ragged(with_gradient, torch.tensor([0, query_rows]))
    assert torch.equal(maxsim.score(queries, packed).detach(), wanted)


def test_with_any_number_of_threads(unit, seeded, compiled):
    if compiled not in ("cpu", "cpu-avx2"):
        pytest.skip("no threads of the host's take part")
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

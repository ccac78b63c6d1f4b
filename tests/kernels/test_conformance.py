"""The meaning of the operators, one test a rule, on every backend, against loops in float64."""

import numpy as np
import pytest
import torch

import maxsim
from maxsim import Ragged, Spans

LENGTHS = (1, 17, 63, 111, 32, 2)
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def named(dtypes):
    return [pytest.param(*(DTYPES[d] for d in name.split("-")), id=name) for name in dtypes]


@pytest.mark.parametrize("dim", [16, 48, 96, 128, 320, 768, 1024], ids="d{}".format)
@pytest.mark.parametrize("dtype", named(["fp16", "bf16", "fp32"]))
def test_width_is_any_multiple_of_8(backend, unit, agrees, dim, dtype):
    queries = [unit(n, dim, dtype=dtype) for n in (17, 1)]
    documents = [unit(n, dim, dtype=dtype) for n in (1, 23, 5)]
    scores = backend.score(Ragged.from_list(queries), Ragged.from_list(documents))
    agrees(scores, queries, documents)


@pytest.mark.parametrize("query_rows", [1, 16, 17, 24, 31, 32, 63, 111, 300], ids="Lq{}".format)
def test_query_of_any_length(backend, unit, agrees, query_rows):
    query, documents = unit(query_rows, 64), [unit(n, 64) for n in LENGTHS]
    agrees(backend.score(query, Ragged.from_list(documents)), [query], documents)


@pytest.mark.parametrize("document_rows", [1, 17, 63, 111, 513], ids="Ld{}".format)
@pytest.mark.parametrize("items", [1, 3], ids="B{}".format)
def test_padded_documents(backend, unit, agrees, items, document_rows):
    query, documents = unit(5, 32), unit(items, document_rows, 32)
    agrees(backend.score(query, documents), [query], list(documents))


@pytest.mark.parametrize(
    ("query_dtype", "document_dtype"), named(["fp32-fp16", "fp16-bf16", "bf16-fp32", "fp16-fp32"])
)
def test_mixed_dtypes_compute_in_float32(backend, unit, agrees, query_dtype, document_dtype):
    query, documents = unit(9, 64, dtype=query_dtype), [unit(n, 64, dtype=document_dtype) for n in LENGTHS]
    assert maxsim.plan(query, Ragged.from_list(documents)).compute_dtype == torch.float32
    agrees(backend.score(query, Ragged.from_list(documents)), [query], documents)


def test_half_precision_never_overflows(backend):
    query, document = torch.full((2, 64), 6e4).half(), torch.full((3, 64), 6e4).half()
    wanted = 2 * 64 * float(query[0, 0]) ** 2
    assert backend.score(query, document).item() == pytest.approx(wanted, rel=1e-6)


def test_sum_of_maxima_is_not_rounded_to_half(backend):
    # In bfloat16, 256 + 1 is 256: the last 256 rows would be lost.
    query = torch.zeros(512, 16, dtype=torch.bfloat16)
    query[:, 0] = 1
    assert backend.score(query, query[:1]).item() == 512


def test_masked_token_is_never_selected_when_all_are_negative(backend, unit):
    query = unit(7, 32).abs()
    document = -query.repeat(2, 1)
    mask = torch.arange(14) < 5
    score = backend.score(query, document, document_mask=mask).item()
    assert score == pytest.approx(float((query.double() @ document[:5].double().T).amax(1).sum()), abs=1e-5)
    assert score < 0


@pytest.mark.parametrize("form", ["padded", "ragged", "spans"])
def test_document_mask_with_holes(backend, unit, agrees, seeded, form):
    query, padded = unit(6, 40), unit(9, 21, 40)
    mask = torch.rand(9, 21, generator=seeded) < 0.5
    mask[:, 3] = True
    flat, starts = padded.view(-1, 40), torch.arange(9) * 21
    operand = {
        "padded": padded,
        "ragged": Ragged(flat, torch.arange(10) * 21),
        "spans": Spans(flat, starts, torch.full((9,), 21)),
    }[form]
    scores = backend.score(query, operand, document_mask=mask if form == "padded" else mask.view(-1))
    agrees(scores, [query], [document[m] for document, m in zip(padded, mask, strict=True)])


@pytest.mark.parametrize("form", ["padded", "ragged", "spans", "one matrix"])
@pytest.mark.parametrize("query_rows", [1, 17, 63], ids="Lq{}".format)
def test_query_mask_with_holes(backend, unit, agrees, seeded, form, query_rows):
    queries, documents = unit(3, query_rows, 40), [unit(n, 40) for n in LENGTHS]
    mask = torch.rand(3, query_rows, generator=seeded) < 0.5
    flat, starts = queries.view(-1, 40), torch.arange(3) * query_rows
    operand, operand_mask = {
        "padded": (queries, mask),
        "ragged": (Ragged(flat, torch.arange(4) * query_rows), mask.view(-1)),
        "spans": (Spans(flat, starts, torch.full((3,), query_rows)), mask.view(-1)),
        "one matrix": (queries[0], mask[0]),
    }[form]
    scores = backend.score(operand, Ragged.from_list(documents), query_mask=operand_mask)
    active = [query[m] for query, m in zip(queries, mask, strict=True)]
    agrees(scores, active[: len(scores)], documents)


@pytest.mark.parametrize("how", ["no token", "all masked"])
def test_document_without_active_token_is_minus_infinity_and_last(backend, unit, how):
    query = unit(4, 32).abs()
    first, last = -query, -2 * query
    empty = query[:0] if how == "no token" else query
    documents = Ragged.from_list([first, empty, last])
    mask = None if how == "no token" else torch.tensor([True] * 4 + [False] * 4 + [True] * 4)
    scores = backend.score(query, documents, document_mask=mask)[0]
    assert scores[1] == -torch.inf
    assert (scores[[0, 2]] < 0).all()
    assert backend.top_k(scores, 3)[1].tolist() == [0, 2, 1]


@pytest.mark.parametrize("how", ["no row", "all masked"])
def test_query_without_active_row_scores_zero(backend, unit, how):
    query, documents = unit(4, 32), Ragged.from_list([unit(3, 32), unit(0, 32)])
    if how == "no row":
        scores = backend.score(query[:0], documents)
    else:
        scores = backend.score(query, documents, query_mask=torch.zeros(4, dtype=torch.bool))
    assert scores.tolist() == [[0.0, 0.0]]


def test_ties_go_to_the_lowest_token(backend, unit):
    query = unit(8, 32)
    documents = torch.cat([unit(3, 32) * 0.01, query, query])
    assert backend.explain(query, documents).tokens.tolist() == list(range(3, 11))


def test_explain_adds_up_to_the_score(backend, unit):
    query, document = unit(17, 48), unit(63, 48, dtype=torch.float16)
    explanation = backend.explain(query, document)
    products = query.double() @ document.double().T
    assert explanation.tokens.tolist() == products.argmax(1).tolist()
    np.testing.assert_allclose(explanation.similarities, products.amax(1), atol=1e-6)
    assert explanation.similarities.sum().item() == pytest.approx(
        backend.score(query, document).item(), abs=1e-5
    )


def test_explain_of_an_empty_document(backend, unit):
    explanation = backend.explain(unit(3, 16), unit(0, 16))
    assert explanation.tokens.tolist() == [-1, -1, -1]
    assert explanation.similarities.tolist() == [-torch.inf] * 3


@pytest.mark.parametrize(
    ("queries", "documents"), [(0, 3), (2, 0), (0, 0)], ids=["no query", "no document", "neither"]
)
def test_no_items(backend, unit, queries, documents):
    assert backend.score(unit(queries, 5, 16), unit(documents, 7, 16)).shape == (queries, documents)
    none = torch.empty(0, dtype=torch.int64)
    assert backend.score_pairs(unit(queries, 5, 16), unit(documents, 7, 16), none, none).shape == (0,)


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda x: x.transpose(0, 1), id="items and tokens swapped"),
        pytest.param(lambda x: x[::2, 1::3], id="every second item, third token"),
        pytest.param(lambda x: x[..., ::2], id="every second column"),
        pytest.param(lambda x: x[:1].expand(4, -1, -1), id="one item repeated"),
        pytest.param(
            lambda x: x.transpose(1, 2)[:, :16].contiguous().transpose(1, 2), id="columns outermost"
        ),
    ],
)
def test_strided_inputs(backend, unit, agrees, view):
    queries, documents = view(unit(5, 7, 64)), view(unit(11, 19, 64))
    agrees(backend.score(queries, documents), list(queries), list(documents))


def test_pairs_of_a_work_list(backend, unit, seeded):
    queries, documents = [unit(n, 32) for n in (5, 1, 0, 40)], [unit(n, 32) for n in (*LENGTHS, 0)]
    asked = torch.randint(0, 4, (60,), generator=seeded)
    wanted = torch.randint(0, 7, (60,), generator=seeded)
    left, right = Ragged.from_list(queries), Ragged.from_list(documents)
    pairs = backend.score_pairs(left, right, asked, wanted)
    np.testing.assert_allclose(pairs, backend.score(left, right)[asked, wanted], atol=1e-5)


def test_spans_are_read_in_place_in_any_order(backend, unit, agrees):
    query, store = unit(5, 32), unit(200, 32, dtype=torch.float16)
    spans = Spans(store, torch.tensor([150, 0, 0, 60, 199, 200]), torch.tensor([50, 3, 3, 70, 1, 0]))
    agrees(backend.score(query, spans), [query], [spans[i] for i in range(6)])


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf], ids=["nan", "inf", "-inf"])
def test_what_is_masked_or_outside_is_never_read_into_a_score(backend, unit, agrees, poison):
    query, store = unit(5, 32), unit(60, 32)
    store[10:20] = poison
    store[35] = poison
    spans = Spans(store, torch.tensor([0, 20, 30]), torch.tensor([10, 15, 10]))
    mask = torch.arange(60) != 35
    agrees(
        backend.score(query, spans, document_mask=mask),
        [query],
        [store[0:10], store[20:35], torch.cat([store[30:35], store[36:40]])],
    )


def test_nan_spoils_only_its_own_pairs_and_ranks_last(backend, unit):
    query, documents = unit(5, 32), [unit(9, 32) for _ in range(4)]
    documents[1][3, 7] = torch.nan
    documents.append(unit(0, 32))
    scores = backend.score(query, Ragged.from_list(documents))[0]
    assert scores.isnan().tolist() == [False, True, False, False, False]
    assert backend.top_k(scores, 5)[1].tolist()[-2:] == [4, 1]


def test_a_long_document_beside_short_ones(backend, unit):
    query, store = unit(5, 16), unit(20_000, 16)
    spans = Spans(store, torch.tensor([7, 0, 19_990]), torch.tensor([19_000, 3, 10]))
    wanted = [(query.double() @ spans[i].double().T).amax(1).sum().item() for i in range(3)]
    np.testing.assert_allclose(backend.score(query, spans)[0], wanted, atol=1e-5)


def test_store_of_more_than_2_to_31_elements(backend, unit, agrees):
    # Pages never touched are never backed by memory: only the few rows below are.
    rows = 2**31 // 128 + 1000
    store = torch.empty(rows, 128, dtype=torch.float16)
    assert store.numel() > 2**31
    store[-200:] = unit(200, 128)
    store[:50] = unit(50, 128)
    query = unit(5, 128)
    spans = Spans(store, torch.tensor([rows - 63, 0, rows - 200]), torch.tensor([63, 50, 100]))
    agrees(backend.score(query, spans), [query], [spans[i] for i in range(3)])


def test_inputs_are_left_as_they_were(backend, unit):
    query, documents = unit(5, 32), unit(4, 9, 32)
    before = query.clone(), documents.clone()
    backend.score(query, documents, document_mask=torch.rand(4, 9) < 0.5)
    assert torch.equal(query, before[0])
    assert torch.equal(documents, before[1])


def test_earlier_results_are_not_overwritten(backend, unit):
    query, documents = unit(5, 32), unit(4, 9, 32)
    first = backend.score(query, documents)
    kept = first.clone()
    backend.score(-query, documents)
    assert torch.equal(first, kept)

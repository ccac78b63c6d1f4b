"""The meaning of the operators, one test a rule, on every backend, against loops in float64."""

import numpy as np
import pytest
import torch

import maxsim
from maxsim import Ragged, Spans

LENGTHS = (1, 17, 63, 111, 32, 2)
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
# Queries that a GPU takes by different kernels: (number, rows of each), the kernel.
QUERIES = [
    pytest.param((1, 6), "short-query", id="Nq1-Lq6"),
    pytest.param((1, 41), "short-query", id="Nq1-Lq41"),
    pytest.param((1, 70), "long-query", id="Nq1-Lq70"),
    pytest.param((3, 7), "multi-query", id="Nq3-Lq7"),
]
each_kernel = pytest.mark.parametrize(("shape", "runs"), QUERIES)


def named(dtypes):
    return [pytest.param(*(DTYPES[d] for d in name.split("-")), id=name) for name in dtypes]


half_too = pytest.mark.parametrize("dtype", named(["fp16", "fp32"]))


@pytest.mark.parametrize("dim", [16, 48, 64, 96, 128, 200, 256, 320, 768, 1024], ids="d{}".format)
@pytest.mark.parametrize("dtype", named(["fp16", "bf16", "fp32"]))
def test_width_is_any_multiple_of_8(backend, unit, agrees, dim, dtype):
    if backend.interpreted and (dim in (64, 96) or dim > 320 or (dim > 48 and dtype == torch.bfloat16)):
        pytest.skip("the interpreter is slow; its other widths take the same ways through the kernels")
    queries = [unit(n, dim, dtype=dtype) for n in (17, 1)]
    documents = [unit(n, dim, dtype=dtype) for n in (1, 37, 5)]
    packed = Ragged.from_list(documents)
    agrees(backend.score(Ragged.from_list(queries), packed, runs="multi-query"), queries, documents)
    agrees(backend.score(queries[0], packed, runs="short-query"), queries[:1], documents)


@pytest.mark.parametrize("dim", [48, 128, 256, 320], ids="d{}".format)
@pytest.mark.parametrize("dtype", named(["fp16", "bf16", "fp32"]))
def test_long_query_of_any_width(backend, unit, agrees, dim, dtype):
    if backend.interpreted and dim > 48 and dtype == torch.bfloat16:
        pytest.skip("the interpreter is slow, and takes bfloat16 for float32")
    query, documents = unit(71, dim, dtype=dtype), [unit(n, dim, dtype=dtype) for n in (37, 1)]
    agrees(backend.score(query, Ragged.from_list(documents), runs="long-query"), [query], documents)


@pytest.mark.parametrize(
    "query_rows", [1, 16, 17, 24, 31, 32, 33, 63, 64, 65, 111, 128, 129, 300], ids="Lq{}".format
)
@half_too
def test_query_of_any_length(backend, unit, agrees, query_rows, dtype):
    query = unit(query_rows, 64, dtype=dtype)
    documents = [unit(n, 64, dtype=dtype) for n in (LENGTHS[:3] if backend.interpreted else LENGTHS)]
    runs = "short-query" if query_rows <= 64 else "long-query"
    agrees(backend.score(query, Ragged.from_list(documents), runs=runs), [query], documents)


@pytest.mark.parametrize("document_rows", [1, 17, 63, 111, 513], ids="Ld{}".format)
@pytest.mark.parametrize("items", [1, 3], ids="B{}".format)
@half_too
def test_padded_documents(backend, unit, agrees, items, document_rows, dtype):
    query, documents = unit(5, 32, dtype=dtype), unit(items, document_rows, 32, dtype=dtype)
    runs = "short-query" if document_rows < 513 else "split-document"
    agrees(backend.score(query, documents, runs=runs), [query], list(documents))


@pytest.mark.parametrize(
    ("query_dtype", "document_dtype"), named(["fp32-fp16", "fp16-bf16", "bf16-fp32", "fp16-fp32"])
)
@each_kernel
def test_mixed_dtypes_compute_in_float32(backend, unit, agrees, query_dtype, document_dtype, shape, runs):
    queries, documents = (
        unit(*shape, 64, dtype=query_dtype),
        [unit(n, 64, dtype=document_dtype) for n in (1, 63)],
    )
    packed = Ragged.from_list(documents)
    assert maxsim.plan(queries, packed).compute_dtype == torch.float32
    agrees(backend.score(queries, packed, runs=runs), list(queries), documents)


@each_kernel
@pytest.mark.parametrize("dtype", named(["fp16", "bf16"]))
def test_half_precision_never_overflows(backend, shape, runs, dtype):
    query, document = torch.full((*shape, 64), 6e4, dtype=dtype), torch.full((3, 64), 6e4, dtype=dtype)
    wanted = shape[1] * 64 * float(query[0, 0, 0]) ** 2
    assert backend.score(query, document, runs=runs)[0].item() == pytest.approx(wanted, rel=1e-6)


def test_sum_of_maxima_is_not_rounded_to_half(backend):
    # In bfloat16, 256 + 1 is 256: the last 256 rows would be lost.
    query = torch.zeros(512, 16, dtype=torch.bfloat16)
    query[:, 0] = 1
    assert backend.score(query, query[:1], runs="long-query").item() == 512


@each_kernel
@half_too
def test_masked_token_is_never_selected_when_all_are_negative(backend, unit, shape, runs, dtype):
    queries = unit(*shape, 32, dtype=dtype).abs()
    document = -queries.flatten(0, 1).repeat(2, 1)
    mask = torch.arange(len(document)) % 5 == 1
    scores = backend.score(queries, document, document_mask=mask, runs=runs)[:, 0]
    wanted = (queries.double() @ document[mask].double().T).amax(2).sum(1)
    np.testing.assert_allclose(scores.cpu(), wanted.cpu(), atol=1e-6 * shape[1])
    assert (scores < 0).all()


@pytest.mark.parametrize("document_rows", [1, 17, 63], ids="Ld{}".format)
@each_kernel
@half_too
def test_documents_whose_similarities_are_all_negative(
    backend, unit, agrees, shape, runs, document_rows, dtype
):
    # Past its end nothing may be taken for a zero.
    queries, documents = unit(*shape, 48, dtype=dtype).abs(), -unit(2, document_rows, 48, dtype=dtype).abs()
    scores = backend.score(queries, documents, runs=runs)
    agrees(scores, list(queries), list(documents))
    assert (scores < 0).all()


@pytest.mark.parametrize("form", ["padded", "ragged", "spans"])
@each_kernel
@half_too
def test_document_mask_with_holes(backend, unit, agrees, seeded, form, shape, runs, dtype):
    queries, padded = unit(*shape, 40, dtype=dtype), unit(5, 37, 40, dtype=dtype)
    mask = torch.rand(5, 37, generator=seeded) < 0.5
    mask[:, 3] = True
    mask[4, :33] = False
    mask[4, 35] = True
    flat, starts = padded.view(-1, 40), torch.arange(5) * 37
    operand = {
        "padded": padded,
        "ragged": Ragged(flat, torch.arange(6) * 37),
        "spans": Spans(flat, starts, torch.full((5,), 37)),
    }[form]
    mask_of_form = mask if form == "padded" else mask.view(-1)
    scores = backend.score(queries, operand, document_mask=mask_of_form, runs=runs)
    agrees(scores, list(queries), [document[m] for document, m in zip(padded, mask, strict=True)])


@pytest.mark.parametrize("form", ["padded", "ragged", "spans", "one matrix"])
@pytest.mark.parametrize("query_rows", [1, 17, 63, 111], ids="Lq{}".format)
@half_too
def test_query_mask_with_holes(backend, unit, agrees, seeded, form, query_rows, dtype):
    queries, documents = unit(3, query_rows, 40, dtype=dtype), [unit(n, 40, dtype=dtype) for n in (17, 2)]
    mask = torch.rand(3, query_rows, generator=seeded) < 0.5
    flat, starts = queries.view(-1, 40), torch.arange(3) * query_rows
    operand, operand_mask = {
        "padded": (queries, mask),
        "ragged": (Ragged(flat, torch.arange(4) * query_rows), mask.view(-1)),
        "spans": (Spans(flat, starts, torch.full((3,), query_rows)), mask.view(-1)),
        "one matrix": (queries[0], mask[0]),
    }[form]
    one = "short-query" if query_rows <= 64 else "long-query"
    runs = one if form == "one matrix" else "multi-query"
    scores = backend.score(operand, Ragged.from_list(documents), query_mask=operand_mask, runs=runs)
    active = [query[m] for query, m in zip(queries, mask, strict=True)]
    agrees(scores, active[: len(scores)], documents)


@each_kernel
@half_too
def test_masks_on_both_sides(backend, unit, agrees, seeded, shape, runs, dtype):
    queries, documents = unit(*shape, 24, dtype=dtype), unit(4, 19, 24, dtype=dtype)
    query_mask = torch.rand(*shape, generator=seeded) < 0.6
    document_mask = torch.rand(4, 19, generator=seeded) < 0.6
    document_mask[:, 11] = True
    scores = backend.score(queries, documents, query_mask=query_mask, document_mask=document_mask, runs=runs)
    agrees(
        scores,
        [query[m] for query, m in zip(queries, query_mask, strict=True)],
        [document[m] for document, m in zip(documents, document_mask, strict=True)],
    )


@pytest.mark.parametrize("how", ["no token", "all masked"])
@pytest.mark.parametrize(
    ("query_rows", "runs"), [(4, "short-query"), (70, "long-query")], ids=["Lq4", "Lq70"]
)
def test_document_without_active_token_is_minus_infinity_and_last(backend, unit, how, query_rows, runs):
    query = unit(query_rows, 32).abs()
    first, last = -query, -2 * query
    empty = query[:0] if how == "no token" else query
    documents = Ragged.from_list([first, empty, last])
    mask = None if how == "no token" else torch.arange(3 * query_rows) // query_rows != 1
    scores = backend.score(query, documents, document_mask=mask, runs=runs)[0]
    assert scores[1] == -torch.inf
    assert (scores[[0, 2]] < 0).all()
    assert backend.top_k(scores, 3)[1].tolist() == [0, 2, 1]


@each_kernel
@pytest.mark.parametrize("where", ["all of them", "first and last"])
@half_too
def test_empty_documents_beside_others(backend, unit, shape, runs, where, dtype):
    queries = unit(*shape, 32, dtype=dtype)
    items = [unit(n, 32, dtype=dtype) for n in ((0, 0, 0) if where == "all of them" else (0, 5, 0))]
    scores = backend.score(queries, Ragged.from_list(items), runs=runs)
    assert (scores[:, [0, 2]] == -torch.inf).all()
    assert scores[:, 1].isfinite().all() == (where == "first and last")


@pytest.mark.parametrize("how", ["no row", "all masked"])
def test_query_without_active_row_scores_zero(backend, unit, how):
    query, documents = unit(4, 32), Ragged.from_list([unit(3, 32), unit(0, 32)])
    if how == "no row":
        scores = backend.score(query[:0], documents)
    else:
        scores = backend.score(query, documents, query_mask=torch.zeros(4, dtype=torch.bool))
    assert scores.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("lengths", [(0, 3, 0), (0, 0), (70, 0, 1)], ids=str)
@half_too
def test_empty_queries_beside_others(backend, unit, agrees, lengths, dtype):
    queries, documents = (
        [unit(n, 32, dtype=dtype) for n in lengths],
        [unit(n, 32, dtype=dtype) for n in (3, 0, 9)],
    )
    scores = backend.score(Ragged.from_list(queries), Ragged.from_list(documents), runs="multi-query")
    agrees(scores, queries, documents)
    assert all((row == 0).all() for row, n in zip(scores, lengths, strict=True) if n == 0)


def test_ties_go_to_the_lowest_token(backend, unit):
    query = unit(8, 32)
    documents = torch.cat([unit(3, 32) * 0.01, query, query])
    assert backend.explain(query, documents).tokens.tolist() == list(range(3, 11))


def test_explain_adds_up_to_the_score(backend, unit):
    query, document = unit(17, 48), unit(63, 48, dtype=torch.float16)
    explanation = backend.explain(query, document)
    products = query.double() @ document.double().T
    assert explanation.tokens.tolist() == products.argmax(1).tolist()
    np.testing.assert_allclose(explanation.similarities.cpu(), products.amax(1).cpu(), atol=1e-6)
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
    ("view", "runs"),
    [
        pytest.param(lambda x: x.transpose(0, 1)[:4], "short-query", id="items and tokens swapped"),
        pytest.param(lambda x: x[::2, 1::3], "short-query", id="every second item, third token"),
        pytest.param(lambda x: x[..., ::2], "multi-query", id="every second column"),
        pytest.param(lambda x: x[:1].expand(4, -1, -1), "short-query", id="one item repeated"),
        pytest.param(
            lambda x: x.transpose(1, 2)[:, :16].contiguous().transpose(1, 2),
            "short-query",
            id="columns outermost",
        ),
        pytest.param(lambda x: x[1:, :, 8:24], "multi-query", id="an inner part of each row"),
        pytest.param(lambda x: x[:, :, 1:17], "multi-query", id="from an odd address"),
    ],
)
@pytest.mark.parametrize("dtype", named(["fp16", "fp32"]))
def test_strided_inputs(backend, unit, agrees, view, runs, dtype):
    queries, documents = view(unit(3, 7, 64, dtype=dtype)), view(unit(5, 19, 64, dtype=dtype))
    agrees(backend.score(queries, documents, runs=runs), list(queries), list(documents))


@pytest.mark.parametrize(
    "view", [slice(None, None, 2), slice(3, None, 3)], ids=["every second", "every third"]
)
@pytest.mark.parametrize("query_rows", [9, 70], ids="Lq{}".format)
def test_strided_rows_and_columns_of_one_query(backend, unit, agrees, query_rows, view):
    query, documents = unit(query_rows * 3 + 3, 96)[view, ::4][:query_rows], unit(4, 50, 96)[:, view, ::4]
    runs = "short-query" if query_rows <= 64 else "long-query"
    agrees(backend.score(query, documents, runs=runs), [query], list(documents))


@pytest.mark.parametrize(
    ("lengths", "runs"),
    [
        pytest.param((5, 1, 0, 40), "short-query", id="Lq5,1,0,40"),
        pytest.param((70, 1, 0, 140), "long-query", id="Lq70,1,0,140"),
        pytest.param((9,), "short-query", id="Lq9"),
        pytest.param((70,), "long-query", id="Lq70"),
    ],
)
@pytest.mark.parametrize("dtype", named(["fp16", "fp32"]))
def test_pairs_of_a_work_list(backend, unit, seeded, lengths, runs, dtype):
    queries = [unit(n, 32, dtype=dtype) for n in lengths]
    documents = [unit(n, 32, dtype=dtype) for n in (*LENGTHS, 0)]
    pairs = 7 if backend.interpreted else 60
    asked = torch.randint(0, len(lengths), (pairs,), generator=seeded)
    wanted = torch.randint(0, 7, (pairs,), generator=seeded)
    left, right = Ragged.from_list(queries), Ragged.from_list(documents)
    scores = backend.score_pairs(left, right, asked, wanted, runs=runs)
    every = maxsim.reference.score(left, right)[asked, wanted]
    np.testing.assert_allclose(scores.cpu(), every.cpu(), atol=1e-6 * max(lengths))


@pytest.mark.parametrize("document_rows", [19, 700], ids="Ld{}".format)
def test_several_scattered_queries(kernel, unit, agrees, launched, document_rows):
    # Not rows side by side: each query is scored by itself, of which long documents may be cut too.
    documents = unit(3, document_rows, 32)
    for queries in (unit(4, 5, 32)[::2], unit(3, 9, 32)[:, ::2], unit(5, 2, 32).transpose(0, 1)):
        agrees(maxsim.score(queries, documents), list(queries), list(documents))
    if kernel not in ("cpu", "cpu-avx2"):
        assert set(launched) <= {"short-query", "split-document"}


@pytest.mark.parametrize(
    ("outside", "dtype"),
    [
        pytest.param(-1, torch.float16, id="index -1"),
        pytest.param(3, torch.float32, id="index 3"),
        pytest.param(2**40 + 1, torch.float16, id="index 2^40+1"),
    ],
)
@pytest.mark.parametrize("side", ["query", "document"])
@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (3, 70), (1, 70)], ids="Nq{0[0]}-Lq{0[1]}".format)
def test_index_out_of_range(kernel, unit, launched, shape, side, outside, dtype):
    queries, documents = unit(*shape, 16, dtype=dtype), unit(3, 20, 16, dtype=dtype)
    asked, wanted = torch.zeros(3, dtype=torch.int64), torch.arange(3)
    (asked if side == "query" else wanted)[1] = outside
    if kernel in ("cpu", "cpu-avx2"):
        with pytest.raises(maxsim.IndexRangeError, match=f"{side}_index: values from 0 to"):
            maxsim.score_pairs(queries, documents, asked, wanted)
        return
    # A host that looked would wait for the device.
    scores = maxsim.score_pairs(queries, documents, asked, wanted)
    assert [name.removesuffix("-hopper") for name in launched] == [
        "short-query" if shape[1] <= 64 else "long-query"
    ]
    assert scores.isnan().tolist() == [False, True, False]


def test_spans_are_read_in_place_in_any_order(backend, unit, agrees):
    query, store = unit(5, 32), unit(200, 32, dtype=torch.float16)
    spans = Spans(store, torch.tensor([150, 0, 0, 60, 199, 200]), torch.tensor([50, 3, 3, 70, 1, 0]))
    agrees(backend.score(query, spans), [query], [spans[i] for i in range(6)])


@half_too
def test_queries_that_are_spans_of_a_store(backend, unit, agrees, dtype):
    store, documents = unit(300, 32, dtype=dtype), unit(3, 21, 32, dtype=dtype)
    queries = Spans(store, torch.tensor([250, 0, 0, 199, 300]), torch.tensor([50, 3, 90, 1, 0]))
    scores = backend.score(queries, documents, runs="multi-query")
    agrees(scores, [queries[i] for i in range(5)], list(documents))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf], ids=["nan", "inf", "-inf"])
@each_kernel
@half_too
def test_what_is_masked_or_outside_is_never_read_into_a_score(
    backend, unit, agrees, poison, shape, runs, dtype
):
    queries, store = unit(*shape, 32, dtype=dtype), unit(60, 32, dtype=dtype)
    store[10:20] = poison
    store[35] = poison
    spans = Spans(store, torch.tensor([0, 20, 30]), torch.tensor([10, 15, 10]))
    mask = torch.arange(60) != 35
    agrees(
        backend.score(queries, spans, document_mask=mask, runs=runs),
        list(queries),
        [store[0:10], store[20:35], torch.cat([store[30:35], store[36:40]])],
    )


@pytest.mark.parametrize("dtype", named(["fp16", "fp32"]))
@each_kernel
def test_poison_beside_a_document_and_in_masked_query_rows(backend, unit, agrees, shape, runs, dtype):
    queries, store = unit(*shape, 32, dtype=dtype), unit(400, 32, dtype=dtype)
    query_mask = torch.ones(*shape, dtype=torch.bool)
    query_mask[:, 2] = False
    queries[:, 2] = torch.nan
    starts, lengths = torch.tensor([1, 40, 200, 399]), torch.tensor([17, 129, 150, 1])
    inside = torch.zeros(400, dtype=torch.bool)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        inside[start : start + length] = True
    store[~inside] = torch.nan
    spans = Spans(store, starts, lengths)
    scores = backend.score(queries, spans, query_mask=query_mask, runs=runs)
    agrees(
        scores, [query[m] for query, m in zip(queries, query_mask, strict=True)], [spans[i] for i in range(4)]
    )


@pytest.mark.parametrize("dtype", named(["fp16", "bf16", "fp32"]))
@each_kernel
def test_nan_spoils_only_its_own_pairs_and_ranks_last(backend, unit, shape, runs, dtype):
    queries, documents = unit(*shape, 32, dtype=dtype), [unit(9, 32, dtype=dtype) for _ in range(4)]
    documents[1][3, 7] = torch.nan
    documents.append(unit(0, 32, dtype=dtype))
    for scores in backend.score(queries, Ragged.from_list(documents), runs=runs):
        assert scores.isnan().tolist() == [False, True, False, False, False]
        assert backend.top_k(scores, 5)[1].tolist()[-2:] == [4, 1]


def test_nan_in_one_query_leaves_the_others_alone(backend, unit):
    queries, documents = unit(3, 7, 32), unit(2, 9, 32)
    queries[1, 6, 0] = torch.nan
    assert backend.score(queries, documents, runs="multi-query").isnan().any(1).tolist() == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("query_rows", [5, 70], ids="Lq{}".format)
@half_too
def test_a_long_document_beside_short_ones(backend, unit, query_rows, dtype):
    query, store = (
        unit(query_rows, 16, dtype=dtype),
        unit(5_000 if backend.interpreted else 20_000, 16, dtype=dtype),
    )
    long = len(store) - 1000
    spans = Spans(store, torch.tensor([7, 0, long + 990]), torch.tensor([long, 3, 10]))
    wanted = [(query.double() @ spans[i].double().T).amax(1).sum().item() for i in range(3)]
    runs = "split-document" if query_rows <= 64 else "long-query"
    scores = backend.score(query, spans, runs=runs)
    np.testing.assert_allclose(scores[0].cpu(), wanted, atol=1e-6 * query_rows)


@pytest.mark.parametrize("where", ["in the first part", "in the last part", "in every part"])
def test_masks_and_nan_in_a_split_document(backend, unit, agrees, where):
    query, documents = unit(5, 32), unit(2, 700, 32)
    mask = torch.ones(2, 700, dtype=torch.bool)
    masked = {"in the first part": slice(0, 300), "in the last part": slice(400, 700)}.get(
        where, slice(0, 700, 2)
    )
    mask[0, masked] = False
    documents[0, masked] = torch.nan
    scores = backend.score(query, documents, document_mask=mask, runs="split-document")
    agrees(scores, [query], [document[m] for document, m in zip(documents, mask, strict=True)])
    documents[1, 699] = torch.nan
    scores = backend.score(query, documents, document_mask=mask, runs="split-document")
    assert scores.isnan().tolist() == [[False, True]]


@pytest.mark.parametrize("shape", [(1, 5), (1, 70), (2, 9)], ids="Nq{0[0]}-Lq{0[1]}".format)
@pytest.mark.parametrize("dtype", named(["fp16", "fp32"]))
def test_store_of_more_than_2_to_31_elements(backend, unit, agrees, shape, dtype):
    # Pages never touched are never backed by memory: only the few rows below are.
    rows = 2**31 // 128 + 1000
    store = torch.empty(rows, 128, dtype=dtype)
    assert store.numel() > 2**31
    store[-200:] = unit(200, 128)
    store[:50] = unit(50, 128)
    store[-300:-250] = store[:50]
    queries = unit(*shape, 128, dtype=dtype)
    spans = Spans(
        store, torch.tensor([rows - 63, 0, rows - 200, rows - 300]), torch.tensor([63, 50, 100, 50])
    )
    runs = "multi-query" if shape[0] > 1 else "short-query" if shape[1] <= 64 else "long-query"
    scores = backend.score(queries, spans, runs=runs)
    agrees(scores, list(queries), [spans[i] for i in range(4)])
    assert torch.equal(scores[:, 1], scores[:, 3])


@each_kernel
def test_inputs_are_left_as_they_were(backend, unit, shape, runs):
    queries, documents = unit(*shape, 32), unit(4, 9, 32)
    mask = torch.rand(4, 9) < 0.5
    before = queries.clone(), documents.clone(), mask.clone()
    backend.score(queries, documents, document_mask=mask, runs=runs)
    assert all(torch.equal(a, b) for a, b in zip((queries, documents, mask), before, strict=True))


@each_kernel
def test_earlier_results_are_not_overwritten(backend, unit, shape, runs):
    queries, documents = unit(*shape, 32), unit(4, 9, 32)
    first = backend.score(queries, documents, runs=runs)
    kept = first.clone()
    backend.score(-queries, documents, runs=runs)
    assert torch.equal(first, kept)

"""What only a GPU shows: figures at real sizes, no waiting, no compiling, graphs, and torch.compile."""

import random
import threading

import pytest
import torch

import maxsim
from maxsim import Ragged, Spans

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]  # the first to need a kernel compiles it

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
DTYPES = {"fp16": FP16, "bf16": BF16, "fp32": FP32}
# Relative to float64, on rows of unit norm.
MAX_RELATIVE_ERROR = 2e-6


@pytest.fixture(params=DTYPES.values(), ids=DTYPES)
def dtype(request):
    return request.param


def exact(query, documents):
    """float64 scores [N] of query [Lq, d] with Spans or a Ragged, whose items lie anywhere in their store."""
    scores = torch.full((len(documents),), -torch.inf, dtype=torch.float64)
    for first in range(0, len(documents), 200):
        starts, lengths = documents.starts[first : first + 200], documents.lengths[first : first + 200]
        token = torch.arange(int(lengths.max()))
        live = token < lengths[:, None]
        rows = documents.tokens[torch.where(live, starts[:, None] + token, 0)].double()
        products = torch.einsum("qd,ntd->nqt", query.double(), rows).masked_fill(~live[:, None], -torch.inf)
        scores[first : first + 200] = products.amax(2).sum(1)
    return scores


def store(unit, seeded, dim, dtype, items=2000, low=32, high=300):
    lengths = torch.randint(low, high, (items,), generator=seeded)
    return Spans(unit(int(lengths.sum()), dim, dtype=dtype), lengths.cumsum(0) - lengths, lengths)


@pytest.mark.parametrize("dim", [48, 128, 256, 320, 1024], ids="d{}".format)
@pytest.mark.parametrize("query_rows", [1, 32, 64, 130], ids="Lq{}".format)
def test_error_and_the_best_20(gpu, unit, seeded, dim, dtype, query_rows):
    documents, query = store(unit, seeded, dim, dtype), unit(query_rows, dim, dtype=dtype)
    scores = maxsim.score(query, documents)[0]
    wanted = exact(query, documents)
    error = (scores.double() - wanted).abs() / wanted.abs()
    assert error.max() <= MAX_RELATIVE_ERROR
    # Documents that float32 cannot tell apart may take each other's place.
    best = maxsim.top_k(scores, 20).indices
    twentieth = wanted.sort(descending=True).values[19]
    assert (wanted[best] >= twentieth * (1 - 2 * MAX_RELATIVE_ERROR)).all()


@pytest.mark.parametrize("items", [1000, 1024, 1057], ids="N{}".format)
def test_many_rounds_of_which_the_last_is_short_have_the_bits_of_few(gpu, unit, seeded, items):
    documents, query = store(unit, seeded, 128, FP16, items), unit(1024, 128, dtype=FP16)
    assert maxsim.plan(query, documents).kernel.startswith("long-query")
    scores = torch.full((items,), torch.nan)
    for first in range(0, items, 30):
        some = slice(first, first + 30)
        few = Spans(documents.tokens, documents.starts[some], documents.lengths[some])
        scores[some] = maxsim.score(query, few)[0]
    assert torch.equal(maxsim.score(query, documents)[0], scores)
    error = (scores.double() - exact(query, documents)).abs() / scores
    assert error.max() <= MAX_RELATIVE_ERROR


@pytest.mark.parametrize("query_rows", [32, 128], ids="Lq{}".format)
def test_the_same_shapes_at_other_addresses(gpu, unit, query_rows):
    memory, query = unit(201 * 40, 128, dtype=FP16).view(-1), unit(query_rows, 128, dtype=FP16)
    listed = torch.randint(0, 200, (300,))
    for elements in (0, 40 * 128, 8, 1, 3, 0):
        documents = memory[elements:][: 200 * 40 * 128].view(200, 40, 128)
        wanted = maxsim.score(query, documents.clone())[0]
        # The copy engine reads from multiples of 16 bytes.
        copied = elements % 8 == 0 and torch.cuda.get_device_capability()[0] == 9
        assert maxsim.plan(query, documents).kernel.endswith("-hopper") == copied
        assert torch.equal(maxsim.score(query, documents)[0], wanted)
        pairs = maxsim.score_pairs(query, documents, torch.zeros_like(listed), listed)
        assert torch.equal(pairs, wanted[listed])


@pytest.mark.parametrize("items", [100, 2000], ids="N{}".format)
def test_host_memory_is_read_in_place_by_plain_loads_to_the_same_bits(gpu, unit, seeded, items):
    documents, query = store(unit, seeded, 128, FP16, items), unit(32, 128, dtype=FP16)
    host = documents.tokens.cpu().pin_memory()
    shown = _Shown(
        {"shape": tuple(host.shape), "typestr": "<f2", "data": (host.data_ptr(), False), "version": 3}
    )
    view = torch.as_tensor(shown, device="cuda")
    assert view.data_ptr() == host.data_ptr()
    there = Spans(view, documents.starts, documents.lengths)
    kernel = "split-document" if items == 100 else "short-query"
    assert maxsim.plan(query, there).kernel == kernel
    assert maxsim.plan(query, documents).kernel == "short-query-hopper"
    assert torch.equal(maxsim.score(query, there), maxsim.score(query, documents))


class _Shown:
    """Memory of the host that passes for the device's."""

    def __init__(self, interface):
        self.__cuda_array_interface__ = interface


@pytest.mark.parametrize("scale", [2.0**-40, 2.0**-10, 2.0**40], ids=["2^-40", "2^-10", "2^40"])
@pytest.mark.parametrize("query_rows", [32, 130], ids="Lq{}".format)
def test_float32_is_as_exact_at_any_scale(gpu, unit, seeded, scale, query_rows):
    documents, query = store(unit, seeded, 128, FP32, 200), unit(query_rows, 128) * scale
    documents.tokens.mul_(scale)
    wanted = exact(query, documents)
    error = (maxsim.score(query, documents)[0].double() - wanted).abs() / wanted
    assert error.max() <= MAX_RELATIVE_ERROR


@pytest.mark.parametrize("query_dtype", [FP32, BF16], ids=["fp32 query", "bf16 query"])
def test_error_of_mixed_dtypes(gpu, unit, seeded, query_dtype):
    documents, query = store(unit, seeded, 128, FP16), unit(32, 128, dtype=query_dtype)
    wanted = exact(query, documents)
    error = (maxsim.score(query, documents)[0].double() - wanted).abs() / wanted
    assert error.max() <= MAX_RELATIVE_ERROR


@pytest.mark.parametrize("rows", [32, 70], ids="Lq{}".format)
def test_error_of_a_wide_launch(gpu, unit, seeded, dtype, rows):
    queries, documents = unit(40, rows, 128, dtype=dtype), store(unit, seeded, 128, dtype, 300)
    scores = maxsim.score(queries, documents)
    for query, found in zip(queries, scores, strict=True):
        wanted = exact(query, documents)
        assert ((found.double() - wanted).abs() / wanted).max() <= MAX_RELATIVE_ERROR


@pytest.mark.parametrize("rows", [1, 32], ids="Lq{}".format)
def test_more_queries_than_a_grid_has_rows(gpu, unit, rows):
    # The second axis of a grid ends at 65,535.
    items = 70_000
    queries = Ragged(unit(items * rows, 16, dtype=FP16), torch.arange(items + 1) * rows)
    documents = unit(2, 9, 16, dtype=FP16)
    scores = maxsim.score(queries, documents)
    products = torch.einsum("qd,ntd->qnt", queries.tokens.double(), documents.double()).amax(2)
    torch.testing.assert_close(
        scores.double(), products.view(items, rows, 2).sum(1), rtol=0, atol=1e-6 * rows
    )


def test_more_pairs_than_maxima_fit_at_a_time(gpu, unit, seeded):
    # Row maxima of documents are held in batches: here of about a hundred.
    documents = store(unit, seeded, 64, FP16, 1500, 1, 40)
    queries = Ragged.from_list([unit(n, 64, dtype=FP16) for n in (3000, 70, 1, 20_000, 17_001)])
    scores = maxsim.score(queries, documents)
    for i in (1, 2):
        assert torch.equal(scores[i], maxsim.score(queries[i], documents)[0])
    for i in (0, 3):
        wanted = exact(queries[i], documents)
        torch.testing.assert_close(scores[i].double(), wanted, rtol=MAX_RELATIVE_ERROR, atol=1e-4)


def operands(form, unit, dtype=FP16):
    """Arguments of `score` or `score_pairs` in a form, and the kernel they need on a Hopper."""
    index = torch.tensor([0, 1, 1, 0, 2]), torch.tensor([4, 0, 2, 2, 3])
    packed = Ragged.from_list([unit(n, 128, dtype=dtype) for n in (111, 1, 300, 17, 40)])
    ragged = Ragged.from_list([unit(n, 128, dtype=dtype) for n in (32, 1, 64)])
    long = Ragged.from_list([unit(n, 128, dtype=dtype) for n in (100, 1, 64)])
    return {
        "dense": (maxsim.score, (unit(32, 128, dtype=dtype), unit(7, 200, 128, dtype=dtype)), "short-query"),
        "ragged": (maxsim.score, (unit(64, 128, dtype=dtype), packed), "split-document"),
        "split": (
            maxsim.score,
            (unit(9, 128, dtype=dtype), unit(2, 3000, 128, dtype=dtype)),
            "split-document",
        ),
        "long": (maxsim.score, (unit(150, 128, dtype=dtype), packed), "long-query"),
        "several": (maxsim.score, (unit(3, 32, 128, dtype=dtype), packed), "multi-query"),
        "several ragged": (maxsim.score, (ragged, packed), "multi-query"),
        "ids": (maxsim.score_pairs, (ragged, packed, *index), "split-document"),
        "ids of long queries": (maxsim.score_pairs, (long, packed, *index), "long-query"),
        "ids for one query": (
            maxsim.score_pairs,
            (unit(100, 128, dtype=dtype), packed, torch.zeros_like(index[1]), index[1]),
            "long-query",
        ),
    }[form]


FORMS = [
    "dense", "ragged", "split", "long", "several", "several ragged", "ids", "ids of long queries",
    "ids for one query",
]  # fmt: skip


def ran(launched, name):
    return {kernel.removesuffix("-hopper") for kernel in launched} == {name}


@pytest.mark.parametrize("form", FORMS)
def test_the_host_never_waits(gpu, unit, launched, form, dtype):
    run, arguments, name = operands(form, unit, dtype)
    wanted = run(*arguments)
    torch.cuda.set_sync_debug_mode("error")
    try:
        scores = run(*arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(scores, wanted)
    assert ran(launched, name)


@pytest.mark.parametrize("form", FORMS)
def test_captured_in_a_graph_and_replayed_with_other_inputs(gpu, unit, launched, form):
    run, arguments, name = operands(form, unit)
    wanted = run(*arguments)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        scores = run(*arguments)
    graph.replay()
    assert torch.equal(scores, wanted)
    for operand in arguments[:2]:
        tokens = operand if isinstance(operand, torch.Tensor) else operand.tokens
        tokens.copy_(unit(*tokens.shape, dtype=tokens.dtype))
    for index in arguments[2:]:
        index.copy_(index.flip(0))
    graph.replay()
    again = run(*arguments)
    assert not torch.equal(again, wanted)
    assert torch.equal(scores, again)
    assert ran(launched, name)


def test_a_graph_reads_the_lengths_of_its_replay(gpu, unit):
    tokens, starts, lengths = (
        unit(500, 128, dtype=FP16),
        torch.tensor([0, 100, 300]),
        torch.tensor([90, 200, 50]),
    )
    query, documents = unit(32, 128, dtype=FP16), Spans(tokens, starts, lengths)
    maxsim.score(query, documents)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        scores = maxsim.score(query, documents)
    starts.copy_(torch.tensor([7, 0, 400]))
    lengths.copy_(torch.tensor([200, 1, 0]))
    graph.replay()
    assert torch.equal(scores, maxsim.score(query, Spans(tokens, starts, lengths)))


@pytest.mark.parametrize("form", ["dense", "split", "long", "several"])
def test_compiled_whole(gpu, unit, launched, form, dtype):
    run, arguments, _ = operands(form, unit, dtype)
    arguments = [a if isinstance(a, torch.Tensor) else a.tokens.unflatten(0, (7, -1)) for a in arguments]
    wanted = run(*arguments)

    @torch.compile(fullgraph=True)
    def scaled(queries, documents):
        return 2 * maxsim.score(queries, documents)

    launched.clear()
    assert torch.equal(scaled(*arguments), 2 * wanted)
    assert launched


def test_gradient_through_a_kernel(gpu, unit, launched, dtype):
    queries, documents = unit(3, 9, 64, dtype=dtype), unit(5, 17, 64, dtype=dtype)
    ours = [queries.clone().requires_grad_(), documents.clone().requires_grad_()]
    maxsim.score(*ours).log_softmax(1).diagonal().sum().backward()
    assert ran(launched, "multi-query")
    theirs = [queries.double().requires_grad_(), documents.double().requires_grad_()]
    scores = torch.einsum("qid,njd->qnij", *theirs).amax(3).sum(2)
    scores.log_softmax(1).diagonal().sum().backward()
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            mine.grad.double(), wanted.grad, rtol=0, atol=1e-5 if dtype == FP32 else 0.02
        )


def test_on_a_stream_of_the_callers(gpu, unit):
    query, documents = unit(32, 128, dtype=FP16), unit(50, 3000, 128, dtype=FP16)
    wanted = maxsim.score(query, documents)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Behind work on the same stream that the scores depend on.
        torch.cuda._sleep(10_000_000)
        doubled = documents * 2
        scores = maxsim.score(query, doubled)
    stream.synchronize()
    torch.testing.assert_close(scores, 2 * wanted, rtol=0, atol=0)


def test_from_many_threads_at_once(gpu, unit, seeded):
    documents = store(unit, seeded, 128, FP16, 500)
    queries = [unit(n, 128, dtype=FP16) for n in (1, 32, 64, 70, 300)] * 3
    wanted = [maxsim.score(query, documents) for query in queries]
    found = [None] * len(queries)

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            found[i] = [maxsim.score(queries[i], documents) for _ in range(20)]

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(queries))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, many in zip(wanted, found, strict=True) for b in many)


WARM_DIMS = (64, 96, 128, 768)
SHAPES = 2000
LOOK_AT_EVERY = 40


def test_after_the_warm_up_no_shape_compiles_anything(gpu, unit, seeded):
    maxsim.warmup(WARM_DIMS, tuple(DTYPES.values()))
    assert maxsim.warmup(WARM_DIMS, tuple(DTYPES.values())).kernels == 0
    before = maxsim.compilations()
    stores = {(d, t): unit(4096, d, dtype=t) for d in WARM_DIMS for t in DTYPES.values()}
    draw = random.Random(seeded.initial_seed())
    for i in range(SHAPES):
        run, shape = random_call(draw, stores)
        scores = run(maxsim.score, maxsim.score_pairs)
        assert maxsim.compilations() == before, shape
        if i % LOOK_AT_EVERY == 0:
            wanted = run(maxsim.reference.score, maxsim.reference.score_pairs)
            torch.testing.assert_close(
                scores, wanted, rtol=1e-5, atol=1e-4, msg=lambda m, shape=shape: f"{shape}: {m}"
            )


def random_call(draw, stores):
    """(a call of `score` or `score_pairs` on operands of random shapes, what they are)."""
    dim, dtype = draw.choice(WARM_DIMS), draw.choice(list(DTYPES.values()))
    query_dtype = draw.choice([dtype, dtype, FP32])
    queries, left = random_operand(
        draw, stores[dim, query_dtype], draw.choice([1, 1, 2, 5]), draw.choice([9, 40, 200])
    )
    documents, right = random_operand(
        draw, stores[dim, dtype], draw.choice([1, 3, 30]), draw.choice([9, 100, 1500])
    )
    shape = f"d{dim} {query_dtype} {left} × {dtype} {right}"
    if draw.random() < 0.4:
        pairs = draw.choice([1, 7, 60])
        index = [
            torch.tensor([draw.randrange(n) for _ in range(pairs)])
            for n in (maxsim.rows.count(maxsim.rows.parts(side, "")) for side in (queries, documents))
        ]
        return lambda score, score_pairs: score_pairs(queries, documents, *index), f"{pairs} pairs of {shape}"
    masks = {}
    for name, side in (("query_mask", queries), ("document_mask", documents)):
        if draw.random() < 0.3:
            tokens = side if isinstance(side, torch.Tensor) else side.tokens
            masks[name] = torch.rand(tokens.shape[:-1]) < 0.8
    return lambda score, score_pairs: score(queries, documents, **masks), f"{shape} {sorted(masks)}"


def random_operand(draw, tokens, items, longest):
    """Items of up to so many rows, in one of the forms an operand may have."""
    form = draw.choice(["matrix", "dense", "ragged", "spans"])
    length = draw.randint(1, longest)
    first = draw.randrange(len(tokens) - longest)
    if form == "matrix":
        return tokens[first : first + length], f"[{length}]"
    if form == "dense":
        items = min(items, len(tokens) // length)
        first = draw.randint(0, len(tokens) - items * length)
        return tokens[first : first + items * length].unflatten(0, (items, length)), f"[{items}, {length}]"
    lengths = [draw.randint(0, longest) for _ in range(items)]
    if form == "ragged" and sum(lengths) <= len(tokens):
        first = draw.randint(0, len(tokens) - sum(lengths))
        offsets = torch.tensor([sum(lengths[:i]) for i in range(items + 1)])
        return Ragged(tokens[first : first + sum(lengths)], offsets), f"ragged {lengths}"
    starts = [draw.randint(0, len(tokens) - n) for n in lengths]
    return Spans(tokens, torch.tensor(starts), torch.tensor(lengths)), f"spans {lengths}"

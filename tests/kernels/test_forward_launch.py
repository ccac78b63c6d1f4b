"""What a kernel is told in each call: all that follows from shapes is prepared once for the same ones and
remembered, addresses are the call's own. Looked at where a driver would start it, so no GPU is needed."""

from dataclasses import FrozenInstanceError
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

import maxsim
from maxsim import Ragged, Spans, dispatch, operators
from maxsim.rows import MOST_REMEMBERED, side

pytestmark = pytest.mark.skipif(not dispatch._has_triton(), reason="Triton is not installed")

FP16, FP32 = torch.float16, torch.float32
# Where a tensor would lie that is not there.
ABSENT = 64
STREAM = 7
# Of a kernel's parameters, those before its descriptors are the driver's.
DRIVERS = 13


class Started(NamedTuple):
    """A start of a kernel: programs, stream, encoded boxes, and its arguments by the parameter's name."""

    kernel: str
    programs: int
    stream: int
    boxes: list
    arguments: dict


class Gpu:
    """A driver that writes down what it is asked to start."""

    def __init__(self):
        self.started = []
        self.compiled = []
        self.current = None

    def variant(self, launch, operands):
        from maxsim.forward.variant import Variant

        names, boxes = launch.kernel.function.arg_names, len(launch.boxes)
        name = launch.kernel.function.__name__
        self.compiled.append((name, launch.device.index, launch.key))

        def start(*passed):
            # A box is one thing here: its base's address, its rows a box.
            values = passed[DRIVERS + boxes :]
            self.started.append(
                Started(
                    name,
                    passed[0],
                    passed[3],
                    list(passed[DRIVERS : DRIVERS + boxes]),
                    dict(zip(names[boxes:], values, strict=True)),
                )
            )

        run = SimpleNamespace(
            global_scratch_size=0, profile_scratch_size=0, launch=start, launch_cooperative_grid=False,
            launch_pdl=False,
        )  # fmt: skip
        metadata = SimpleNamespace(tensordesc_meta=[None] * boxes)
        compiled = SimpleNamespace(run=run, function=1, packed_metadata=(), name=name, metadata=metadata)
        return Variant(compiled, launch.constants, ABSENT)

    def of(self, call):
        """(what was started by a call, in order; its result)."""
        self.started.clear()
        scores = call()
        return list(self.started), scores


@pytest.fixture
def driver(monkeypatch):
    from maxsim.forward import (
        block_top_k,
        choose,
        finish,
        hopper,
        launch,
        long_query,
        prepare,
        prepare_hopper,
        short_hopper,
        short_query,
        variant,
        work,
    )

    gpu = Gpu()
    for module, name, value in (
        (dispatch, "_on_gpu", lambda device: True),
        (operators, "_check_range", lambda *_: None),
        (choose, "in_host_memory", lambda address: False),
        (choose, "INTERPRETED", False),
        (launch, "INTERPRETED", False),
        (launch, "_compiled", gpu.variant),
        (variant, "make_tensordesc_arg", lambda table, meta: [(table.base.data_ptr(), table.shape)]),
    ):
        monkeypatch.setattr(module, name, value)
    for module in (choose, prepare_hopper):
        monkeypatch.setattr(module, "processors", lambda device: 132)
    monkeypatch.setattr(prepare, "hopper_or_newer", lambda device: True)
    kernels = [module.KERNEL for module in (finish, hopper, long_query, short_hopper, short_query)]
    for kernel in (*kernels, finish.BLOCKS_KERNEL, block_top_k.BEST, block_top_k.LARGEST):
        monkeypatch.setattr(kernel, "_variants", {})
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: gpu.current, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: (STREAM, index), raising=False)
    # Launches that other tests prepared know what they run.
    for remembered in (work.prepared, block_top_k._prepared):
        remembered.cache_clear()
    yield gpu
    for remembered in (work.prepared, block_top_k._prepared):
        remembered.cache_clear()


@pytest.fixture
def h200(driver, monkeypatch):
    from maxsim.forward import choose

    monkeypatch.setattr(choose, "_hopper", lambda device: True)
    return driver


@pytest.fixture
def a100(driver, monkeypatch):
    from maxsim.forward import choose

    monkeypatch.setattr(choose, "_hopper", lambda device: False)
    return driver


def dense(*shape, dtype=FP16):
    return torch.zeros(*shape, dtype=dtype)


def spans(items, length, dim=128):
    starts = torch.arange(items) * length
    return Spans.trusted(dense(items * length, dim), starts, torch.full_like(starts, length), length)


def mask(*shape):
    return torch.ones(*shape, dtype=torch.bool)


def index(pairs, items):
    return torch.arange(pairs) % items


# What is scored: queries, documents, masks or a work list, and the kernels that are started on a Hopper
# and on another GPU. Each call makes tensors of its own.
FORMS = {
    "dense": (
        lambda: (dense(32, 128), dense(300, 30, 128)), {},
        ["short_query_hopper"], ["short_query"],
    ),
    "packed, both masks": (
        lambda: (dense(32, 128), spans(300, 30)),
        {"query_mask": lambda: mask(32), "document_mask": lambda: mask(9000)},
        ["short_query_hopper"], ["short_query"],
    ),
    "ids": (
        lambda: (spans(8, 32), spans(300, 30), index(1000, 8), index(1000, 300)), {},
        ["short_query_hopper"], ["short_query"],
    ),
    "split": (
        lambda: (dense(32, 128), dense(4, 3000, 128)), {"query_mask": lambda: mask(32)},
        ["short_query_hopper", "finish"], ["short_query", "finish"],
    ),
    "64 rows": (
        lambda: (dense(64, 128), dense(300, 30, 128)), {},
        ["short_query"], ["short_query"],
    ),
    "many rows": (
        lambda: (dense(1024, 128), dense(1000, 30, 128)), {},
        ["long_query_hopper", "add_blocks"], ["long_query", "finish"],
    ),
    "128 rows": (
        lambda: (dense(128, 128), dense(1000, 30, 128)), {"document_mask": lambda: mask(1000, 30)},
        ["long_query_hopper"], ["long_query", "finish"],
    ),
    "many rows, split": (
        lambda: (dense(1024, 128), dense(4, 3000, 128)), {},
        ["long_query_hopper", "finish"], ["long_query", "finish"],
    ),
    "several queries": (
        lambda: (dense(128, 32, 128), dense(128, 30, 128)), {},
        ["long_query_hopper"], ["long_query", "finish"],
    ),
    "several ragged queries": (
        lambda: (spans(8, 200), spans(300, 30)),
        {"query_mask": lambda: mask(1600), "document_mask": lambda: mask(9000)},
        ["long_query_hopper", "finish"], ["long_query", "finish"],
    ),
    "ids of long queries": (
        lambda: (spans(8, 200), spans(300, 30), index(1000, 8), index(1000, 300)), {},
        ["long_query", "finish"], ["long_query", "finish"],
    ),
    "ids for one long query": (
        lambda: (dense(1024, 128), spans(300, 30), index(1000, 1), index(1000, 300)), {},
        ["long_query_hopper", "add_blocks"], ["long_query", "finish"],
    ),
    "float32": (
        lambda: (dense(70, 320, dtype=FP32), dense(300, 30, 320, dtype=FP32)), {},
        ["long_query", "finish"], ["long_query", "finish"],
    ),
}  # fmt: skip


class Call:
    """A call on tensors of its own: what it scores, and the address that each parameter must get."""

    def __init__(self, form):
        make, masks, self.on_h200, self.on_a100 = FORMS[form]
        self.operands, self.masks = make(), {name: made() for name, made in masks.items()}
        queries, documents, *listing = self.operands
        query_index, document_index = listing or (None, None)
        self.wanted = {}
        for letter, operand, name in (("Q", queries, "query_mask"), ("X", documents, "document_mask")):
            packed = isinstance(operand, Spans)
            self.wanted |= {
                letter: address(operand.tokens if packed else operand),
                f"{letter}_START": address(operand.starts if packed else None),
                f"{letter}_LENGTH": address(operand.lengths if packed else None),
                f"{letter}_MASK": address(self.masks.get(name)),
            }
        self.wanted |= {"Q_INDEX": address(query_index), "X_INDEX": address(document_index)}

    def __call__(self):
        score = maxsim.score_pairs if len(self.operands) == 4 else maxsim.score
        return score(*self.operands, **self.masks)

    def check(self, started, scores):
        """Whether each kernel was told of this call's tensors, and of nothing else."""
        wanted = self.wanted | {"OUT": address(scores), "SCORES": address(scores)}
        left_behind = set()
        for start in started:
            assert start.stream == (STREAM, None)
            if start.boxes:
                assert [box[0] for box in start.boxes] == [wanted["Q"], wanted["X"]]
            for name, value in start.arguments.items():
                if name in ("ROWMAX", "SUMS"):
                    left_behind.add(value)
                elif name.split("_")[0] in ("Q", "X", "OUT", "SCORES"):
                    assert value == wanted[name], (start.kernel, name)
        # Beside the scores, and what is not there, one piece of memory: written by one, read by the next.
        assert len(left_behind - {address(scores), ABSENT}) == (len(started) > 1)


def address(tensor):
    return ABSENT if tensor is None else tensor.data_ptr()


def numbers(started):
    """What does not depend on where things lie."""
    return [
        (start.kernel, start.programs, [box[1] for box in start.boxes],
         {name: value for name, value in start.arguments.items() if not name[0].isupper()})
        for start in started
    ]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gpu", ["h200", "a100"])
def test_each_call_is_told_of_its_own_tensors(request, gpu, form):
    driver = request.getfixturevalue(gpu)
    calls = [Call(form) for _ in range(3)]
    found = [driver.of(call) for call in calls]
    for call, (started, scores) in zip(calls, found, strict=True):
        assert [start.kernel for start in started] == getattr(call, f"on_{gpu}")
        call.check(started, scores)
    assert numbers(found[0][0]) == numbers(found[1][0]) == numbers(found[2][0])


@pytest.mark.parametrize(
    ("rows", "documents", "programs"),
    [
        pytest.param(128, 1000, 125, id="8 even rounds"),
        pytest.param(512, 1000, 2 * 63, id="16 even rounds"),
        pytest.param(1024, 100, 4 * 25, id="4 even rounds"),
        pytest.param(1024, 1000, 4 * 33, id="31 rounds"),
        pytest.param(1024, 1024, 4 * 33, id="32 rounds, the last of them short"),
        pytest.param(1024, 5, 4 * 5, id="1 round"),
    ],
)
def test_many_query_rows_take_every_sm_or_even_rounds(h200, rows, documents, programs):
    maxsim.score(dense(rows, 128), spans(documents, 30))
    assert [start.programs for start in h200.started][:1] == [programs]
    assert h200.started[0].kernel == "long_query_hopper"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gpu", ["h200", "a100"])
def test_equal_shapes_are_prepared_once_and_compiled_once(request, gpu, form):
    from maxsim.forward import work

    driver = request.getfixturevalue(gpu)
    Call(form)()
    prepared, compiled = work.prepared.cache_info().misses, len(driver.compiled)
    assert (prepared, compiled) == (1, len(getattr(Call(form), f"on_{gpu}")))
    for _ in range(3):
        Call(form)()
    assert work.prepared.cache_info().misses == prepared
    assert len(driver.compiled) == compiled


def test_other_sizes_are_prepared_anew_and_compile_nothing(h200):
    from maxsim.forward import work

    Call("dense")()
    compiled = list(h200.compiled)
    for documents in (301, 302):
        started, _ = h200.of(lambda n=documents: maxsim.score(dense(32, 128), dense(n, 30, 128)))
        assert [start.arguments["documents"] for start in started] == [documents]
    assert h200.compiled == compiled
    assert work.prepared.cache_info().misses == 3


def test_one_call_leaves_nothing_of_a_mask_or_a_work_list_to_the_next(h200):
    queries, documents = spans(8, 32), spans(300, 30)
    rows = Spans.trusted(queries.tokens[:32], queries.starts[:1], queries.lengths[:1], 32)
    under, listed = mask(9000), (index(1000, 8), index(1000, 300))
    found = [
        h200.of(call)[0][0].arguments
        for call in (
            lambda: maxsim.score(rows, documents),
            lambda: maxsim.score(rows, documents, document_mask=under),
            lambda: maxsim.score_pairs(queries, documents, *listed),
            lambda: maxsim.score(rows, documents),
        )
    ]
    masks, lists = [[f[name] for f in found] for name in ("X_MASK", "X_INDEX")]
    assert masks == [ABSENT, under.data_ptr(), ABSENT, ABSENT]
    assert lists == [ABSENT, ABSENT, listed[1].data_ptr(), ABSENT]
    assert [f["listed"] for f in found] == [0, 0, 1, 0]
    assert [f["MASKED"] for f in found] == [False, True, False, False]


def test_a_tensor_that_has_changed_its_shape_is_read_as_it_is_now(h200):
    query, documents = dense(32, 128), dense(300, 30, 128)
    before = h200.of(lambda: maxsim.score(query, documents))[0][0].arguments
    documents.resize_(200, 45, 128)
    after = h200.of(lambda: maxsim.score(query, documents))[0][0].arguments
    assert (before["documents"], before["x_rows"]) == (300, 30)
    assert (after["documents"], after["x_rows"]) == (200, 45)


def test_what_launches_are_remembered_by_cannot_be_changed(h200):
    left, right = side(dense(32, 128), "queries"), side(dense(300, 30, 128), "documents")
    from maxsim.forward import choose

    with pytest.raises(FrozenInstanceError):
        right.layout.items = 299
    with pytest.raises(FrozenInstanceError):
        choose.choose(left, right).segments = 2


def test_no_more_is_remembered_than_fits(h200):
    from maxsim.forward import work

    query, documents = dense(32, 16), dense(MOST_REMEMBERED + 100, 3, 16)
    for n in range(1, len(documents) + 1):
        maxsim.score(query, documents[:n])
    assert work.prepared.cache_info().currsize == MOST_REMEMBERED
    # Forgotten, and prepared again.
    started, _ = h200.of(lambda: maxsim.score(query, documents[:1]))
    assert started[0].arguments["documents"] == 1


def test_no_more_boxes_are_remembered_than_fit(h200):
    from maxsim.forward import short_hopper
    from maxsim.forward.variant import MAX_ENCODED

    tokens, documents = dense(32 + 8 * (MAX_ENCODED + 50), 128), dense(300, 30, 128)
    for first in range(0, len(tokens) - 32, 8):
        query = tokens[first : first + 32]
        started, _ = h200.of(lambda query=query: maxsim.score(query, documents))
        assert [box[0] for box in started[0].boxes] == [query.data_ptr(), documents.data_ptr()]
        (variant,) = short_hopper.KERNEL._variants.values()
        assert len(variant._encoded) <= MAX_ENCODED


def test_rows_at_odd_addresses_are_another_variant_of_the_same_sizes(a100):
    memory, query = dense(300 * 30 * 128 + 8), dense(32, 128)
    for elements in (0, 1, 8, 3):
        documents = memory[elements:][: 300 * 30 * 128].view(300, 30, 128)
        started, _ = a100.of(lambda documents=documents: maxsim.score(query, documents))
        straight = elements % 8 == 0
        told = started[0].arguments
        assert told["X"] == documents.data_ptr()
        assert (told["x_stride"], told["ALIGNED"]) == (16 if straight else 128, straight)
    assert len(a100.compiled) == 2


def test_strided_tables_are_told_by_their_strides(a100):
    wide = dense(300, 61, 256)
    names = ("x_stride", "x_col", "x_item", "x_step", "ALIGNED")
    for documents, wanted in (
        (wide[:, :, ::2], (256, 2, 61, 1, False)),
        # In units of eight elements.
        (wide[:, ::2, :128], (32, 1, 61, 2, True)),
        (wide[::2, :, :128], (32, 1, 122, 1, True)),
    ):
        started, _ = a100.of(lambda documents=documents: maxsim.score(dense(32, 128), documents))
        assert tuple(started[0].arguments[name] for name in names) == wanted


@pytest.mark.parametrize(
    ("gpu", "form", "filled"),
    [
        ("h200", "many rows", 8 * 16),
        ("h200", "several ragged queries", 4 * 1600),
        ("a100", "many rows", 4 * 1024),
    ],
)
def test_what_does_not_fit_at_a_time_is_taken_in_batches(request, monkeypatch, gpu, form, filled):
    from maxsim.forward import launch, prepare, prepare_hopper, work

    made = []

    def counted(*told, **named):
        made.append(launch.Launch(*told, **named))
        return made[-1]

    driver = request.getfixturevalue(gpu)
    for module in (prepare, prepare_hopper):
        monkeypatch.setattr(module, "Launch", counted)
    monkeypatch.setattr(work, "MAXIMA_BYTES", 130 * filled)
    call = Call(form)
    started, scores = driver.of(call)
    call.check(started, scores)
    columns = scores.shape[-1]
    batches = [(first, min(130, columns - first)) for first in range(0, columns, 130)]
    assert batches[-1][1] < 130
    for kernels in (started[::2], started[1::2]):
        assert len({start.kernel for start in kernels}) == 1
        assert [start.arguments["first_column"] for start in kernels] == [first for first, _ in batches]
    told = [(start.arguments["first_column"], start.arguments["columns"]) for start in started[1::2]]
    assert told == batches
    # Two launches for batches, two for the rest, however many there are.
    assert len(made) == 4 < len(started)


def test_in_batches_scores_have_the_same_bits(kernel, unit, monkeypatch):
    if kernel not in ("triton-interpreted", "gpu"):
        pytest.skip("launches nothing")
    from maxsim.forward import work

    queries, documents = unit(3, 70, 32), Ragged.from_list([unit(n, 32) for n in (5, 1, 9, 30, 2, 7, 17)])
    wanted = maxsim.score(queries, documents)
    work.prepared.cache_clear()
    monkeypatch.setattr(work, "MAXIMA_BYTES", 3 * 4 * 210)
    assert torch.equal(maxsim.score(queries, documents), wanted)
    work.prepared.cache_clear()


@pytest.mark.parametrize("rows", [1, 3], ids="B{}".format)
def test_each_launch_of_top_k_gets_what_those_before_it_left(driver, rows):
    from maxsim.forward import block_top_k

    total, k = block_top_k.GROUPED + 5, 100
    scores, others = torch.rand(rows, total), torch.rand(rows, total)
    started, found = driver.of(lambda: block_top_k.positions(scores, k))
    largest, *best = started
    assert largest.kernel == "largest_keys" and {start.kernel for start in best} == {"best_keys"}
    # The keys of the groups, then of blocks of them: the places of the best; then those groups' scores.
    again = next(n for n, start in enumerate(best) if start.arguments["SOURCE"] == scores.data_ptr())
    for stage, source in ((best[:again], largest.arguments["TARGET"]), (best[again:], scores.data_ptr())):
        for start in stage:
            assert start.arguments["SOURCE"] == source
            assert start.programs == rows * start.arguments["blocks"]
            source = start.arguments["TARGET"]
    assert best[again].arguments["LISTED"] == best[again - 1].arguments["TARGET"]
    assert [start.arguments["LISTED"] for n, start in enumerate(best) if n != again] == [ABSENT] * (
        len(best) - 1
    )
    assert best[-1].arguments["TARGET"] == found.data_ptr() and found.shape == (rows, k)
    compiled, prepared = len(driver.compiled), block_top_k._prepared.cache_info().misses
    more, elsewhere = driver.of(lambda: block_top_k.positions(others, k))
    assert (len(driver.compiled), block_top_k._prepared.cache_info().misses) == (compiled, prepared)
    assert [start.programs for start in more] == [start.programs for start in started]
    assert more[0].arguments["SCORES"] == others.data_ptr()
    assert more[-1].arguments["TARGET"] == elsewhere.data_ptr() != found.data_ptr()


def test_each_device_runs_its_own(driver, monkeypatch):
    from maxsim.forward import finish, launch, prepare

    layouts = side(dense(32, 128), "queries").layout, side(dense(4, 3000, 128), "documents").layout
    made = prepare.finish(*layouts, False, 4, 4, 8, 32, False)
    devices = [torch.device("cuda", index) for index in (0, 1)]
    launches = [
        launch.Launch(
            finish.KERNEL, made.programs, made.key, made.tensors, made.numbers, made.constants, made.options,
            device,
        )
        for device in devices
    ]  # fmt: skip

    class Entered:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            self.before, driver.current = driver.current, self.index

        def __exit__(self, *_):
            driver.current = self.before

    monkeypatch.setattr(torch.cuda, "device", Entered)
    driver.current = 0
    for each in (*launches, *launches):
        launch.enqueue([each], (dense(1),) * 13)
    assert driver.current == 0
    assert [(name, index) for name, index, _ in driver.compiled] == [("finish", 0), ("finish", 1)]
    assert [start.stream for start in driver.started] == [(STREAM, 0), (STREAM, 1)] * 2

"""The frozen table: which kernel, configuration and number of segments each shape gets, and on what GPU."""

import subprocess
import sys
import textwrap

import pytest
import torch

import maxsim
from maxsim import dispatch
from maxsim.rows import Parts, masked, side

pytestmark = pytest.mark.skipif(not dispatch._has_triton(), reason="Triton is not installed")

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32


@pytest.fixture
def choose(monkeypatch):
    from maxsim.forward import choose

    # Where kernels are interpreted, bfloat16 is computed in float32.
    monkeypatch.setattr(choose, "INTERPRETED", False)
    return choose


@pytest.fixture
def h200(choose, monkeypatch):
    monkeypatch.setattr(choose, "processors", lambda device: 132)
    monkeypatch.setattr(choose, "_hopper", lambda device: True)
    monkeypatch.setattr(choose, "in_host_memory", lambda address: False)
    return choose


@pytest.fixture
def a100(choose, monkeypatch):
    monkeypatch.setattr(choose, "processors", lambda device: 108)
    monkeypatch.setattr(choose, "_hopper", lambda device: False)
    return choose


def dense(items, rows, dim=128, dtype=FP16):
    """Only sizes matter here: no memory behind it."""
    return torch.empty(items, rows, dim, dtype=dtype, device="meta")


def sides(queries, documents, mask=None):
    return side(queries, "queries"), masked(side(documents, "documents"), mask, "document_mask")


def packed(rows, items, longest, dim=128, dtype=FP16):
    """A Ragged's parts; longest None where nobody has looked."""
    index = torch.empty(items, dtype=torch.int64, device="meta")
    return side(Parts(torch.empty(rows, dim, dtype=dtype, device="meta"), index, index, longest), "packed")


def config_of(choice):
    return choice.config.key.split()[0]


def test_host_memory_is_read_by_plain_loads(h200, monkeypatch):
    monkeypatch.setattr(h200, "in_host_memory", lambda address: True)
    for documents, config in ((100, "few-32"), (1000, "short-32")):
        choice = h200.choose(*sides(dense(1, 32), dense(documents, 120)))
        assert (choice.name, config_of(choice)) == ("short-query", config)


def test_a_choice_is_remembered_by_what_it_depends_on(h200, monkeypatch):
    def chosen(documents=300, pairs=None):
        return h200.choose(*sides(dense(1, 32), dense(1000, documents)), pairs)

    choice = chosen()
    assert chosen() is choice
    assert {chosen(301), chosen(pairs=1000)}.isdisjoint([choice])
    with h200.without_splitting():
        assert chosen() is not choice
    assert chosen() is choice
    for function, value in (("in_host_memory", True), ("_hopper", False), ("processors", 108)):
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(h200, function, lambda _, value=value: value)
            assert chosen() is not choice


# (Nq, Lq), (Nd, Ld), d, dtype → kernel, configuration, segments of a document
ON_H200 = [
    ((1, 1), (1000, 300), 128, FP16, "short-query-hopper", "hopper-32", 1),
    ((1, 32), (1000, 300), 128, FP16, "short-query-hopper", "hopper-32", 1),
    ((1, 32), (4091, 300), 48, BF16, "short-query-hopper", "hopper-32", 1),
    ((1, 32), (4092, 300), 128, FP16, "short-query-hopper", "hopper-32", 1),
    ((1, 33), (1000, 1024), 128, FP16, "short-query", "short-64", 1),
    ((1, 64), (1000, 1024), 128, BF16, "short-query", "short-64", 1),
    ((1, 32), (1000, 300), 1024, FP16, "short-query", "short-32", 1),
    ((1, 32), (1000, 300), 128, FP32, "short-query", "short-32", 1),
    ((1, 32), (100, 1024), 128, FP16, "split-document-hopper", "hopper-long", 2),
    ((1, 32), (1, 8192), 128, FP16, "split-document-hopper", "hopper-long", 32),
    ((1, 32), (263, 511), 128, FP16, "short-query-hopper", "hopper-few", 1),
    ((1, 64), (263, 256), 128, FP16, "split-document", "short-64", 2),
    ((1, 32), (263, 255), 96, BF16, "short-query-hopper", "hopper-few", 1),
    ((1, 33), (263, 255), 128, FP16, "short-query", "short-64", 1),
    ((1, 32), (263, 255), 256, FP16, "short-query", "short-32", 1),
    ((1, 32), (264, 256), 128, FP16, "short-query-hopper", "hopper-32", 1),
    ((1, 32), (100, 255), 128, FP16, "short-query-hopper", "hopper-few", 1),
    ((1, 65), (1000, 1024), 128, FP16, "long-query-hopper", "hopper-128", 1),
    ((1, 128), (1000, 1024), 128, FP16, "long-query-hopper", "hopper-128", 1),
    ((1, 129), (1000, 1024), 128, FP16, "long-query-hopper", "hopper-256", 1),
    ((1, 300), (1000, 1024), 128, FP16, "long-query-hopper", "hopper-128", 1),
    ((1, 1024), (1000, 1024), 64, BF16, "long-query-hopper", "hopper-256", 1),
    ((1, 128), (1000, 1024), 16, FP16, "long-query-hopper", "hopper-128", 1),
    ((1, 1024), (1000, 1024), 256, FP16, "long-query-hopper", "hopper-128", 1),
    ((1, 1024), (8, 8192), 128, FP16, "long-query-hopper", "hopper-256", 4),
    ((1, 1024), (1, 8192), 128, FP16, "long-query-hopper", "hopper-256", 32),
    ((1, 1024), (32, 2048), 128, FP16, "long-query-hopper", "hopper-256", 1),
    ((1, 1024), (100, 1024), 128, FP16, "long-query-hopper", "hopper-256", 4),
    ((1, 128), (100, 1024), 128, FP16, "long-query-hopper", "hopper-128", 1),
    ((1, 128), (300, 1024), 128, FP16, "long-query-hopper", "hopper-128", 1),
    ((16, 32), (40, 2048), 128, FP16, "multi-query-hopper", "hopper-256", 8),
    ((1, 128), (1000, 1024), 320, FP16, "long-query", "long", 2),
    ((1, 128), (1000, 1024), 128, FP32, "long-query", "long-wide", 2),
    ((8, 32), (1000, 300), 128, FP16, "multi-query-hopper", "hopper-256", 1),
    ((64, 1024), (64, 1024), 128, FP16, "multi-query-hopper", "hopper-256", 1),
    ((2, 17), (5, 7), 320, FP16, "multi-query", "long", 1),
    ((8, 32), (1000, 300), 128, FP32, "multi-query", "long-wide", 1),
]  # fmt: skip
ON_A100 = [
    ((1, 32), (1000, 300), 128, FP16, "short-query", "short-32", 1),
    ((1, 32), (100, 1024), 128, FP16, "split-document", "short-32", 8),
    ((1, 64), (263, 256), 128, FP16, "short-query", "short-64", 1),
    ((1, 32), (100, 255), 128, FP16, "short-query", "few-32", 1),
    ((1, 65), (1000, 1024), 128, FP16, "long-query", "long", 1),
    ((1, 1024), (10, 8192), 128, BF16, "long-query", "long", 11),
    ((8, 32), (1000, 300), 128, FP16, "multi-query", "long", 1),
    ((2, 17), (5, 7), 96, FP32, "multi-query", "long", 1),
]  # fmt: skip


def readable(rows):
    form = "Nq{0[0]}-Lq{0[1]} Nd{1[0]}-Ld{1[1]} d{2} {3}"
    return [pytest.param(*row, id=form.format(*row[:3], str(row[3]).removeprefix("torch."))) for row in rows]


columns = ("queries", "documents", "dim", "dtype", "name", "config", "segments")


@pytest.mark.parametrize(columns, readable(ON_H200))
def test_on_an_h200(h200, queries, documents, dim, dtype, name, config, segments):
    choice = h200.choose(*sides(dense(*queries, dim, dtype), dense(*documents, dim, dtype)))
    assert (choice.name, config_of(choice), choice.segments) == (name, config, segments)
    assert choice.config in h200.configs(dim, dtype).values()
    assert choice.reason
    assert not choice.chunked


@pytest.mark.parametrize(columns, readable(ON_A100))
def test_on_an_a100(a100, queries, documents, dim, dtype, name, config, segments):
    choice = a100.choose(*sides(dense(*queries, dim, dtype), dense(*documents, dim, dtype)))
    assert (choice.name, config_of(choice), choice.segments) == (name, config, segments)


@pytest.mark.parametrize("query_rows", [32, 1024], ids="Lq{}".format)
def test_without_splitting(h200, query_rows):
    operands = sides(dense(1, query_rows), dense(2, 8192))
    assert h200.choose(*operands).segments > 1
    with h200.without_splitting():
        assert h200.choose(*operands).segments == 1
    assert h200.choose(*operands).segments > 1


def test_segments_are_as_many_as_fill_the_chip_but_none_is_short(h200):
    lengths = (255, 256, 511, 512, 1000, 10**6)
    for items in (1, 7, 100):
        for dim, few in (
            (128, [1, 1, 1, 2, 3, -(-132 // items)]),
            (256, [1, 2, 3, 4, 7, -(-8 * 132 // items)]),
        ):
            queries = dense(1, 32, dim)
            segments = [h200.choose(*sides(queries, dense(items, n, dim))).segments for n in lengths]
            assert segments == [min(wanted, few[-1]) for wanted in few]


def test_programs_of_many_rows_are_done_together(choose):
    from maxsim.forward.segments import even_rounds

    config = choose.configs(128, FP16)["hopper-256"]

    def rounds(columns, segments, groups=33):
        return columns * segments / groups

    for columns in (1, 2, 8, 17, 34, 100, 300):
        segments = even_rounds(columns, 8192, 33, config, False)
        # The last round is nearly full, or one of many.
        assert segments == 1 or rounds(columns, segments) / -(-columns * segments // 33) > 0.9
    # Each document is one round: to cut them gains nothing, but where the second launch comes anyway.
    assert even_rounds(33, 8192, 33, config, False) == even_rounds(66, 8192, 33, config, True) == 1
    assert even_rounds(34, 8192, 33, config, False) > 1
    # So many rounds are even by themselves.
    assert even_rounds(1000, 8192, 33, config, False) == 1


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda x: x[..., 1:129], id="from an odd address"),
        pytest.param(lambda x: x[..., ::2], id="every second column"),
        pytest.param(lambda x: x[:, ::3], id="every third token"),
        pytest.param(
            lambda x: x.transpose(1, 2)[:, :128].contiguous().transpose(1, 2), id="columns outermost"
        ),
    ],
)
def test_what_the_copy_engine_cannot_read_goes_to_the_portable_kernel(h200, view):
    # Real memory: an address has to be odd.
    documents, straight = view(torch.empty(3, 256, 256, dtype=FP16)), torch.empty(3, 256, 256, dtype=FP16)
    width = documents.shape[-1]
    for rows in (32, 128):
        queries = torch.empty(1, rows, width, dtype=FP16)
        copied = h200.choose(*sides(queries, straight[..., :width])).name
        assert copied.endswith("-hopper") == (rows == 128 or width <= 128)
        assert not h200.choose(*sides(queries, documents)).name.endswith("-hopper")


def test_two_dtypes_are_computed_in_float32_by_the_portable_kernel(h200):
    for queries, documents in ((FP32, FP16), (FP16, BF16), (BF16, FP32)):
        choice = h200.choose(*sides(dense(1, 128, dtype=queries), dense(9, 300, dtype=documents)))
        assert choice.name == "long-query"
        assert choice.config == h200.configs(128, FP32)["long-wide"]


@pytest.mark.parametrize("query_rows", [32, 64], ids="Lq{}".format)
def test_a_mask_changes_no_short_kernel(h200, query_rows):
    mask = torch.empty(1000, 300, dtype=torch.bool, device="meta")
    queries, documents = dense(1, query_rows), dense(1000, 300)
    plain, under = h200.choose(*sides(queries, documents)), h200.choose(*sides(queries, documents, mask))
    assert (plain.name, plain.config, plain.segments) == (under.name, under.config, under.segments)


def test_documents_of_very_different_lengths_get_four_warps_each(h200):
    def config(rows, items, longest, pairs=None):
        return config_of(h200.choose(packed(32, 1, 32), packed(rows, items, longest), pairs))

    assert config(256_000, 1000, 1024) == config(256_000, 1000, 1024, 700) == "hopper-long"
    assert config(192_000, 1000, 512) == "hopper-long"
    # Short ones, or hardly longer than the mean; or spans of a table whose other rows say nothing of them.
    assert (
        config(191_000, 1000, 512) == config(192_000, 1000, 511) == config(768_000, 1000, 1024) == "hopper-32"
    )
    assert config(10_000_000, 1000, 512) == config(256_000, 1000, None) == "hopper-32"


def test_under_a_mask_long_documents_may_differ_in_length(h200):
    def config(documents, tokens):
        mask = torch.empty(documents, tokens, dtype=torch.bool, device="meta")
        return config_of(h200.choose(*sides(dense(1, 32), dense(documents, tokens), mask)))

    assert (config(1000, 512), config(1000, 511)) == ("hopper-long", "hopper-32")
    assert config_of(h200.choose(*sides(dense(1, 32), dense(1000, 512)))) == "hopper-32"


@pytest.mark.parametrize("pairs", [None, 300], ids=["all pairs", "a work list"])
def test_query_rows_nobody_has_counted_are_taken_in_chunks(h200, pairs):
    choice = h200.choose(packed(500, 1, None), packed(9000, 300, 100), pairs)
    assert (choice.name, config_of(choice), choice.chunked, choice.segments) == (
        "short-query", "short-64", True, 1,
    )  # fmt: skip


def test_documents_nobody_has_measured_are_not_split(h200):
    for rows in (9, 900):
        assert h200.choose(packed(rows, 1, rows), packed(10**6, 3, None)).segments == 1


def test_queries_scattered_over_a_large_store_are_taken_one_by_one(h200):
    documents = packed(9000, 300, 100)
    near, far = packed(4000, 4, 100), packed(10**6, 4, 100)
    assert h200.choose(near, documents).name == "multi-query-hopper"
    choice = h200.choose(far, documents)
    assert (choice.name, config_of(choice), choice.chunked) == ("short-query", "short-64", True)
    assert h200.choose(packed(10**6, 4, 30), documents).name == "short-query"


def test_scattered_queries_are_never_split(h200):
    # A column of split work is a document: the pairs of several queries would need columns of their own.
    for queries in (dense(4, 32)[::2], dense(3, 33)[:, ::2], dense(32, 3).transpose(0, 1)):
        choice = h200.choose(*sides(queries, dense(3, 8192)))
        assert (choice.name, choice.segments) == ("short-query", 1)


def test_work_list_of_several_queries(h200):
    queries, documents = packed(400, 8, 64), packed(9000, 300, 100)
    for pairs, name in ((4091, "short-query-hopper"), (4092, "short-query")):
        assert h200.choose(packed(400, 8, 32), documents, pairs).name == name
    assert config_of(h200.choose(queries, documents, 1000)) == "short-64"
    assert h200.choose(packed(400, 8, 65), documents, 1000).name == "long-query"
    assert h200.choose(packed(65, 1, 65), documents, 1000).name == "long-query-hopper"


@pytest.mark.parametrize("dim", [16, 48, 96, 128, 200, 256, 320, 768, 1024], ids="d{}".format)
@pytest.mark.parametrize("dtype", [FP16, BF16, FP32], ids=["fp16", "bf16", "fp32"])
def test_every_width_and_dtype_has_its_portable_configurations(choose, dim, dtype):
    from maxsim.forward.configs import configs as tiles

    configs = tiles(dim, dtype)
    assert {"short-32", "short-64", "long"} <= set(configs)
    assert ("hopper-128" in configs) == (dim <= 256 and dtype != FP32)
    assert len({config.key for config in configs.values()}) == len(configs)
    for name, config in configs.items():
        anywhere = config.kernel not in ("hopper", "short_hopper") and name != "long-wide"
        assert choose.runs_on(config, torch.device("cpu")) == anywhere


def test_scoring_on_a_cpu_imports_no_triton():
    script = textwrap.dedent("""
        import sys, torch, maxsim
        documents = maxsim.Ragged.from_list([torch.randn(n, 32) for n in (3, 5)])
        maxsim.score(torch.randn(4, 32), documents)
        maxsim.score_pairs(torch.randn(4, 32), documents, torch.tensor([0]), torch.tensor([1]))
        maxsim.plan(torch.randn(4, 32), documents)
        maxsim.explain(torch.randn(4, 32), documents[0])
        assert maxsim.compilations() == 0
        print(sorted(name for name in sys.modules if name.startswith(("triton", "maxsim.forward"))))
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_warmup_refuses_a_device_that_compiles_nothing():
    with pytest.raises(maxsim.DeviceError, match="device: a CUDA device wanted, got cpu"):
        maxsim.warmup(device="cpu")


def test_warmup_is_of_the_device_that_is_named(monkeypatch):
    from maxsim.forward import warmup

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(warmup, "warmup", lambda dims, dtypes, device: device)
    warmed = [maxsim.warmup(device=device) for device in ("cuda:0", "cuda:2", torch.device("cuda"))]
    assert warmed == [torch.device("cuda", index) for index in (0, 2, 1)]

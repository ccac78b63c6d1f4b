"""Every configuration of the frozen table gives a pair the same bits: which of them ran can't be told."""

import pytest
import torch

from maxsim import Ragged, Spans
from maxsim.rows import masked, side

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]  # each test compiles some twenty kernels

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
LENGTHS = (1, 2, 31, 32, 33, 64, 111, 128, 129, 255, 700, 1600, 0, 17)


@pytest.fixture(params=[16, 96, 128, 256, 320, 1024], ids="d{}".format)
def dim(request):
    return request.param


@pytest.fixture(params=["fp16-fp16", "bf16-bf16", "fp32-fp32", "fp32-fp16"])
def dtypes(request):
    return tuple(DTYPES[name] for name in request.param.split("-"))


@pytest.fixture
def documents(gpu, unit, dim, dtypes):
    """Spans of a store with poison between them."""
    starts = [3]
    for length in LENGTHS[:-1]:
        starts.append(starts[-1] + length + 1)
    store = torch.full((starts[-1] + LENGTHS[-1] + 200, dim), torch.nan, dtype=dtypes[1])
    for start, length in zip(starts, LENGTHS, strict=True):
        store[start : start + length] = unit(length, dim, dtype=dtypes[1])
    return Spans(store, torch.tensor(starts), torch.tensor(LENGTHS))


def choices(dim, dtypes, query_rows):
    """(name, choice) of all that can score queries of so many rows."""
    from maxsim.forward.choose import Choice, runs_on
    from maxsim.forward.configs import configs

    compute = dtypes[0] if dtypes[0] == dtypes[1] else torch.float32
    for name, config in configs(dim, compute).items():
        if not runs_on(config, torch.device("cuda", torch.cuda.current_device())):
            continue
        if name == "short-64":
            yield f"{name}, chunked", Choice(name, "test", config, 1, chunked=True, straight=True)
        if config.kernel.startswith("short") and query_rows > config.query_rows:
            continue
        for segments in (1, 3):
            yield f"{name}, {segments} segments", Choice(name, "test", config, segments, straight=True)


def run(choice, left, right, listing=(None, None)):
    from maxsim.forward import backend

    shape = (left.layout.items, right.layout.items) if listing[0] is None else (len(listing[0]),)
    scores = torch.full(shape, torch.nan)
    with torch.device("cpu"):
        backend.run(choice, left, right, *listing, scores)
    return scores


def exact(query, document):
    return (query.double() @ document.double().T).amax(1).sum() if len(document) else -torch.inf


@pytest.mark.parametrize("query_rows", [1, 17, 32, 33, 64, 65, 300], ids="Lq{}".format)
def test_of_one_query(unit, seeded, documents, dim, dtypes, query_rows):
    query = unit(query_rows, dim, dtype=dtypes[0])
    left, right = side(query, "q"), side(documents, "d")
    everything = torch.ones(len(documents.tokens), dtype=torch.bool)
    under = masked(right, everything, "mask")
    wanted_pairs = torch.randint(0, len(documents), (40,), generator=seeded)
    listing = torch.zeros_like(wanted_pairs), wanted_pairs
    found = {}
    for name, choice in choices(dim, dtypes, query_rows):
        found[name] = run(choice, left, right)
        found[name + ", pairs"] = run(choice, left, right, listing)
        if dim == 128:
            found[name + ", masked"] = run(choice, left, under)
    first, wanted = next(iter(found.items()))
    truth = torch.stack([torch.as_tensor(exact(query, documents[i])) for i in range(len(documents))])
    torch.testing.assert_close(wanted[0].double(), truth.double(), rtol=0, atol=1e-6 * query_rows)
    for name, scores in found.items():
        same = scores == (wanted[0, wanted_pairs] if scores.ndim == 1 else wanted)
        assert same.all(), f"{name} differs from {first} in {int((~same).sum())} of {same.numel()} scores"


@pytest.mark.parametrize("query_rows", [1, 17, 32, 64, 65, 128], ids="Lq{}".format)
@pytest.mark.parametrize("form", ["dense", "ragged"])
def test_of_several_queries(unit, documents, dim, dtypes, query_rows, form):
    queries = unit(5, query_rows, dim, dtype=dtypes[0])
    if form == "ragged":
        queries = Ragged.from_list([query[: max(query_rows - i, 1)] for i, query in enumerate(queries)])
    right = side(documents, "d")
    name, choice = next(iter(choices(dim, dtypes, 65)))
    assert name == "short-64, chunked"
    wanted = torch.cat([run(choice, side(queries[i], "q"), right) for i in range(5)])
    left = side(queries, "q")
    for name, choice in choices(dim, dtypes, query_rows):
        if choice.config.kernel == "short_hopper" or (
            choice.config.kernel == "short_query" and choice.segments > 1
        ):
            continue  # never chosen for all pairs of several queries
        same = run(choice, left, right) == wanted
        assert same.all(), f"{name} differs in {int((~same).sum())} of {same.numel()} scores"


@pytest.mark.parametrize("query_rows", [17, 65], ids="Lq{}".format)
def test_twice_in_a_row(unit, documents, dim, dtypes, query_rows):
    left = side(unit(query_rows, dim, dtype=dtypes[0]), "q")
    right = side(documents, "d")
    for name, choice in choices(dim, dtypes, query_rows):
        first = run(choice, left, right)
        for _ in range(5):
            assert torch.equal(run(choice, left, right), first), name

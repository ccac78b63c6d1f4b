"""`Ragged` and `Spans`: what they hold, and the messages of what they refuse."""

import dataclasses

import pytest
import torch

import maxsim
from maxsim import Ragged, Spans

TOKENS = torch.arange(160.0).view(10, 16)


def ints(*values):
    return torch.tensor(values, dtype=torch.int64)


def test_items_of_a_list():
    items = [torch.randn(n, 24).half() for n in (3, 0, 5)]
    ragged = Ragged.from_list(items)
    assert (len(ragged), ragged.dim, ragged.lengths.tolist()) == (3, 24, [3, 0, 5])
    assert all(torch.equal(ragged[i], item) for i, item in enumerate(items))
    assert torch.equal(ragged[-1], items[-1])
    with pytest.raises(IndexError):
        ragged[3]


def test_padded_with_holes_keeps_the_active_rows():
    padded = torch.randn(2, 4, 16)
    mask = torch.tensor([[True, False, True, False], [False, False, False, False]])
    ragged = Ragged.from_padded(padded, mask)
    assert ragged.lengths.tolist() == [2, 0]
    assert torch.equal(ragged[0], padded[0, [0, 2]])


def test_spans_are_views_of_their_store():
    spans = Spans(TOKENS, ints(7, 0), ints(3, 2))
    assert (len(spans), spans.dim) == (2, 16)
    assert spans[0].data_ptr() == TOKENS[7].data_ptr()
    assert torch.equal(spans[1], TOKENS[:2])


@pytest.mark.parametrize("operand", [Ragged(TOKENS, ints(0, 10)), Spans(TOKENS, ints(0), ints(10))])
def test_frozen(operand):
    with pytest.raises(dataclasses.FrozenInstanceError):
        operand.tokens = TOKENS


REFUSALS = [
    (
        "1-D tokens",
        lambda: Ragged(TOKENS[0], ints(0)),
        maxsim.ShapeError,
        r"tokens: 2-D wanted, got shape \(16,\)",
    ),
    (
        "integer tokens",
        lambda: Ragged(TOKENS.int(), ints(0, 10)),
        maxsim.DTypeError,
        "tokens: float16, .* got torch.int32",
    ),
    (
        "d 8",
        lambda: Ragged(TOKENS[:, :8], ints(0, 10)),
        maxsim.ShapeError,
        "multiple of 8 from 16 to 1024, got 8",
    ),
    (
        "d 20",
        lambda: Ragged(torch.ones(1, 20), ints(0, 1)),
        maxsim.ShapeError,
        "got 20",
    ),
    (
        "d 1032",
        lambda: Ragged(torch.ones(1, 1032), ints(0, 1)),
        maxsim.ShapeError,
        "got 1032",
    ),
    (
        "int32 offsets",
        lambda: Ragged(TOKENS, ints(0, 10).int()),
        maxsim.DTypeError,
        "offsets: int64 wanted, got torch.int32",
    ),
    (
        "2-D offsets",
        lambda: Ragged(TOKENS, ints(0, 10)[None]),
        maxsim.ShapeError,
        "offsets: 1-D wanted",
    ),
    (
        "no offsets",
        lambda: Ragged(TOKENS, ints()),
        maxsim.ShapeError,
        "offsets: N \\+ 1 values",
    ),
    (
        "late start",
        lambda: Ragged(TOKENS, ints(1, 10)),
        maxsim.IndexRangeError,
        "from 0 to the 10 tokens, got 1 to 10",
    ),
    (
        "early end",
        lambda: Ragged(TOKENS, ints(0, 9)),
        maxsim.IndexRangeError,
        "got 0 to 9",
    ),
    (
        "falling offsets",
        lambda: Ragged(TOKENS, ints(0, 7, 4, 10)),
        maxsim.IndexRangeError,
        r"offsets\[1\] is 7 and offsets\[2\] is 4",
    ),
    (
        "empty list",
        lambda: Ragged.from_list([]),
        maxsim.ShapeError,
        "items: at least one",
    ),
    (
        "mixed list",
        lambda: Ragged.from_list([TOKENS, TOKENS.half()]),
        maxsim.DTypeError,
        r"items\[1\]: dtype torch.float16 differs",
    ),
    (
        "two widths",
        lambda: Ragged.from_list([TOKENS, torch.ones(2, 24)]),
        maxsim.ShapeError,
        r"items\[1\]: width 24 differs from 16",
    ),
    (
        "mask of another shape",
        lambda: Ragged.from_padded(TOKENS[None], torch.ones(1, 9, dtype=torch.bool)),
        maxsim.ShapeError,
        r"mask: shape \(1, 10\) wanted, got \(1, 9\)",
    ),
    (
        "float mask",
        lambda: Ragged.from_padded(TOKENS[None], torch.ones(1, 10)),
        maxsim.DTypeError,
        "mask: bool wanted",
    ),
    (
        "unequal spans",
        lambda: Spans(TOKENS, ints(0, 1), ints(1)),
        maxsim.ShapeError,
        "2 and 1 values",
    ),
    (
        "negative start",
        lambda: Spans(TOKENS, ints(0, -1), ints(1, 1)),
        maxsim.IndexRangeError,
        r"starts\[1\] = -1",
    ),
    (
        "past the end",
        lambda: Spans(TOKENS, ints(8), ints(3)),
        maxsim.IndexRangeError,
        r"starts\[0\] = 8 with lengths\[0\] = 3",
    ),
    (
        "negative length",
        lambda: Spans(TOKENS, ints(3), ints(-1)),
        maxsim.IndexRangeError,
        r"lengths\[0\] = -1",
    ),
    (
        "overflowing sum",
        lambda: Spans(TOKENS, ints(2**63 - 1), ints(2**63 - 1)),
        maxsim.IndexRangeError,
        "not a range",
    ),
    (
        "score two widths",
        lambda: maxsim.score(TOKENS, torch.ones(2, 24)),
        maxsim.ShapeError,
        "widths 16 and 24 differ",
    ),
    (
        "score a vector",
        lambda: maxsim.score(TOKENS, TOKENS[0]),
        maxsim.ShapeError,
        "documents: 2-D or 3-D wanted",
    ),
    (
        "score a float mask",
        lambda: maxsim.score(TOKENS, TOKENS, document_mask=torch.ones(10)),
        maxsim.DTypeError,
        "document_mask: bool wanted",
    ),
    (
        "score a short mask",
        lambda: maxsim.score(TOKENS, TOKENS, query_mask=torch.ones(9).bool()),
        maxsim.ShapeError,
        r"query_mask: .* wanted, \(10,\), got \(9,\)",
    ),
    (
        "two devices",
        lambda: maxsim.score(TOKENS, TOKENS.to("meta")),
        maxsim.DeviceError,
        "on cpu and meta",
    ),
    (
        "index too high",
        lambda: maxsim.score_pairs(TOKENS, TOKENS, ints(0), ints(1)),
        maxsim.IndexRangeError,
        r"document_index: values from 0 to 0 wanted \(1 items\), got 1 to 1",
    ),
    (
        "index negative",
        lambda: maxsim.score_pairs(TOKENS, TOKENS, ints(-1), ints(0)),
        maxsim.IndexRangeError,
        "query_index: .* got -1",
    ),
    (
        "unequal indices",
        lambda: maxsim.score_pairs(TOKENS, TOKENS, ints(0, 0), ints(0)),
        maxsim.ShapeError,
        "2 and 1 values",
    ),
]


@pytest.mark.parametrize(
    ("make", "error", "message"), [pytest.param(*rest, id=name) for name, *rest in REFUSALS]
)
def test_refusals_name_the_argument_and_the_value(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert isinstance(caught.value, maxsim.MaxSimError)


def test_public_face_is_complete():
    public = {name for name in vars(maxsim) if not name.startswith("_")}
    modules = {name for name in public if type(vars(maxsim)[name]) is type(maxsim)}
    assert public - modules | {"reference"} == set(maxsim.__all__)

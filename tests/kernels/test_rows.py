"""`Layout`: one for the same shapes, another for each difference that a kernel sees; and nothing that is
remembered holds an operand."""

import gc
import weakref

import pytest
import torch

import maxsim
from maxsim.rows import Parts, masked, side

FP16 = torch.float16


def dense(*shape, dtype=FP16):
    return torch.empty(shape, dtype=dtype)


def packed(rows, items, longest):
    index = torch.zeros(items, dtype=torch.int64)
    return Parts(dense(rows, 32), index, index, longest)


@pytest.mark.parametrize(
    ("one", "others"),
    [
        pytest.param(
            lambda: dense(5, 7, 32),
            [
                lambda: dense(7, 5, 32),
                lambda: dense(5, 7, 48),
                lambda: dense(5, 7, 64)[..., ::2],
                lambda: dense(5, 14, 32)[:, ::2],
                lambda: dense(35, 32),
                lambda: dense(5, 7, 32, dtype=torch.bfloat16),
            ],
            id="dense",
        ),
        pytest.param(
            lambda: packed(35, 5, 7),
            [lambda: packed(35, 5, 8), lambda: packed(35, 5, None), lambda: packed(35, 4, 7),
             lambda: packed(36, 5, 7)],
            id="packed",
        ),
    ],
)  # fmt: skip
def test_a_layout_is_that_of_its_shapes(one, others):
    layouts = [side(make(), "documents").layout for make in (one, *others)]
    assert len(set(layouts)) == len(layouts)
    assert side(one(), "documents").layout is layouts[0]


def test_a_mask_makes_another_layout():
    plain = side(dense(5, 7, 32), "documents")
    under = [masked(plain, torch.ones(5, 7, dtype=torch.bool), "document_mask").layout for _ in range(2)]
    assert under[0] is under[1] is not plain.layout
    assert (plain.layout.masked, under[0].masked) == (False, True)
    assert masked(plain, None, "document_mask") is plain


def test_a_tensor_that_no_kernel_reads_is_refused_each_time():
    for _ in range(2):
        with pytest.raises(maxsim.ShapeError, match="queries: 2-D or 3-D wanted, got shape"):
            maxsim.score(dense(1, 2, 3, 32), dense(5, 7, 32))
        with pytest.raises(maxsim.DTypeError, match=r"documents: float16, .* got torch.int32"):
            maxsim.score(dense(7, 32), dense(5, 7, 32, dtype=torch.int32))


def test_nothing_remembered_holds_an_operand(kernel, unit):
    queries, documents = unit(2, 5, 32, dtype=FP16), unit(6, 9, 32, dtype=FP16)
    ragged = maxsim.Ragged.from_list(list(documents))
    mask, index = torch.rand(6, 9) < 0.8, torch.tensor([1, 0, 1])
    scores = [
        maxsim.score(queries, documents),
        maxsim.score(queries[0], documents, document_mask=mask),
        maxsim.score(queries[0], ragged),
        maxsim.score_pairs(queries, ragged, index, index),
    ]
    held = [weakref.ref(tensor) for tensor in (queries, documents, ragged.tokens, mask, index, *scores)]
    del queries, documents, ragged, mask, index, scores
    gc.collect()
    assert [reference() for reference in held] == [None] * len(held)

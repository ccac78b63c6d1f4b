"""`top_k`: score descending, position ascending, −∞ after the finite, NaN last."""

import math

import numpy as np
import pytest
import torch

import maxsim
from maxsim import topk


def ordered(scores, k):
    """The definition, by Python's stable sort."""

    def key(position):
        score = scores[position]
        return (math.isnan(score), -score if not math.isnan(score) else 0, position)

    return sorted(range(len(scores)), key=key)[:k]


@pytest.mark.parametrize("k", [1, 2, 17, 63, 64, 1000], ids="k{}".format)
@pytest.mark.parametrize("n", [1, 2, 17, 63, 111], ids="n{}".format)
def test_order_with_many_ties(backend, seeded, n, k):
    values = torch.tensor([3.0, 1.5, 0.0, -0.0, -2.0, -torch.inf, torch.inf, torch.nan])
    scores = values[torch.randint(0, len(values), (n,), generator=seeded)]
    best, positions = backend.top_k(scores, k)
    assert positions.tolist() == ordered(scores.tolist(), k)
    torch.testing.assert_close(best, scores[positions], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "NumPy"])
@pytest.mark.parametrize("n", [0, 1, 2, 111, 2048, 2049, topk.SORTED_WHOLE], ids="n{}".format)
def test_order_in_host_memory(seeded, monkeypatch, compiled, n):
    if compiled and not topk.compiled:
        pytest.skip("the compiled sort is not built")
    monkeypatch.setattr(topk, "compiled", compiled)
    special = torch.tensor([0.0, -0.0, -1e-30, 1e-30, -torch.inf, torch.inf, torch.nan, -torch.nan, 65504.0])
    picked = special[torch.randint(0, len(special), (n,), generator=seeded)]
    drawn = torch.randn(n, generator=seeded)
    scores = torch.where(torch.rand(n, generator=seeded) < 0.5, picked, drawn)
    wanted = ordered(scores.tolist(), n)
    for k in {0, min(n, 1), n // 10, n // 2, n}:
        positions = topk.order(scores.numpy(), k)
        assert positions.dtype == np.int64 and positions.tolist() == wanted[:k]
    assert topk.order(scores.repeat_interleave(2).numpy()[::2], n).tolist() == wanted  # not contiguous


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "NumPy"])
@pytest.mark.parametrize("helpers", [0, 3], ids="helpers{}".format)
def test_many_lists_are_ordered_as_each_by_itself(seeded, monkeypatch, compiled, helpers):
    if compiled and not topk.compiled:
        pytest.skip("the compiled sort is not built")
    monkeypatch.setattr(topk, "compiled", compiled)
    monkeypatch.setattr(topk, "helpers", lambda: helpers)
    special = torch.tensor([0.0, -0.0, -torch.inf, torch.inf, torch.nan, 1.0])
    lists = [torch.randn(n, generator=seeded) for n in (0, 1, 2, 111, 2048, *(1000 for _ in range(30)))]
    lists.append(special[torch.randint(0, 6, (500,), generator=seeded)])
    scores = [some.numpy() for some in lists] + [lists[-1].repeat_interleave(2).numpy()[::2]]
    wanted = [len(some) // (1 + i % 3) for i, some in enumerate(scores)]
    longer = torch.randn(topk.SORTED_WHOLE + 1, generator=seeded).numpy()
    for some, ks in (
        (scores, wanted),
        (scores[:5], wanted[:5]),
        (scores[:1], wanted[:1]),
        ([], []),
        (scores, [0] * len(scores)),
        ([*scores, longer, longer[:3000]], [*wanted, 7, 1000]),
    ):
        ordered = topk.order_all(some, ks)
        for (positions, values), one, k in zip(ordered, some, ks, strict=True):
            assert positions.dtype == np.int64 and positions.tolist() == topk.order(one, k).tolist()
            assert values.dtype == np.float32
            np.testing.assert_array_equal(values, one[positions])


@pytest.mark.skipif(not topk.compiled, reason="the compiled sort is not built")
def test_more_than_there_are_cannot_be_ordered():
    scores = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="4 positions of 3 scores"):
        topk.order_all([scores, scores], [1, 4])


@pytest.mark.skipif(not topk.compiled, reason="the compiled sort is not built")
@pytest.mark.parametrize("far", [[], [-torch.inf], [torch.nan, 1e30]], ids=["none", "lower", "both"])
@pytest.mark.parametrize("spread", [0, 2**-20, 2**-12, 1, 1e4], ids="spread{}".format)
def test_the_best_of_scores_close_together(seeded, spread, far):
    drawn = 20 + spread * torch.randn(1000, generator=seeded)
    drawn[torch.randperm(1000, generator=seeded)[: len(far)]] = torch.tensor(far)
    wanted = ordered(drawn.tolist(), 500)
    for k in (1, 10, 100, 436, 500):
        assert topk.order(drawn.numpy(), k).tolist() == wanted[:k]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"]
)
@pytest.mark.parametrize("shape", [(1,), (111,), (3, 64), (2, 1000), (0, 5)], ids=str)
def test_keys_of_a_gpu_order_as_scores_do(seeded, shape, dtype):
    special = torch.tensor([0.0, -0.0, -1e-30, 1e-30, -torch.inf, torch.inf, torch.nan, -torch.nan, 65504.0])
    drawn = torch.randn(shape, generator=seeded)
    mixed = torch.rand(shape, generator=seeded) < 0.5
    picked = special[torch.randint(0, len(special), shape, generator=seeded)]
    scores = torch.where(mixed, picked, drawn).to(dtype)
    positions = topk.by_keys(scores, min(17, shape[-1]))
    for row, found in zip(scores.view(-1, shape[-1]), positions.view(-1, positions.shape[-1]), strict=True):
        assert found.tolist() == ordered(row.tolist(), 17)


# In the interpreter, groups from 4,096 on.
SHAPES = [
    ((1, 1), 1),
    ((2, 256), 17),
    ((2, 257), 128),
    ((2, 512), 100),
    ((2, 513), 100),
    ((2, 4096), 128),
    ((3, 5001), 100),
    ((1, 9000), 1),
]


@pytest.mark.parametrize(("shape", "k"), SHAPES, ids=str)
def test_blocks_of_keys(kernel, seeded, shape, k):
    if not kernel.startswith("triton") and kernel != "gpu":
        pytest.skip("a kernel of Triton's")
    from maxsim.forward import block_top_k

    scores = torch.randint(-2, 3, shape, generator=seeded) / torch.randint(0, 2, shape, generator=seeded)
    found = block_top_k.positions(scores, min(k, shape[1]))
    assert found.dtype == torch.int64
    for row, positions in zip(scores, found, strict=True):
        assert positions.tolist() == ordered(row.tolist(), k)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 2047, 2048, 2049, 300_000, 10_000_000], ids="n{}".format)
def test_few_of_many_on_a_gpu(gpu, seeded, n):
    scores = torch.randint(0, 1000, (n,), generator=seeded).float()
    wanted = torch.sort(scores, descending=True, stable=True).indices[:128]
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = maxsim.top_k(scores, 128).indices
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, wanted)
    assert torch.equal(topk.by_keys(scores, min(n, 128)), wanted)


@pytest.mark.parametrize("rows", [0, 1, 3], ids="B{}".format)
def test_rows_are_ranked_alone(rows, seeded):
    scores = torch.randint(0, 5, (rows, 40), generator=seeded).float()
    best = maxsim.top_k(scores, 7)
    assert best.values.shape == best.indices.shape == (rows, 7)
    for row, positions in zip(scores, best.indices, strict=True):
        assert positions.tolist() == ordered(row.tolist(), 7)


def test_no_scores_and_no_wish():
    assert maxsim.top_k(torch.empty(0), 5).indices.tolist() == []
    assert maxsim.top_k(torch.ones(4), 0).indices.tolist() == []


def test_a_million_scores_equal_a_stable_sort(seeded):
    scores = torch.randint(0, 1000, (1_000_000,), generator=seeded).float()
    wanted = torch.sort(scores, descending=True, stable=True).indices[:5000]
    assert torch.equal(maxsim.top_k(scores, 5000).indices, wanted)


def test_values_are_differentiable():
    scores = torch.tensor([1.0, 5.0, 3.0], requires_grad=True)
    maxsim.top_k(scores, 2).values.sum().backward()
    assert scores.grad.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("scores", "k", "error", "message"),
    [
        pytest.param(torch.ones(2, 2, 2), 1, maxsim.ShapeError, r"scores: \[N\] or \[B, N\]", id="3-D"),
        pytest.param(torch.ones(2), -1, maxsim.ShapeError, "k: 0 or more wanted, got -1", id="negative k"),
        pytest.param(
            torch.ones(2).long(), 1, maxsim.DTypeError, "scores: a floating-point dtype", id="integers"
        ),
    ],
)
def test_refusals(scores, k, error, message):
    with pytest.raises(error, match=message):
        maxsim.top_k(scores, k)

"""Gradients of `score` and `score_pairs`, and what torch.compile sees of them."""

import shutil

import pytest
import torch

import maxsim
from maxsim import Ragged, Spans


@pytest.fixture(autouse=True)
def one_thread():
    """Small parallel regions crawl on a busy machine, and gradcheck has thousands."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def doubles(seeded):
    def make(*shape):
        return torch.randn(*shape, generator=seeded, dtype=torch.float64).requires_grad_()

    return make


def naive(queries, documents, mask):
    """The dense definition that autograd differentiates by itself."""
    products = torch.einsum("qid,njd->qnij", queries, documents).masked_fill(~mask[None, :, None], -torch.inf)
    return products.max(dim=-1).values.sum(-1)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 2, 4)], ids=["all ones", "Nq2-Lq3-Nd2-Ld4"])
def test_gradcheck_dense(doubles, shape):
    nq, lq, nd, ld = shape
    assert torch.autograd.gradcheck(maxsim.score, (doubles(nq, lq, 16), doubles(nd, ld, 16)))


def test_gradcheck_with_masks(doubles):
    query_mask = torch.tensor([[True, False, True], [False, False, False]])
    document_mask = torch.tensor([[True, False, True, True], [False, True, False, False]])

    def run(queries, documents):
        return maxsim.score(queries, documents, query_mask=query_mask, document_mask=document_mask)

    assert torch.autograd.gradcheck(run, (doubles(2, 3, 16), doubles(2, 4, 16)))


def test_gradcheck_ragged_pairs(doubles):
    left, right = torch.tensor([0, 3, 5]), torch.tensor([0, 1, 6, 9])
    asked, wanted = torch.tensor([0, 1, 1, 0, 1]), torch.tensor([2, 0, 1, 2, 1])

    def run(queries, documents):
        return maxsim.score_pairs(Ragged(queries, left), Ragged(documents, right), asked, wanted)

    assert torch.autograd.gradcheck(run, (doubles(5, 16), doubles(9, 16)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_gradients_equal_those_of_the_definition(kernel, unit, seeded, dtype):
    queries, documents = unit(3, 9, 32, dtype=dtype), unit(5, 17, 32, dtype=dtype)
    mask = torch.rand(5, 17, generator=seeded) < 0.6
    mask[:, 0] = True
    weights = torch.randn(3, 5, generator=seeded)
    ours = [queries.clone().requires_grad_(), documents.clone().requires_grad_()]
    runs = kernel if kernel in ("cpu", "cpu-avx2") else "multi-query"
    assert maxsim.plan(*ours).kernel.removesuffix("-hopper") == runs
    (maxsim.score(*ours, document_mask=mask) * weights).sum().backward()
    theirs = [queries.double().requires_grad_(), documents.double().requires_grad_()]
    (naive(*theirs, mask) * weights).sum().backward()
    for mine, wanted in zip(ours, theirs, strict=True):
        assert mine.grad.dtype == dtype
        torch.testing.assert_close(
            mine.grad.double(), wanted.grad, atol=1e-5 if dtype == torch.float32 else 0.02, rtol=0
        )


def test_document_without_active_token_has_gradient_zero(unit):
    queries, documents = unit(2, 4, 16).requires_grad_(), unit(3, 5, 16).requires_grad_()
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    scores = maxsim.score(queries, documents, document_mask=mask)
    assert (scores[:, 1] == -torch.inf).all()
    scores.backward(torch.ones(2, 3))
    assert (documents.grad[1] == 0).all()
    assert documents.grad[0].abs().sum() > 0
    assert queries.grad.isfinite().all()


def test_gradient_of_a_tie_goes_to_the_lowest_token(unit):
    query, token = unit(1, 16), unit(1, 16)
    document = token.repeat(4, 1).requires_grad_()
    mask = torch.tensor([False, True, True, True])
    maxsim.score(query, document, document_mask=mask).backward()
    torch.testing.assert_close(document.grad, torch.cat([0 * query, query, 0 * query, 0 * query]))


def test_spans_and_lists_pass_gradients_to_their_tokens(unit):
    query, store = unit(3, 16), unit(20, 16).requires_grad_()
    spans = Spans(store, torch.tensor([10, 2, 10]), torch.tensor([5, 4, 5]))
    maxsim.score(query, spans).sum().backward()
    touched = store.grad.abs().sum(1) > 0
    assert touched[10:15].any()
    assert touched[2:6].any()
    assert not touched[[0, 1, *range(6, 10), *range(15, 20)]].any()
    items = [unit(4, 16).requires_grad_(), unit(6, 16).requires_grad_()]
    maxsim.score(query, Ragged.from_list(items)).sum().backward()
    assert all(item.grad.abs().sum() > 0 for item in items)


def test_a_frozen_side_gets_no_gradient(unit):
    query, documents = unit(1, 4, 16).requires_grad_(), unit(3, 5, 16)
    maxsim.score(query, documents).sum().backward()
    assert query.grad is not None
    assert documents.grad is None


def test_registration_is_sound(unit):
    queries, documents = unit(2, 4, 16).requires_grad_(), unit(3, 5, 16).requires_grad_()
    arguments = (queries, None, None, None, documents, None, None, torch.ones(3, 5, dtype=torch.bool))
    torch.library.opcheck(torch.ops.maxsim.score.default, arguments)
    index = torch.tensor([0, 1, 1])
    torch.library.opcheck(
        torch.ops.maxsim.score_pairs.default, (queries, None, None, documents, None, None, index, index)
    )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_compiles_whole_with_its_gradient(unit):
    queries, documents = unit(2, 4, 16).requires_grad_(), unit(3, 5, 16).requires_grad_()

    def loss(queries, documents):
        return maxsim.score(queries, documents).log_softmax(dim=1).diagonal().sum()

    eager = torch.autograd.grad(loss(queries, documents), (queries, documents))
    compiled = torch.autograd.grad(
        torch.compile(loss, fullgraph=True)(queries, documents), (queries, documents)
    )
    torch.testing.assert_close(compiled, eager)

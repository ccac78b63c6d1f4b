"""What the kernel tests share: the backends, fresh random inputs, and the definition in float64.

A new backend joins `BACKENDS`, and with it every test that asks for the `backend` fixture.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import maxsim
from maxsim import cpu_native

Score = Callable[..., Tensor]


@dataclass(frozen=True)
class Backend:
    """One spelling of the operators, and the kernel that `plan` must name for its inputs."""

    kernel: str
    score: Score
    score_pairs: Score
    explain: Callable[[Tensor, Tensor], Any]
    top_k: Callable[[Tensor, int], Any]


def planned(kernel: str, run: Score) -> Score:
    """A public function that first asserts which kernel it will run."""

    def checked(queries: Any, documents: Any, *rest: Any, **masks: Any) -> Tensor:
        assert maxsim.plan(queries, documents).kernel == kernel
        return run(queries, documents, *rest, **masks)

    return checked


def public(kernel: str) -> Backend:
    """The public functions, where they must run this kernel."""
    functions = (maxsim.score, maxsim.score_pairs, maxsim.explain)
    return Backend(kernel, *(planned(kernel, function) for function in functions), maxsim.top_k)


BACKENDS = [
    Backend(
        "reference",
        maxsim.reference.score,
        maxsim.reference.score_pairs,
        lambda query, document: maxsim.Explanation(*maxsim.reference.explain(query, document)),
        maxsim.reference.top_k,
    ),
    public("cpu"),
    public("cpu-avx2"),
]


def prepare(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make dispatch choose this kernel, or skip the test where the machine has none."""
    if kernel == "cpu-avx2" and not cpu_native.available():
        pytest.skip("the compiled kernel was not built here, or this processor has no AVX2")
    if kernel == "cpu":
        monkeypatch.setattr(cpu_native, "available", lambda: False)


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.kernel)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    prepare(request.param.kernel, monkeypatch)
    return request.param


@pytest.fixture(params=["cpu", "cpu-avx2"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernels that the public functions can be made to run here, by name."""
    prepare(request.param, monkeypatch)
    return request.param


@pytest.fixture
def seeded(request: pytest.FixtureRequest) -> torch.Generator:
    """Fresh numbers in every run; the seed is printed with a failure."""
    seed = int(torch.empty((), dtype=torch.int64).random_())
    print(f"seed {seed}")
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def unit(seeded: torch.Generator) -> Callable[..., Tensor]:
    """unit(*shape, dtype) → random rows of about unit norm."""

    def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        rows = torch.randn(*shape, generator=seeded)
        return torch.nn.functional.normalize(rows, dim=-1).to(dtype)

    return make


def defined(queries: Sequence[Tensor], documents: Sequence[Tensor]) -> np.ndarray:
    """Σ_i max_j <Q_i, D_j> in float64, by loops, from lists of active rows: [Nq, Nd]."""
    scores = np.zeros((len(queries), len(documents)))
    for a, query in enumerate(queries):
        for b, document in enumerate(documents):
            for row in query.double().numpy():
                best = -np.inf
                for token in document.double().numpy():
                    best = max(best, float((row * token).sum()))
                scores[a, b] += best
    return scores


@pytest.fixture
def agrees() -> Callable[..., None]:
    """agrees(scores, queries, documents): equal to the float64 definition within float32 accumulation."""

    def check(scores: Tensor, queries: Sequence[Tensor], documents: Sequence[Tensor]) -> None:
        wanted = defined(queries, documents)
        assert scores.dtype == torch.float32
        assert scores.shape == wanted.shape
        # Rows have unit norm: a product errs by less than 1e-6, a score by that for each query row.
        rows = max([len(query) for query in queries], default=1)
        np.testing.assert_allclose(scores.numpy(), wanted, rtol=0, atol=1e-6 * max(rows, 1))

    return check

"""What the kernel tests share: the backends, fresh random inputs, and the definition in float64.

A new backend joins `BACKENDS`, and with it every test that asks for the `backend` fixture.

The Triton kernels run as two backends: `triton-interpreted`, on host tensors where there is no GPU, and
`gpu`. One process can be only one of the two: Triton decides when it is first imported.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import maxsim
from maxsim import cpu_native, dispatch, operators, ragged, rows

Score = Callable[..., Tensor]

HAS_TRITON = importlib.util.find_spec("triton") is not None
HAS_GPU = torch.cuda.is_available()
if HAS_TRITON and not HAS_GPU and "triton" not in sys.modules:
    # Test modules may import Triton as they are collected: the interpreter has to be wanted before that.
    os.environ["TRITON_INTERPRET"] = "1"

# The interpreter chooses as a small GPU would, so that few programs already fill it.
INTERPRETED_PROCESSORS = 8

# Names of the kernels that `maxsim.forward` ran for the test, in order.
_launched: list[str] = []


@dataclass(frozen=True)
class Backend:
    """One spelling of the operators.

    `score` and `score_pairs` take `runs`, the kernel that must run for these shapes on a GPU; on a
    Hopper, where its copy engine reads the operands, its `-hopper` form must. Other backends have one
    kernel, and `plan` must name that.
    """

    name: str
    score: Score
    score_pairs: Score
    explain: Callable[[Tensor, Tensor], Any]
    top_k: Callable[[Tensor, int], Any]

    @property
    def interpreted(self) -> bool:
        """Whether a kernel's program takes 10 ms and more."""
        return self.name == "triton-interpreted"


def defining(run: Score) -> Score:
    """A function of the reference, which always runs."""

    def checked(queries: Any, documents: Any, *rest: Any, runs: str = "", **masks: Any) -> Tensor:
        return run(queries, documents, *rest, **masks)

    return checked


def planned(kernel: str, run: Score) -> Score:
    """A public function that first asserts which kernel it will run."""

    def checked(queries: Any, documents: Any, *rest: Any, runs: str = "", **masks: Any) -> Tensor:
        assert maxsim.plan(queries, documents).kernel == kernel
        return run(queries, documents, *rest, **masks)

    return checked


def launching(run: Score) -> Score:
    """A public function that afterwards asserts which of the Triton kernels ran."""

    def checked(queries: Any, documents: Any, *rest: Any, runs: str = "short-query", **masks: Any) -> Tensor:
        _launched.clear()
        scores = run(queries, documents, *rest, **masks)
        form = runs + "-hopper" * copy_engine_reads(queries, documents, runs, rest)
        assert _launched == ([form] if scores.numel() else [])
        if scores.numel():
            assert maxsim.plan(queries, documents, pairs=len(rest[0]) if rest else None).kernel == form
        return scores

    return checked


def copy_engine_reads(queries: Any, documents: Any, runs: str, listing: Any) -> bool:
    """Whether the kernel has to be the one for Hopper: rows of one half precision as they lie in memory, up
    to 256 wide and not the scattered queries of a work list, or up to 128 wide and 32 rows a query."""
    if not HAS_GPU or torch.cuda.get_device_capability()[0] != 9:
        return False
    left, right = (side if isinstance(side, Tensor) else side.tokens for side in (queries, documents))
    asked = rows.side(queries, "queries").layout
    one = asked.items == 1
    if runs in ("long-query", "multi-query"):
        fits = left.shape[-1] <= 256 and (one or not listing)
    else:
        few = asked.longest is not None and asked.longest <= 32
        fits = (one or bool(listing)) and left.shape[-1] <= 128 and few and in_order(left)
    return (
        fits
        and in_order(right)
        and left.dtype == right.dtype != torch.float32
        and all(side.numel() and side.stride(-1) == 1 and side.data_ptr() % 16 == 0 for side in (left, right))
        and all(stride % 8 == 0 for side in (left, right) for stride in side.stride()[:-1])
    )


def in_order(tokens: Tensor) -> bool:
    """Whether neighbouring tokens of an item are neighbouring rows of a table of all of them."""
    items = tokens.ndim == 3 and len(tokens) > 1
    return tokens.shape[-2] < 2 or not items or tokens.stride(0) % max(tokens.stride(1), 1) == 0


def public(name: str) -> Backend:
    """The public functions, where they must run this backend."""
    functions = (maxsim.score, maxsim.score_pairs)
    if name in TRITON:
        return Backend(name, *(launching(function) for function in functions), maxsim.explain, maxsim.top_k)
    checked = (planned(name, function) for function in (*functions, maxsim.explain))
    return Backend(name, *checked, maxsim.top_k)


TRITON = ("triton-interpreted", "gpu")

BACKENDS = [
    Backend(
        "reference",
        defining(maxsim.reference.score),
        defining(maxsim.reference.score_pairs),
        lambda query, document: maxsim.Explanation(*maxsim.reference.explain(query, document)),
        maxsim.reference.top_k,
    ),
    public("cpu"),
    public("cpu-avx2"),
    public("triton-interpreted"),
    public("gpu"),
]


def named(name: str, value: Any = None) -> Any:
    """A parameter for a backend of this name."""
    marks = {
        "gpu": [pytest.mark.gpu],
        # The interpreter computes with numpy, which speaks up about NaN, and about Triton's use of it.
        "triton-interpreted": [pytest.mark.filterwarnings("ignore:::triton.runtime.interpreter")],
    }
    return pytest.param(value or name, id=name, marks=marks.get(name, ()))


def prepare(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make dispatch choose this backend, or skip the test where the machine has none.

    On the GPU, tensors that a test makes without naming a device lie there.
    """
    if name == "cpu-avx2" and not cpu_native.available():
        pytest.skip("the compiled kernel was not built here, or this processor has no AVX2")
    if name == "cpu":
        monkeypatch.setattr(cpu_native, "available", lambda: False)
    if name in TRITON and not HAS_TRITON:
        pytest.skip("Triton is not installed")
    if name == "triton-interpreted":
        _interpret(monkeypatch)
    if name == "gpu":
        if not HAS_GPU:
            pytest.skip("needs a CUDA device")
        _watch(monkeypatch)
        torch.set_default_device("cuda")
    yield
    if name == "gpu":
        torch.set_default_device(None)


def _interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take host tensors for a GPU's."""
    if HAS_GPU:
        pytest.skip("a process that interprets kernels cannot compile them, and here is a GPU to run them on")
    from maxsim.forward import choose, launch

    if not launch.INTERPRETED:
        pytest.skip("Triton was imported before its interpreter was asked for")

    def longest(lengths: Tensor) -> int:
        return int(lengths.max()) if len(lengths) else 0

    monkeypatch.setattr(dispatch, "_on_gpu", lambda device: True)
    # As on a GPU, where lengths are looked at beforehand.
    monkeypatch.setattr(ragged, "_longest", longest)
    monkeypatch.setattr(operators, "_check_range", lambda *_: None)
    monkeypatch.setattr(choose, "processors", lambda device: INTERPRETED_PROCESSORS)
    _watch(monkeypatch)


def _watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record what runs; fill memory with NaN before a kernel writes to it, so that what it forgets shows."""
    from maxsim.forward import backend

    run = backend.run

    def recorded(choice: Any, *operands: Any) -> None:
        _launched.append(choice.name)
        run(choice, *operands)

    def elsewhere(function: Score) -> Score:
        """Without the default device of the test: the library has to name the one it means."""

        def called(*operands: Any) -> Tensor:
            with torch.device("cpu") if HAS_GPU else nullcontext():
                return function(*operands)

        return called

    def poisoned(*shape: Any, **options: Any) -> Tensor:
        memory = torch.empty(*shape, **options)
        return memory.fill_(torch.nan) if memory.is_floating_point() else memory

    monkeypatch.setattr(backend, "run", recorded)
    for function in ("all_pairs", "listed_pairs"):
        monkeypatch.setattr(backend, function, elsewhere(getattr(backend, function)))
    monkeypatch.setattr(backend, "torch", SimpleNamespace(**{**vars(torch), "empty": poisoned}))


@pytest.fixture(params=[named(backend.name, backend) for backend in BACKENDS])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    for _ in prepare(request.param.name, monkeypatch):
        yield request.param


@pytest.fixture(params=[named(backend.name) for backend in BACKENDS[1:]])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The backends that the public functions can be made to run here, by name."""
    for _ in prepare(request.param, monkeypatch):
        yield request.param


@pytest.fixture(params=[named(backend.name) for backend in BACKENDS[1:] if not backend.interpreted])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Those of them that compute as they do in use: the interpreter multiplies with numpy, on one thread."""
    for _ in prepare(request.param, monkeypatch):
        yield request.param


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """For tests marked `gpu`: the current CUDA device, where tensors now lie by default."""
    for _ in prepare("gpu", monkeypatch):
        yield torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def launched() -> list[str]:
    """Names of the Triton kernels that have run since the list was last cleared."""
    _launched.clear()
    return _launched


@pytest.fixture
def seeded(request: pytest.FixtureRequest) -> torch.Generator:
    """Fresh numbers in every run, on the backend's device; the seed is printed with a failure."""
    for fixture in {"backend", "kernel", "compiled", "gpu"} & set(request.fixturenames):
        request.getfixturevalue(fixture)
    seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_())
    print(f"seed {seed}")
    return torch.Generator(torch.get_default_device()).manual_seed(seed)


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
    documents = [document.double().cpu().numpy() for document in documents]
    for a, query in enumerate(queries):
        for b, document in enumerate(documents):
            for row in query.double().cpu().numpy():
                best = -np.inf
                for token in document:
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
        np.testing.assert_allclose(scores.cpu().numpy(), wanted, rtol=0, atol=1e-6 * max(rows, 1))

    return check

"""The engine on a GPU: the library's answers bit for bit, alone and in a crowd; nothing compiled live."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import maxsim
from maxsim_serve.engine import Engine, InlineCandidates, Ranking, make_scorer, warm_up
from maxsim_serve.engine.candidates import Resolved
from maxsim_serve.engine.scorer import Request
from maxsim_serve.errors import OutOfMemory
from maxsim_serve.metrics import Metrics
from maxsim_serve.store import Part

pytestmark = pytest.mark.gpu

DIM = 128
NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True)
class Rows:
    """Documents of an arena by number, as the store names them."""

    tokens: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    chosen: torch.Tensor

    normalize = False
    dim = DIM

    def resolve(self) -> Resolved:
        starts, lengths = self.starts[self.chosen], self.lengths[self.chosen]
        part = Part(self.tokens, starts.numpy(), lengths.numpy(), np.arange(len(starts)))
        return Resolved([part], len(starts), NOTHING, int(lengths.sum()))

    def of(self, chosen: torch.Tensor) -> "Rows":
        return Rows(self.tokens, self.starts, self.lengths, chosen)


@pytest.fixture(scope="module")
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda", 0)


def make_rows(device: torch.device, dtype: torch.dtype, documents: int = 4000, shortest: int = 1) -> Rows:
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(shortest, 300, (documents,), generator=generator)
    tokens = torch.randn(int(lengths.sum()), DIM, generator=generator).to(device, dtype)
    return Rows(tokens, lengths.cumsum(0) - lengths, lengths, torch.arange(documents))


def serve(device: torch.device, body: Callable[[Engine], object], query_dtype: str = "stored") -> Metrics:
    metrics = Metrics()
    warm_up(device, [(DIM, torch.float16), (DIM, torch.bfloat16)], metrics)
    scorer = make_scorer(device, query_dtype, 0, metrics)  # type: ignore[arg-type]

    async def run() -> None:
        engine = Engine(
            queue_depth=256, max_batch_tokens=2_000_000, retry_after_s=1.0, metrics=metrics, scorer=scorer
        )
        engine.start()
        try:
            await body(engine)  # type: ignore[misc]
        finally:
            await engine.drain(30.0)

    asyncio.run(run())
    return metrics


async def rank(engine: Engine, query: np.ndarray, candidates: object, top_n: int | None = None) -> Ranking:
    return await engine.rank(query, candidates, top_n=top_n, explain=False, deadline_s=60.0)  # type: ignore[arg-type]


def library(query: np.ndarray, rows: Rows, dtype: torch.dtype) -> tuple[list[int], list[float]]:
    """Positions and scores by the library, on the same device."""
    device = rows.tokens.device
    documents = maxsim.Spans(
        rows.tokens, rows.starts[rows.chosen].to(device), rows.lengths[rows.chosen].to(device)
    )
    scores = maxsim.score(torch.from_numpy(query).to(device, dtype), documents)[0]
    best = maxsim.top_k(scores, len(scores))
    return best.indices.tolist(), best.values.tolist()


def queries(count: int, most_rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [
        rng.standard_normal((int(n), DIM), dtype=np.float32) for n in rng.integers(1, most_rows + 1, count)
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("query_dtype", ["stored", "float32"])
def test_alone_and_among_64_the_answers_are_the_librarys_bit_for_bit(device, dtype, query_dtype):
    rows = make_rows(device, dtype)
    generator = torch.Generator().manual_seed(6)
    asked = [
        (query, rows.of(torch.randint(0, 4000, (int(n),), generator=generator)))
        for query, n in zip(queries(64, 90), np.random.default_rng(1).integers(1, 1500, 64), strict=True)
    ]
    used = dtype if query_dtype == "stored" else torch.float32
    wanted = [library(query, candidates, used) for query, candidates in asked]

    async def body(engine: Engine) -> None:
        for (query, candidates), (positions, scores) in zip(asked[:12], wanted[:12], strict=True):
            alone = await rank(engine, query, candidates)
            assert (alone.positions.tolist(), alone.scores.tolist()) == (positions, scores)
            assert set(alone.timings_s) >= {"lookup", "launch", "upload", "kernel", "download", "topk"}
        for _ in range(3):
            crowd = await asyncio.gather(*(rank(engine, *one) for one in asked))
            for ranking, (positions, scores) in zip(crowd, wanted, strict=True):
                assert (ranking.positions.tolist(), ranking.scores.tolist()) == (positions, scores)

    metrics = serve(device, body, query_dtype)
    batches = metrics.registry.get_sample_value("maxsim_batch_requests_count")
    assert batches is not None and batches < 12 + 3 * 64


@pytest.mark.parametrize("given", [np.float16, np.float32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_graph_answers_as_plain_launches_do_whatever_came_before(device, dtype, given):
    rows = make_rows(device, dtype, shortest=256)  # of one class of lengths, however few are asked for
    generator = torch.Generator().manual_seed(8)
    rng = np.random.default_rng(3)
    # Kinds of requests take turns, sizes within a kind grow and shrink, and two are in flight.
    counts = [1000, 3, 700, 129, 128, 1, 900, 1024, 60, 2000, 4096, 4097, 1030] * 4
    lengths = [32, 7, 20, 64, 33, 1, 32, 90, 90, 300, 17, 32, 90] * 4
    asked = [
        (
            rng.standard_normal((length, DIM), dtype=np.float32).astype(given),
            rows.of(torch.randint(0, 4000, (count,), generator=generator)),
        )
        for count, length in zip(counts, lengths, strict=True)
    ]
    wanted = [library(query, candidates, dtype) for query, candidates in asked]

    async def body(engine: Engine) -> None:
        for (query, candidates), (positions, scores) in zip(asked, wanted, strict=True):
            alone = await rank(engine, query, candidates)
            assert (alone.positions.tolist(), alone.scores.tolist()) == (positions, scores)

    metrics = serve(device, body)
    # Each of the nine kinds that graphs are for (4,097 candidates are too many) is launched plainly once.
    assert metrics.registry.get_sample_value("maxsim_graph_replays_total") == len(asked) - 4 - 9


@pytest.mark.parametrize("query_rows", [32, 1000])
def test_two_requests_in_flight_do_not_share_a_graphs_buffers(device, query_rows):
    rows = make_rows(device, torch.float16)
    scorer = make_scorer(device, "stored", 0, Metrics())
    scorer.bind()
    requests = []
    for seed, count in enumerate((1000, 600, 900, 513)):
        chosen = torch.randint(0, 4000, (count,), generator=torch.Generator().manual_seed(seed))
        query = np.random.default_rng(seed).standard_normal((query_rows - seed, DIM))
        query = scorer.placed(query, np.dtype(np.float16))
        requests.append((query, rows.of(chosen)))
    launched = [
        Request(query, candidates.resolve(), len(candidates.chosen)) for query, candidates in requests
    ]
    scorer.launch(launched[:1]).wait()  # plain: the first of its kind
    for first in range(3):
        flights = [scorer.launch([request]) for request in launched[first : first + 2]]
        for flight, (query, candidates) in zip(flights, requests[first:], strict=False):
            scored = flight.wait()
            assert scored.graphs == 1
            stages_s = {stage: scored.stages_s[stage] for stage in ("upload", "kernel", "download")}
            assert min(stages_s.values()) > 0 and sum(stages_s.values()) < 1e-3
            positions, scores = library(query, candidates, torch.float16)
            assert scored.results[0][np.array(positions)].tolist() == scores


def test_the_best_of_many_are_picked_on_the_device(device):
    rows = make_rows(device, torch.float16, documents=40_000)
    query = queries(1, 32)[0]
    positions, scores = library(query, rows, torch.float16)

    async def body(engine: Engine) -> None:
        best = await rank(engine, query, rows, top_n=100)
        assert (best.positions.tolist(), best.scores.tolist()) == (positions[:100], scores[:100])

    serve(device, body)


def test_documents_of_the_request_are_scored_as_float32(device):
    documents, query = queries(20, 100), queries(1, 32)[0]
    ragged = maxsim.Ragged.from_list([torch.from_numpy(d).to(device) for d in documents])
    best = maxsim.top_k(maxsim.score(torch.from_numpy(query).to(device), ragged)[0], 20)

    async def body(engine: Engine) -> None:
        ranking = await rank(engine, query, InlineCandidates(documents))
        assert ranking.positions.tolist() == best.indices.tolist()
        assert ranking.scores.tolist() == best.values.tolist()

    serve(device, body)


def test_nothing_is_compiled_over_requests_of_random_sizes(device):
    rows = make_rows(device, torch.float16)
    rng = np.random.default_rng(9)
    asked = queries(600, 300)

    async def body(engine: Engine) -> None:
        for first in range(0, len(asked), 24):
            await asyncio.gather(
                *(
                    rank(engine, q, rows.of(torch.from_numpy(rng.integers(0, 4000, rng.integers(1, 2000)))))
                    for q in asked[first : first + int(rng.integers(1, 25))]
                )
            )

    metrics = serve(device, body)
    assert metrics.registry.get_sample_value("maxsim_kernel_compilations_total", {"phase": "live"}) == 0


def test_after_an_out_of_memory_the_next_request_works(device, monkeypatch):
    rows = make_rows(device, torch.float16)
    query = queries(1, 32)[0]
    real = maxsim.score_pairs

    def hungry(*operands: object) -> torch.Tensor:
        if len(operands[3]) == 777:  # type: ignore[arg-type]
            torch.empty(1 << 45, dtype=torch.uint8, device=device)
        return real(*operands)  # type: ignore[arg-type]

    monkeypatch.setattr(maxsim, "score_pairs", hungry)
    positions, scores = library(query, rows, torch.float16)

    async def body(engine: Engine) -> None:
        with pytest.raises(OutOfMemory):
            await rank(engine, query, rows.of(torch.arange(777)))
        ranking = await rank(engine, query, rows)
        assert (ranking.positions.tolist(), ranking.scores.tolist()) == (positions, scores)

    metrics = serve(device, body)
    assert metrics.registry.get_sample_value("maxsim_oom_total") == 1

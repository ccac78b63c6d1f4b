"""One query against passages of a float16 store on the CPU: ours, the padded einsum, and maxsim-cpu.

All in one run on the same inputs, each checked against the reference before it is timed, with the
machine's own sgemm peak beside them. The peers are given what suits them best, outside the clock:
float32 copies of the candidates, padded for the einsum, one array a document for maxsim-cpu. Ours
reads the packed float16 store in place. Contenders take turns, so that a busy neighbour hits all alike.
"""

import argparse
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

import maxsim
from maxsim import Spans

__all__ = ["Timing", "configure", "run"]

STORE_DOCUMENTS = 10_000
MEAN_LENGTH, LENGTH_SPREAD, LONGEST = 120, 0.45, 400
QUERY_ROWS, DIM = 32, 128
PEAK_SIZE = 3072
# OpenMP's threads spin for a while when their work is done; nobody should be timed beside another's.
PAUSE_S = 0.005

Contender = Callable[[], Tensor]


@dataclass(frozen=True)
class Timing:
    """Medians over all rounds, and how much of the time the arithmetic alone would need at the sgemm peak.

    median_ms is the wall clock's; cpu_ms is what all threads together worked, which a busy neighbour
    disturbs far less.
    """

    contender: str
    candidates: int
    tokens: int
    median_ms: float
    cpu_ms: float
    gflop_per_s: float
    share_of_peak: float


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `maxsim bench cpu`."""
    parser.add_argument(
        "--candidates", type=int, nargs="+", default=[1, 100, 1000], help="candidates a query"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of each contender")
    parser.add_argument("--rounds", type=int, default=31, help="timed rounds; the median counts")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.set_defaults(run=_command)


def run(candidates: list[int], threads: int, rounds: int) -> tuple[float, list[Timing]]:
    """Time every contender at every number of candidates → (sgemm peak in GFLOP/s, timings).

    Raises AssertionError when a contender's scores differ from the reference by more than 1e-4.
    """
    # The peer's threads are fixed when it is first imported.
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    store, query = _store(generator), _unit(QUERY_ROWS, generator)
    peak = _sgemm_peak(rounds)
    timings = []
    for count in candidates:
        chosen = torch.randperm(len(store), generator=generator)[:count]
        documents = Spans(store.tokens, store.starts[chosen], store.lengths[chosen])
        contenders = _contenders(query, documents)
        _check(contenders, query, documents)
        tokens = int(documents.lengths.sum())
        flop = 2 * QUERY_ROWS * DIM * tokens
        for name, (wall_s, cpu_s) in _take_turns(contenders, rounds).items():
            speed = flop / wall_s / 1e9
            timings.append(Timing(name, count, tokens, wall_s * 1e3, cpu_s * 1e3, speed, speed / peak))
    return peak, timings


def _command(arguments: argparse.Namespace) -> int:
    peak, timings = run(arguments.candidates, arguments.threads, arguments.rounds)
    plan = maxsim.plan(torch.zeros(QUERY_ROWS, DIM), torch.zeros(1, DIM))
    print(f"kernel {plan.kernel}: {plan.reason}")
    print(f"sgemm peak {peak:.0f} GFLOP/s, {arguments.threads} threads; {QUERY_ROWS} × {DIM}, float16 store")
    print(
        f"{'candidates':>10}  {'contender':<16}{'median ms':>10}{'cpu ms':>9}"
        f"{'GFLOP/s':>9}{'of peak':>9}{'ours / it':>11}"
    )
    ours = {timing.candidates: timing.median_ms for timing in timings if timing.contender == "maxsim"}
    for timing in timings:
        ratio = ours[timing.candidates] / timing.median_ms
        print(
            f"{timing.candidates:>10}  {timing.contender:<16}{timing.median_ms:>10.3f}{timing.cpu_ms:>9.3f}"
            f"{timing.gflop_per_s:>9.1f}{timing.share_of_peak:>9.0%}{ratio:>11.2f}"
        )
    if importlib.util.find_spec("maxsim_cpu") is None:
        print("maxsim-cpu is not installed and was left out; pip install 'maxsim-serve[bench]' adds it")
    if arguments.json:
        table = {"sgemm_peak_gflop_per_s": peak, "timings": [asdict(timing) for timing in timings]}
        arguments.json.write_text(json.dumps(table, indent=2) + "\n")
    return 0


def _unit(rows: int, generator: torch.Generator) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(rows, DIM, generator=generator), dim=1).half()


def _store(generator: torch.Generator) -> Spans:
    """A packed float16 store of documents with lengths like passages."""
    spread = torch.randn(STORE_DOCUMENTS, generator=generator) * LENGTH_SPREAD - LENGTH_SPREAD**2 / 2
    lengths = (MEAN_LENGTH * spread.exp()).round().clamp(8, LONGEST).long()
    return Spans(_unit(int(lengths.sum()), generator), lengths.cumsum(0) - lengths, lengths)


def _sgemm_peak(rounds: int) -> float:
    """What torch.mm reaches on large float32 matrices, GFLOP/s; the best round, since it is a ceiling."""
    left, right = torch.randn(PEAK_SIZE, PEAK_SIZE), torch.randn(PEAK_SIZE, PEAK_SIZE)
    best = min(_seconds(lambda: torch.mm(left, right))[0] for _ in range(max(rounds // 4, 3)))
    return 2 * PEAK_SIZE**3 / best / 1e9


def _contenders(query: Tensor, documents: Spans) -> dict[str, Contender]:
    pairs = torch.zeros(len(documents), dtype=torch.int64), torch.arange(len(documents))
    query32 = query.float()
    singles = [documents[i].float() for i in range(len(documents))]
    padded = torch.nn.utils.rnn.pad_sequence(singles, batch_first=True)
    # The naive form has no mask to pay for: padding repeats each document's first token.
    for row, single in zip(padded, singles, strict=True):
        row[len(single) :] = single[0]
    contenders: dict[str, Contender] = {
        "maxsim": lambda: maxsim.score_pairs(query[None], documents, *pairs),
        "padded einsum": lambda: torch.einsum("qd,nld->nql", query32, padded).amax(dim=2).sum(dim=1),
    }
    if importlib.util.find_spec("maxsim_cpu") is not None:
        import maxsim_cpu

        arrays, query_array = [single.numpy() for single in singles], query32.numpy()
        contenders["maxsim-cpu"] = lambda: torch.from_numpy(
            maxsim_cpu.maxsim_scores_variable(query_array, arrays)
        )
    return contenders


def _check(contenders: dict[str, Contender], query: Tensor, documents: Spans) -> None:
    wanted = maxsim.reference.score(query.double(), documents)[0]
    for name, contender in contenders.items():
        error = float((contender() - wanted).abs().max())
        assert error < 1e-4, f"{name} is off by {error}"


def _take_turns(contenders: dict[str, Contender], rounds: int) -> dict[str, tuple[float, float]]:
    """Median (wall, CPU) seconds of each; they alternate, after two rounds that do not count."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds + 2):
        for name, contender in contenders.items():
            time.sleep(PAUSE_S)
            seconds[name].append(_seconds(contender))
    return {
        name: (
            statistics.median(wall for wall, _ in taken[2:]),
            statistics.median(cpu for _, cpu in taken[2:]),
        )
        for name, taken in seconds.items()
    }


def _seconds(contender: Contender) -> tuple[float, float]:
    """(wall, CPU of all threads) seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    contender()
    return time.perf_counter() - wall, time.process_time() - cpu

"""Times ours and the rivals on one piece of work, each checked against float64 first → a row of the table."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maxsim.bench import exact, naive
from maxsim.bench.ceilings import DTYPE_NAMES, Ceilings
from maxsim.bench.gpu_timing import GpuClock, Uncapturable
from maxsim.bench.parallel_compile import parallel_compile
from maxsim.bench.rivals import Rival
from maxsim.bench.work import Work

__all__ = [
    "DeviceLost",
    "Row",
    "WrongScores",
    "add_naive",
    "add_rivals",
    "first_line",
    "ours",
    "still_there",
    "time_ours",
]

Row = dict[str, Any]

# Ours keeps products and sums in float32 whatever the inputs. Half-precision rivals get more room.
TOLERANCE, RIVAL_TOLERANCE = 1e-4, 1e-2
# The functions of a rival are compared by this many runs; the fastest is then timed like ours.
TRIAL_RUNS = 9


class WrongScores(Exception):
    """Scores further from the definition than allowed."""


class DeviceLost(Exception):
    """After an error on the device nothing more can run in this process."""


def ours(clock: GpuClock, ceilings: Ceilings, name: str, work: Work) -> tuple[Row, Tensor]:
    """Check and time ours → (its row, without rivals yet; the exact scores). Raises WrongScores."""
    wanted = exact.scores(work.queries, work.documents, work.pairs)
    work.prepare()
    found = work.score()
    row: Row = {
        "case": name,
        "kernel": work.kernel,
        "max_relative_error": _checked(found, wanted, TOLERANCE),
        "top20_agreement": _agreement(found, wanted, work),
        "bytes": work.bytes,
        "flop": work.flop,
        **time_ours(clock, work.score),
    }
    row["limit_ms"] = ceilings.limit_ms(work.bytes, work.flop, DTYPE_NAMES[work.queries.dtype])
    row["share_of_limit"] = row["limit_ms"] / row["ours_ms"]
    row["rivals"] = {}
    return row, wanted


def add_rivals(clock: GpuClock, row: Row, rivals: list[Rival], work: Work, wanted: Tensor) -> None:
    """Check and time each rival into the row of the same work, its failures too. Raises DeviceLost."""
    for rival in rivals:
        _add_rival(clock, row, rival, work, wanted)
    if row["rivals"]:
        row["ratio_to_best_rival"] = row["ours_ms"] / min(row["rivals"].values())


def time_ours(clock: GpuClock, call: Callable[[], object]) -> Row:
    """ours_ms, host_us, and graph_ms and graph_hot_ms or graph_error."""
    ours_ms = clock.cold_ms(call)
    times: Row = {"ours_ms": ours_ms, "host_us": clock.host_us(call, ours_ms)}
    try:
        times["graph_ms"], times["graph_hot_ms"] = clock.graph_ms(call)
    except Uncapturable as error:
        times["graph_error"] = str(error)
    return times


def add_naive(clock: GpuClock, row: Row, work: Work) -> None:
    """Add `baselines` to the row, the milliseconds of PyTorch's own ways, and `baseline_errors`."""
    wanted = exact.scores(work.queries, work.documents)[0]
    row["baselines"], row["baseline_errors"] = {}, {}
    for name, call in naive.spellings(work).items():
        try:
            _checked(call(), wanted, RIVAL_TOLERANCE)
            row["baselines"][name] = clock.cold_ms(call)
        except Exception as error:
            still_there(error)
            row["baseline_errors"][name] = first_line(error)


def _add_rival(clock: GpuClock, row: Row, rival: Rival, work: Work, wanted: Tensor) -> None:
    """Time every function of a rival; the fastest becomes its entry in `rivals`."""
    errors: dict[str, str] = {}
    trials: dict[str, float] = {}
    try:
        offers = rival.offers(work)
    except Exception as error:
        still_there(error)
        row.setdefault("rival_errors", {})[rival.name] = {"inputs": first_line(error)}
        return
    errors.update(offers.refused)
    for function, call in offers.calls.items():
        try:
            # Its own autotuning happens in the first call, which also is the one that is checked.
            with parallel_compile():
                found = call()
            _checked(found, wanted, RIVAL_TOLERANCE)
            trials[function] = clock.cold_ms(call, TRIAL_RUNS)
        except Exception as error:
            still_there(error)
            errors[function] = first_line(error)
    if errors:
        row.setdefault("rival_errors", {})[rival.name] = errors
    if not trials:
        return
    fastest = min(trials, key=lambda function: trials[function])
    call = offers.calls[fastest]
    ms = clock.cold_ms(call)
    row["rivals"][rival.name] = ms
    row.setdefault("rival_functions", {})[rival.name] = fastest
    row.setdefault("rival_trials_ms", {})[rival.name] = trials
    row.setdefault("rival_host_us", {})[rival.name] = clock.host_us(call, ms)
    try:
        row.setdefault("rival_graph_ms", {})[rival.name] = clock.graph_ms(call)[0]
    except Exception as error:
        still_there(error)
        row.setdefault("rival_graph_errors", {})[rival.name] = first_line(error)


def _checked(found: Tensor, wanted: Tensor, tolerance: float) -> float:
    """The largest relative error. Raises WrongScores."""
    if found.numel() == wanted.numel():
        found = found.reshape(wanted.shape)
    error = exact.relative_error(found, wanted)
    if not error <= tolerance:
        raise WrongScores(f"scores are off by {error:.1e} of their value, more than {tolerance:.0e}")
    return error


def _agreement(found: Tensor, wanted: Tensor, work: Work) -> float:
    """Agreement of each query's 20 best; every query of a work list has as many candidates."""
    shape = (len(work.queries), -1)
    return exact.top_agreement(found.reshape(shape), wanted.reshape(shape))


def still_there(error: Exception) -> None:
    """Raise DeviceLost where the error came from the device: from then on every call fails."""
    try:
        torch.cuda.synchronize()
    except RuntimeError as lost:
        raise DeviceLost(first_line(lost)) from error


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:200]

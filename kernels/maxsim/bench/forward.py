"""The forward kernels on this GPU: each case beside the machine's own limits and, if asked, the peers.

Everything is measured in one run on the same fresh inputs: first what the machine can do, then every case,
checked against float64 before it is timed. docs/benchmarks/h200-forward.md says how.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import maxsim
from maxsim.bench import ceilings, contest, forward_plot, forward_tables, forward_top_k, rivals
from maxsim.bench.cases import Case, chosen
from maxsim.bench.contest import DeviceLost, Row, first_line, still_there
from maxsim.bench.forward_report import as_lines
from maxsim.bench.gpu_timing import GpuClock
from maxsim.bench.machine import versions
from maxsim.bench.traffic import traffic
from maxsim.bench.work import Work

__all__ = ["configure"]

RUNS, QUICK_RUNS = 41, 15
# Autotuning takes most of a run with rivals. Cases that begin later than this are run without them.
RIVALS_UNTIL_S = 330.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `maxsim bench forward`."""
    parser.add_argument("--rivals", action="store_true", help="time the peers and PyTorch's own ways too")
    parser.add_argument("--json", type=Path, help="write everything measured to this file, case by case")
    parser.add_argument("--plot", type=Path, help="draw the cases to this SVG file")
    parser.add_argument("--only", metavar="SUBSTRING", help="only the cases whose name contains this")
    parser.add_argument("--quick", action="store_true", help="only the essential cases, timed fewer times")
    parser.set_defaults(run=_command)


class _Session:
    """One run: the clock, the limits, and what was measured so far, kept on disk as it grows."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._json: Path | None = arguments.json
        self._started_s = time.monotonic()
        self._clock = GpuClock(QUICK_RUNS if arguments.quick else RUNS)
        self._rivals = rivals.installed() if arguments.rivals else []
        self._baselines: bool = arguments.rivals
        self._generator = torch.Generator("cuda")
        seed = self._generator.seed()
        self._ceilings = ceilings.measure(self._clock)
        self.measured: dict[str, Any] = {
            **versions(),
            "seed": seed,
            "quick": arguments.quick,
            "ceilings": asdict(self._ceilings),
            "rivals_left_out": rivals.left_out() if arguments.rivals else [],
            "rows": [],
            "failures": [],
            "tables": {},
        }
        self.keep()

    def keep(self) -> None:
        """Write what there is; a crash of a peer then costs only what comes after it."""
        if self._json is not None:
            self._json.write_text(json.dumps(self.measured, indent=2) + "\n", encoding="utf-8")

    def warm_up(self) -> None:
        """Compile ours for the usual width and dtype, as a service does before it says it is ready."""
        with self._guarded("warm-up"):
            done = maxsim.warmup()
            self.measured["warmup"] = {"kernels": done.kernels, "seconds": done.seconds}

    def case(self, case: Case) -> None:
        """Measure one case and add its row, or its failure."""
        with self._guarded(case.name):
            late = time.monotonic() - self._started_s > RIVALS_UNTIL_S
            work = case.make(self._generator)
            row, wanted = contest.ours(self._clock, self._ceilings, case.name, work)
            self._add(row)
            if case.split:
                row["unsplit_ms"] = self._unsplit_ms(work)
            if late and self._rivals:
                row["rival_errors"] = {"all": "left out: the time for rivals had run out"}
                return
            contest.add_rivals(self._clock, row, self._rivals, work, wanted)
            if case.naive and self._baselines:
                contest.add_naive(self._clock, row, work)
            self._say(row)

    def top_k(self, count: int) -> None:
        """Measure one top-K, likewise."""
        with self._guarded(forward_top_k.name(count)):
            row = forward_top_k.row(self._clock, self._ceilings, count, self._generator, self._baselines)
            self._add(row)
            self._say(row)

    def tables(self) -> None:
        """Measure the tables beside the cases."""
        tables, generator = self.measured["tables"], self._generator
        with self._guarded("odd lengths"):
            tables["odd_lengths"] = forward_tables.odd_lengths(self._clock, self._ceilings, generator)
        with self._guarded("numerics"):
            tables["numerics"] = forward_tables.numerics(generator)
        with self._guarded("memory"):
            counts = forward_tables.MEMORY_DOCUMENTS
            tables["memory"] = forward_tables.memory(self._ceilings, generator, counts)
        torch.cuda.empty_cache()
        with self._guarded("traffic"):
            tables["traffic"] = traffic(self.measured["rows"])

    def _unsplit_ms(self, work: Work) -> float:
        """The same kernel where it may not split a document."""
        choose = importlib.import_module("maxsim.forward.choose")
        with choose.without_splitting():
            return self._clock.cold_ms(work.score)

    def _add(self, row: Row) -> None:
        self.measured["rows"].append(row)
        self.keep()

    def _say(self, row: Row) -> None:
        beside = "".join(f", {name} {ms:.4f}" for name, ms in row["rivals"].items())
        print(f"{row['case']}: {row['ours_ms']:.4f} ms{beside}", file=sys.stderr, flush=True)

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """A failure inside becomes an entry in `failures`, and the run goes on unless the device is lost."""
        try:
            yield
        except Exception as error:
            self.measured["failures"].append({"case": what, "error": first_line(error)})
            if isinstance(error, DeviceLost):
                raise
            still_there(error)
            # What the failed case held must not be missing from the next.
            torch.cuda.empty_cache()
        finally:
            self.keep()


def _command(arguments: argparse.Namespace) -> int:
    if not torch.cuda.is_available():
        print("maxsim bench forward: needs a CUDA GPU, and PyTorch sees none here", file=sys.stderr)
        return 1
    session = _Session(arguments)
    try:
        _measure(session, arguments)
    except DeviceLost as lost:
        print(f"the device was lost, and the run ends here: {lost}", file=sys.stderr)
    measured = session.measured
    if arguments.plot is not None:
        arguments.plot.write_text(forward_plot.svg(measured), encoding="utf-8")
    for sentence in measured["rivals_left_out"]:
        print(sentence)
    for failure in measured["failures"]:
        print(f"FAILED {failure['case']}: {failure['error']}")
    limits = measured["ceilings"]
    matmul = ", ".join(f"{name} {rate:.0f}" for name, rate in limits["matmul_tflop_per_s"].items())
    print(
        f"{measured['gpu']}: TB/s read {limits['read_tb_per_s']:.2f}, copied {limits['copy_tb_per_s']:.2f}; "
        f"TFLOP/s {matmul}; empty kernel {limits['empty_kernel_us']:.1f} µs"
    )
    print("\n".join(as_lines(measured)))
    return 1 if measured["failures"] else 0


def _measure(session: _Session, arguments: argparse.Namespace) -> None:
    session.warm_up()
    for case in chosen(arguments.only, arguments.quick):
        session.case(case)
    for count in forward_top_k.COUNTS:
        if (arguments.only or "") in forward_top_k.name(count):
            session.top_k(count)
    if not arguments.quick and arguments.only is None:
        session.tables()

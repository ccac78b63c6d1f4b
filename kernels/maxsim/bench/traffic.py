"""Bytes that really crossed the memory's pins, by Nsight Compute where it is installed; else as counted."""

import csv
import shutil
import subprocess
import sys
from typing import Any

from maxsim.bench.contest import Row

__all__ = ["PROBED", "parse_ncu", "traffic"]

# Cases worth a profiler's start: the two bounds, and ragged documents.
PROBED = ("32x1024", "1024x1024", "packed, 20,000 passages")
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
TIMEOUT_S = 60
UNITS = {"byte": 1, "Kbyte": 10**3, "Mbyte": 10**6, "Gbyte": 10**9}


def traffic(rows: list[Row]) -> list[dict[str, Any]]:
    """For each probed case of the rows: the bytes counted and, where `ncu` can, those measured.

    The first failure of `ncu` is the last try; its reason is in the entry.
    """
    counted = {row["case"]: row["bytes"] for row in rows}
    problem = None if shutil.which("ncu") else "ncu is not installed"
    table = []
    for case in PROBED:
        if case not in counted:
            continue
        entry: dict[str, Any] = {"case": case, "counted_bytes": counted[case], "by": "counted"}
        if problem is None:
            try:
                entry |= {"by": "ncu", **_measured(case)}
                entry["measured_over_counted"] = entry["read_bytes"] / counted[case]
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                entry["by"] = "counted"
                problem = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:200]
        if problem is not None:
            entry["why_not_measured"] = problem
        table.append(entry)
    return table


def parse_ncu(text: str) -> dict[str, int]:
    """Sum the two metrics over all kernels of ncu's CSV → read_bytes, write_bytes. Raises ValueError."""
    lines = text.splitlines()
    header = next((i for i, line in enumerate(lines) if '"Metric Name"' in line), None)
    if header is None:
        raise ValueError("no table in what ncu printed: " + " ".join(lines[-3:]))
    sums = dict.fromkeys(METRICS, 0.0)
    kernels = 0
    for record in csv.DictReader(lines[header:]):
        metric, value, unit = (record.get(f"Metric {part}") for part in ("Name", "Value", "Unit"))
        if metric not in sums or value is None or unit not in UNITS:
            continue
        sums[metric] += float(value.replace(",", "")) * UNITS[unit]
        kernels += 1
    if kernels == 0:
        raise ValueError("ncu printed none of the metrics")
    return {"read_bytes": round(sums[METRICS[0]]), "write_bytes": round(sums[METRICS[1]])}


def _measured(case: str) -> dict[str, int]:
    command = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv"]
    command += ["--metrics", ",".join(METRICS), sys.executable, "-m", "maxsim.bench.traffic_probe", case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
        raise ValueError(f"ncu ended with {done.returncode}, and said at last: {said[-1]}")
    return parse_ncu(done.stdout)

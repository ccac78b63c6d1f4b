"""The folder of compiled kernels, with several processes at it: one compiler is enough, no GPU is needed."""

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")

PROCESSES = 8

# argv: the folder of kernels, a folder to meet in, how many meet there.
COMPILE = """
import hashlib, os, sys, time
from pathlib import Path
from maxsim_serve.engine.device import use_kernel_cache

cache, meeting, processes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
use_kernel_cache(cache)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from maxsim.forward.finish import add_blocks

(meeting / str(os.getpid())).touch()
while len(list(meeting.iterdir())) < processes:
    time.sleep(0.01)
tensors = {"SUMS": "*fp64", "Q_INDEX": "*i64", "X_INDEX": "*i64", "OUT": "*fp32"}
constants = {"PAIRS": 8, "BLOCKS": 16, "DEPENDENT": True}
signature = {
    parameter.name: tensors.get(parameter.name) or (
        "constexpr" if parameter.name in constants else parameter.annotation_type
    )
    for parameter in add_blocks.params
}
source = ASTSource(fn=add_blocks, signature=signature, constexprs=constants)
kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
print(hashlib.sha256(kernel.asm["cubin"]).hexdigest())
"""


def start(cache, meeting, processes):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    command = [sys.executable, "-c", COMPILE, str(cache), str(meeting), str(processes)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def results(started):
    printed = []
    for process in started:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        printed.append(out.strip())
    return printed


def files(cache):
    return {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}


def test_eight_processes_fill_an_empty_folder_and_a_ninth_compiles_nothing(tmp_path):
    cache, meeting, alone = tmp_path / "kernels", tmp_path / "meeting", tmp_path / "alone"
    for folder in (cache, meeting, alone):
        folder.mkdir()
    kernels = results([start(cache, meeting, PROCESSES) for _ in range(PROCESSES)])
    assert len(kernels) == PROCESSES
    assert len(set(kernels)) == 1
    filled = files(cache)
    assert any(path.suffix == ".cubin" for path in filled)
    assert results([start(cache, alone, 1)]) == kernels[:1]
    assert files(cache) == filled

"""The folder of compiled kernels, with several processes at it: one compiler is enough, no GPU is needed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")

PROCESSES = 8

AHEAD = Path(__file__).parents[2] / "kernels"

# argv: the folder of kernels, a folder to meet in, how many meet there, where `compile_ahead` is.
COMPILE = """
import hashlib, os, sys, time
from pathlib import Path
from maxsim_serve.engine.device import use_kernel_cache

cache, meeting, processes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
use_kernel_cache(cache)
sys.path.insert(0, sys.argv[4])

import torch
from triton.backends.compiler import GPUTarget
from compile_ahead import compiled
from maxsim.forward.finish import add_blocks
from maxsim.forward.launch import Options

(meeting / str(os.getpid())).touch()
while len(list(meeting.iterdir())) < processes:
    time.sleep(0.01)
tensors = (torch.empty(0, dtype=dtype) for dtype in (torch.float64, torch.int64, torch.int64, torch.float32))
kernel = compiled(add_blocks, (*tensors, *8 * (1,)), (8, 16, True), Options(4), GPUTarget("cuda", 90, 32))
print(hashlib.sha256(kernel.asm["cubin"]).hexdigest())
"""


def start(cache, meeting, processes):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    command = [sys.executable, "-c", COMPILE, str(cache), str(meeting), str(processes), str(AHEAD)]
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

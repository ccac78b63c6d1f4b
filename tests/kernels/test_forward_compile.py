"""What the compiler makes of the forward kernels for Ampere and Hopper, without either: `compile_ahead`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from maxsim import dispatch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),  # the first test waits for some 80 compilations
    pytest.mark.skipif(not dispatch._has_triton(), reason="Triton is not installed"),
]

SCRIPT = Path(__file__).with_name("compile_ahead.py")
# What a program may have: 1 KB of the SM's is the system's. An RTX of Ada's has less than either.
SHARED_LIMIT_BYTES = {80: 163 << 10, 90: 227 << 10}
ADA_SHARED_LIMIT_BYTES = 99 << 10
REGISTERS_OF_AN_SM = 65_536
# Twelve warps an SM: what a kernel that waits for memory needs to have enough of it in flight.
SHORT_QUERY_REGISTERS = 168
HALVES = ("fp16-fp16", "bf16-bf16")
COPIED = ("hopper-few", "hopper-long", "hopper-32")
PORTABLE = ("short-32", "few-32", "short-64", "long")

both = pytest.mark.parametrize("capability", [80, 90], ids="sm_{}".format)


@pytest.fixture(scope="module")
def compiled():
    """capability → facts of each kernel; both compiled at once, a process each."""
    # A process that interprets kernels cannot compile them.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    running = {
        capability: subprocess.Popen(
            [sys.executable, SCRIPT, str(capability)], stdout=subprocess.PIPE, text=True, env=environment
        )
        for capability in (80, 90)
    }
    lines = {capability: process.communicate()[0].splitlines() for capability, process in running.items()}
    assert all(process.returncode == 0 for process in running.values())
    return {capability: [json.loads(line) for line in found] for capability, found in lines.items()}


def select(kernels, **wanted):
    """The kernels whose facts are those wanted, or among them; at least one."""
    found = [
        facts
        for facts in kernels
        if all(facts[k] in v if isinstance(v, tuple) else facts[k] == v for k, v in wanted.items())
    ]
    assert found, wanted
    return found


def names(kernels):
    """Readable ids for an assertion's message."""
    form = "{kernel} {config} d{dim} {dtypes} masked={masked} chunked={chunked} {constants}"
    return [form.format(**facts) for facts in kernels]


@both
def test_every_configuration_is_compiled(compiled, capability):
    configs = {facts["config"] for facts in select(compiled[capability], dim=128, dtypes="fp16-fp16")}
    hopper = {*COPIED, "hopper-128", "hopper-256"} if capability == 90 else set()
    assert configs - {""} == {*PORTABLE, *hopper}
    assert len(compiled[capability]) == len(set(names(compiled[capability])))


@both
def test_nothing_spills(compiled, capability):
    assert names(k for k in compiled[capability] if k["spills"] or k["stack_bytes"]) == []


@both
def test_shared_memory_fits(compiled, capability):
    limit = SHARED_LIMIT_BYTES[capability]
    assert names(k for k in compiled[capability] if k["shared_bytes"] > limit) == []


def test_on_ada_everything_fits(compiled):
    assert names(k for k in compiled[80] if k["shared_bytes"] > ADA_SHARED_LIMIT_BYTES) == []


@both
def test_registers_of_a_program_fit(compiled, capability):
    kernels = compiled[capability]
    assert names(k for k in kernels if k["registers"] * k["warps"] * 32 > REGISTERS_OF_AN_SM) == []
    short = select(kernels, kernel="short_query", dim=(96, 128), dtypes=HALVES, masked=False, chunked=False)
    assert names(k for k in short if k["registers"] > SHORT_QUERY_REGISTERS) == []


@both
@pytest.mark.parametrize("config", PORTABLE)
def test_loads_are_pipelined(compiled, capability, config):
    assert names(k for k in select(compiled[capability], config=config) if not k["cp_async"]) == []


@both
@pytest.mark.parametrize(
    ("config", "dim"), [("short-32", 96), ("short-64", 96), *((config, 128) for config in PORTABLE)]
)
def test_half_rows_are_read_16_bytes_at_a_time(compiled, capability, config, dim):
    kernels = select(compiled[capability], config=config, dim=dim, dtypes=HALVES)
    assert names(k for k in kernels if k["cp_async_16_bytes"] != k["cp_async"]) == []
    assert names(k for k in kernels if not k["load_16_bytes"]) == []


@both
@pytest.mark.parametrize("dim", [320, 1024], ids="d{}".format)
def test_wide_half_rows_are_copied_16_bytes_at_a_time(compiled, capability, dim):
    kernels = select(compiled[capability], dim=dim, kernel="short_query")
    assert names(k for k in kernels if k["cp_async_16_bytes"] != k["cp_async"]) == []


@both
def test_half_precision_runs_on_the_tensor_cores(compiled, capability):
    kernels = select(compiled[capability], dtypes=HALVES, kernel=("short_query", "long_query"))
    assert names(k for k in kernels if not k["mma"] and not k["wgmma"]) == []


@both
def test_float32_is_never_rounded_to_tf32(compiled, capability):
    assert names(k for k in compiled[capability] if k["tf32"]) == []


def test_ampere_gets_nothing_of_hoppers(compiled):
    wanted = ("wgmma", "tma", "setmaxnreg")
    assert names(k for k in compiled[80] if any(k[name] for name in wanted)) == []


@pytest.mark.parametrize(
    ("config", "dim"), [("hopper-128", 128), ("hopper-256", 128), ("hopper-128", 256)], ids="{}".format
)
def test_hopper_kernel(compiled, config, dim):
    for facts in select(compiled[90], config=config, dim=dim):
        # Two warpgroups that multiply, a warp that copies.
        assert "m64n128k16" in facts["wgmma"]
        assert facts["mma"] == 0
        assert facts["tma"] >= 2
        assert facts["setmaxnreg"] >= 2
        assert facts["cp_async"] == 0


@pytest.mark.parametrize("config", COPIED)
def test_short_queries_on_hopper_leave_reading_to_the_copy_engine(compiled, config):
    for facts in select(compiled[90], config=config, dtypes=HALVES):
        assert facts["tma"] >= 4
        assert facts["mma"]
        assert facts["cp_async"] == facts["load_16_bytes"] == 0


def test_portable_long_queries_use_hoppers_tensor_cores_too(compiled):
    assert names(k for k in select(compiled[90], config="long", dtypes=HALVES) if not k["wgmma"]) == []

"""The Dockerfiles, by hadolint and by what an image must and must not have."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILES = [ROOT / "Dockerfile", ROOT / "docker" / "retriever" / "Dockerfile"]


def stages(path: Path) -> dict[str, str]:
    """The instructions of each stage, by its name, without comments; the last may have none."""
    text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    parts = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    return {part.split("\n")[0].partition(" AS ")[2]: part for part in parts}


@pytest.mark.parametrize("path", DOCKERFILES, ids=["service", "retriever"])
def test_hadolint_finds_nothing(path: Path) -> None:
    beside = Path(sys.executable).parent / "hadolint"
    hadolint = str(beside) if beside.exists() else shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install '.[dev]' brings it")
    done = subprocess.run([hadolint, "--no-color", path], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "", done.stdout


@pytest.mark.parametrize("path", DOCKERFILES, ids=["service", "retriever"])
def test_images_hold_no_secret_and_run_safely(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "PYTHONSAFEPATH=1" in text
    assert not re.search(r"^(ARG|ENV).*(PASSWORD|TOKEN|SECRET|API_KEY)", text, re.MULTILINE | re.IGNORECASE)
    assert "COPY . " not in text and "ADD " not in text


def test_no_final_stage_ends_as_root() -> None:
    finals = [stages(DOCKERFILES[0])[name] for name in ("cpu", "cuda")] + list(
        stages(DOCKERFILES[1]).values()
    )
    for stage in finals:
        users = re.findall(r"^USER (\S+)", stage, re.MULTILINE)
        assert users and int(users[-1]) >= 10_000, stage


def test_only_the_cuda_image_keeps_a_compiler() -> None:
    service = stages(DOCKERFILES[0])
    assert "install -y --no-install-recommends gcc libc6-dev" in service["cuda"]
    assert 'test -f "$header"' in service["cuda"], "Triton wants Python.h: the build must fail without it"
    assert "gcc" not in service["cpu"] + service["runtime"]


def test_an_image_without_its_compiled_parts_is_not_built() -> None:
    """They are optional to pip, which says nothing where Python's headers are missing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    modules = [module["name"] for module in project["tool"]["setuptools"]["ext-modules"]]
    wanted = re.search(r"for part in ([\w ]+); do grep -q .* \|\| exit 1", stages(DOCKERFILES[0])["wheel"])
    assert wanted is not None
    assert sorted(wanted[1].split()) == sorted(module.rpartition(".")[2] for module in modules)


def test_what_is_written_at_run_time_is_in_the_volume() -> None:
    """Under a read-only root, Triton and the model library would fail anywhere else."""
    runtime = stages(DOCKERFILES[0])["runtime"]
    assert re.search(r"^VOLUME /data$", runtime, re.MULTILINE)
    for name in ("TRITON_CACHE_DIR", "HF_HOME", "MAXSIM_DATA_DIR"):
        assert re.search(rf"{name}=/data(/\S+)?( \\)?$", runtime, re.MULTILINE), name

"""The import arrows drawn in CONTRIBUTING, held by import-linter's contracts in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_data_flows_one_way():
    # A process of its own: the linter reconfigures logging for everyone.
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "4 kept, 0 broken" in done.stdout


def test_no_module_is_named_for_what_is_left_over():
    names = {path.stem for package in ("kernels", "service") for path in (ROOT / package).rglob("*.py")}
    assert names.isdisjoint({"utils", "util", "common", "helpers", "misc"})


def test_public_faces_are_complete():
    import maxsim
    import maxsim_serve.engine
    import maxsim_serve.store

    for module in (maxsim, maxsim_serve.engine, maxsim_serve.store):
        assert sorted(module.__all__) == sorted(set(module.__all__))
        for name in module.__all__:
            assert hasattr(module, name), f"{module.__name__}.__all__ names {name}, which is not there"

"""The import arrows drawn in CONTRIBUTING, held by import-linter's contracts in pyproject.toml."""

from pathlib import Path

from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]


def test_data_flows_one_way(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0


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

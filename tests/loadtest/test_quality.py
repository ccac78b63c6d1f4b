"""The measure itself, against values worked out by hand."""

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "loadtest" / "quality.py"


@pytest.fixture(scope="module")
def quality() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quality", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ndcg_has_linear_gains_and_a_log2_discount(quality: ModuleType) -> None:
    grades = {"a": 4, "b": 1, "c": 0}
    ideal = 4 + 1 / math.log2(3)
    assert quality.ndcg(grades, ["a", "b"]) == pytest.approx(1)
    assert quality.ndcg(grades, ["x", "b", "a"]) == pytest.approx((1 / math.log2(3) + 4 / 2) / ideal)
    assert quality.ndcg(grades, ["x"] * 10 + ["a"]) == 0
    assert quality.ndcg({"c": 0}, ["c"]) == 0
    assert quality.ndcg(grades, []) == 0


def test_the_ideal_ranking_stops_at_ten(quality: ModuleType) -> None:
    grades = {str(i): 1 for i in range(30)}
    assert quality.ndcg(grades, [str(i) for i in range(10)]) == pytest.approx(1)


def test_qrels_have_a_header(quality: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "qrels.tsv"
    path.write_text("query-id\tcorpus-id\tscore\n1\tx\t3\n1\ty\t0\n2\tx\t1\n")
    assert quality.read_qrels(path) == {"1": {"x": 3, "y": 0}, "2": {"x": 1}}

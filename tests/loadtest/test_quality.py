"""The measure itself, against values worked out by hand."""

import math
from pathlib import Path

import pytest
from quality import ndcg, read_qrels


def test_ndcg_has_linear_gains_and_a_log2_discount() -> None:
    grades = {"a": 4, "b": 1, "c": 0}
    ideal = 4 + 1 / math.log2(3)
    assert ndcg(grades, ["a", "b"]) == pytest.approx(1)
    assert ndcg(grades, ["x", "b", "a"]) == pytest.approx((1 / math.log2(3) + 4 / 2) / ideal)
    assert ndcg(grades, ["x"] * 10 + ["a"]) == 0
    assert ndcg({"c": 0}, ["c"]) == 0
    assert ndcg(grades, []) == 0


def test_the_ideal_ranking_stops_at_ten() -> None:
    grades = {str(i): 1 for i in range(30)}
    assert ndcg(grades, [str(i) for i in range(10)]) == pytest.approx(1)


def test_qrels_have_a_header(tmp_path: Path) -> None:
    path = tmp_path / "qrels.tsv"
    path.write_text("query-id\tcorpus-id\tscore\n1\tx\t3\n1\ty\t0\n2\tx\t1\n")
    assert read_qrels(path) == {"1": {"x": 3, "y": 0}, "2": {"x": 1}}

"""The bench of `stream`: what it compares with is right, and on a GPU it runs."""

import json

import pytest
import torch

import maxsim
from maxsim.bench import main, stream


@pytest.mark.parametrize("shuffled", [False, True], ids=["as they lie", "shuffled"])
def test_the_wanted_answer_is_that_of_score_over_the_whole_corpus(monkeypatch, shuffled):
    monkeypatch.setattr(stream, "SLAB_ROWS", 3000)
    rows = torch.randn(3000, stream.DIM)
    slab = maxsim.Ragged(rows, stream._offsets())
    assert slab.lengths.min() >= stream.SHORTEST
    corpus = stream.Corpus(rows.repeat(5, 1), slab)
    documents = corpus.documents(4, shuffled)
    assert len(documents) == 4 * len(slab)
    query = torch.randn(stream.QUERY_ROWS, stream.DIM)
    wanted = maxsim.top_k(maxsim.score(query, documents)[0], stream.K)
    assert all(map(torch.equal, corpus.wanted(query, documents), wanted))
    assert len(set(wanted.values.tolist())) < len(wanted.values)  # of equals, which comes first matters


@pytest.mark.gpu
def test_on_a_gpu(tmp_path, capsys):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    assert main(["stream", "--gib", "1", "--json", str(tmp_path / "rows.json")]) == 0
    rows = {row["case"]: row for row in json.loads((tmp_path / "rows.json").read_text())["rows"]}
    assert {"1.1 GB: stream", "0.3 GB: device memory", "1.1 GB, documents in random order: documents"} <= set(
        rows
    )
    assert all(set(row) == {"case", "value", "unit", "limit"} and row["value"] > 0 for row in rows.values())
    assert rows["1.1 GB: stream"]["limit"] == rows["pinned copy, 128 MiB at a time"]["value"]

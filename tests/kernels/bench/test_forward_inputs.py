"""What `maxsim bench forward` measures: its inputs, what it counts, and the exact scores it compares with."""

import pytest
import torch

import maxsim
from maxsim import Ragged
from maxsim.bench import cases, exact
from maxsim.bench.rivals import gathered
from maxsim.bench.work import Work, lengths_like_passages, packed, unit


def work(seeded, form, lengths, rows=7, queries=1, pairs=None, dtype=torch.float16):
    documents = packed(torch.tensor(lengths), 24, dtype, seeded)
    return Work(unit((queries, rows, 24), dtype, seeded), documents, form, pairs)


@pytest.mark.parametrize("queries", [1, 3], ids="Nq{}".format)
@pytest.mark.parametrize(
    ("form", "lengths"),
    [
        pytest.param("dense", [17, 17, 17, 17], id="dense"),
        pytest.param("packed", [17, 1, 63, 5], id="packed"),
        pytest.param("padded", [17, 1, 63, 5], id="padded"),
    ],
)
def test_every_form_scores_the_same_documents(seeded, form, lengths, queries):
    some = work(seeded, form, lengths, queries=queries)
    some.prepare()
    wanted = maxsim.reference.score(some.queries.double(), some.documents)
    assert exact.relative_error(exact.scores(some.queries, some.documents), wanted) < 1e-12
    # A document of one token can score about nothing, and no error is small beside that.
    torch.testing.assert_close(some.score().double(), wanted, rtol=0, atol=1e-5)


def test_a_work_list_scores_its_pairs(seeded):
    pairs = torch.tensor([0, 0, 1, 1]), torch.tensor([3, 1, 1, 0])
    some = work(seeded, "pairs", [17, 1, 63, 5], queries=2, pairs=pairs)
    some.prepare()
    wanted = maxsim.reference.score_pairs(some.queries.double(), some.documents, *pairs)
    assert exact.relative_error(exact.scores(some.queries, some.documents, pairs), wanted) < 1e-12
    # A document of one token can score about nothing, and no error is small beside that.
    torch.testing.assert_close(some.score().double(), wanted, rtol=0, atol=1e-5)
    together = gathered(some)
    for i, document in enumerate(pairs[1].tolist()):
        assert torch.equal(together[i], some.documents[document])


def test_chunks_do_not_change_the_exact_scores(seeded, monkeypatch):
    some = work(seeded, "packed", [17, 1, 63, 5, 111])
    wanted = exact.scores(some.queries, some.documents)
    monkeypatch.setattr(exact, "CHUNK_VALUES", 2 * 111 * 24)
    torch.testing.assert_close(exact.scores(some.queries, some.documents), wanted, rtol=1e-13, atol=0)


def test_bytes_and_operations_are_counted_by_hand(seeded):
    every = work(seeded, "packed", [17, 1, 63], rows=7, queries=2)
    assert every.bytes == (81 * 24 + 2 * 7 * 24) * 2 + 4 * 6
    assert every.flop == 2 * 2 * 7 * 24 * 81
    # Document 2 is read once, though it is scored twice; document 0 not at all.
    pairs = torch.tensor([0, 1, 1]), torch.tensor([2, 2, 1])
    listed = work(seeded, "pairs", [17, 1, 63], rows=7, queries=2, pairs=pairs)
    assert listed.bytes == (64 * 24 + 2 * 7 * 24) * 2 + 4 * 3
    assert listed.flop == 2 * 7 * 24 * (63 + 63 + 1)


def test_wrong_scores_are_seen():
    wanted = torch.tensor([2.0, 4.0], dtype=torch.float64)
    assert exact.relative_error(torch.tensor([2.0, 4.4]), wanted) == pytest.approx(0.1)
    assert exact.relative_error(torch.tensor([2.0, torch.nan]), wanted) == float("inf")
    assert exact.relative_error(torch.tensor([2.0]), wanted) == float("inf")


def test_agreement_counts_the_best_in_any_order():
    wanted = torch.arange(30.0, dtype=torch.float64)
    found = wanted.clone()
    found[29], found[28] = 28.0, 29.0
    assert exact.top_agreement(found, wanted) == 1.0
    found[29] = -1.0
    assert exact.top_agreement(found, wanted) == pytest.approx(0.95)


def test_padding_is_masked_and_a_view_where_lengths_are_equal(seeded):
    uneven = work(seeded, "padded", [3, 0, 5])
    assert uneven.padded.shape == (3, 5, 24)
    assert torch.equal(uneven.padded[0, :3], uneven.documents[0])
    assert not uneven.padded[~uneven.mask].any()
    even = work(seeded, "dense", [4, 4])
    assert even.padded.data_ptr() == even.documents.tokens.data_ptr()


def test_rows_have_unit_norm_and_passages_their_mean(seeded):
    rows = unit((5, 11, 64), torch.float32, seeded)
    torch.testing.assert_close(rows.norm(dim=-1), torch.ones(5, 11))
    lengths = lengths_like_passages(50_000, seeded)
    assert int(lengths.min()) >= 8 and int(lengths.max()) == 400
    assert float(lengths.double().mean()) == pytest.approx(120, abs=2)


@pytest.mark.parametrize("percent", [25, 50, 75])
def test_fill_ratios(seeded, percent):
    lengths = cases._filled(percent)(seeded)
    assert (int(lengths.min()) >= 1, int(lengths.max())) == (True, 1024)
    assert float(lengths.double().mean()) / 1024 == pytest.approx(percent / 100, abs=0.04)


def test_highly_ragged_lengths(seeded):
    lengths = cases._highly_ragged(seeded)
    assert float((lengths == 512).double().mean()) == pytest.approx(0.09, abs=0.01)
    assert (int(lengths.min()), int(lengths[lengths != 512].max())) == (16, 64)


def test_names_are_unique_and_choose():
    names = [case.name for case in cases.CASES]
    assert len(set(names)) == len(names)
    assert [case.name for case in cases.chosen("bf16", quick=False)] == [
        "bf16, 32x300",
        "bf16, 32x1024",
        "bf16, 512x1024",
    ]
    assert all(case.essential for case in cases.chosen(None, quick=True))
    assert len(cases.chosen(None, quick=True)) > 5


def test_requests_by_id_have_candidates_of_their_own(seeded, monkeypatch):
    monkeypatch.setattr(cases, "STORE_PASSAGES", 40)
    some = cases._by_ids(3, 9)(seeded)
    query_index, document_index = some.pairs
    assert query_index.tolist() == [0] * 9 + [1] * 9 + [2] * 9
    assert all(len(set(document_index[query_index == q].tolist())) == 9 for q in range(3))
    assert isinstance(some.documents, Ragged) and len(some.documents) == 40

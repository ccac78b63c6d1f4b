import base64
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from maxsim_serve.__main__ import main

Import = Callable[..., int]


@pytest.fixture
def imported(service: Any) -> Import:
    """`maxsim import FILE -c c`, with further flags: its exit status."""
    return lambda path, *flags: main(["import", str(path), "-c", "c", "--url", service.url, *flags])


def write_lines(path: Path, *documents: object) -> Path:
    lines = [document if isinstance(document, str) else json.dumps(document) for document in documents]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def texts(count: int) -> list[dict[str, str]]:
    return [{"id": f"d{i}", "text": f"text {i}"} for i in range(count)]


def test_texts_arrive_with_title_payload_and_either_id(
    tmp_path: Path, service: Any, imported: Import
) -> None:
    path = write_lines(
        tmp_path / "corpus.jsonl",
        {"_id": "1", "title": "A title ", "text": " and its text"},
        {"id": "two/ü😀", "text": "only text", "payload": {"year": 1999}},
        "",
        {"id": 3, "title": "only a title"},
    )
    assert imported(path) == 0
    assert service.documents == {
        "1": {"id": "1", "text": "A title and its text"},
        "two/ü😀": {"id": "two/ü😀", "text": "only text", "payload": {"year": 1999}},
        "3": {"id": "3", "text": "only a title"},
    }


def test_json_vectors_arrive_as_binary_in_every_form(tmp_path: Path, service: Any, imported: Import) -> None:
    rows = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    bits = (rows.view(np.uint32) >> 16).astype("<u2")
    encoded = {
        "float32": rows.tobytes(),
        "float16": rows.astype("<f2").tobytes(),
        "bfloat16": bits.tobytes(),
        "int8": (rows * 10).astype("i1").tobytes(),
    }
    path = write_lines(
        tmp_path / "v.jsonl",
        {"id": "nested", "vectors": rows.tolist(), "text": "kept", "payload": [1, None]},
        *(
            {
                "id": dtype,
                "vectors": {"data": base64.b64encode(data).decode(), "shape": [3, 8], "dtype": dtype},
            }
            for dtype, data in encoded.items()
        ),
    )
    assert imported(path) == 0
    assert set(service.content_types) == {"application/vnd.safetensors"}
    stored = {id: document["vectors"] for id, document in service.documents.items()}
    np.testing.assert_array_equal(stored["nested"], rows)
    np.testing.assert_array_equal(stored["float32"], rows)
    np.testing.assert_array_equal(stored["float16"], rows.astype(np.float16))
    np.testing.assert_array_equal(stored["bfloat16"], (bits.astype(np.uint32) << 16).view(np.float32))
    np.testing.assert_array_equal(stored["int8"], (rows * 10).astype("i1"))
    assert service.documents["nested"]["text"] == "kept"
    assert service.documents["nested"]["payload"] == [1, None]


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize("named", [True, False], ids=["ids", "no-ids"])
def test_packed_files_arrive_whole(
    suffix: str, named: bool, tmp_path: Path, service: Any, imported: Import
) -> None:
    lengths = np.array([1, 17, 63, 111, 2], np.int64)
    tokens = np.random.default_rng(1).standard_normal((int(lengths.sum()), 8)).astype(np.float16)
    ids = [f"doc-{n}" for n in lengths] if named else [str(i) for i in range(5)]
    path = tmp_path / f"packed{suffix}"
    if suffix == ".npz":
        np.savez_compressed(
            path, tokens=tokens, lengths=lengths, other=np.zeros(3), **({"ids": ids} if named else {})
        )
    else:
        metadata = {"ids": json.dumps(ids), "texts": json.dumps(["t"] * 5)} if named else None
        save_file({"tokens": tokens, "lengths": lengths, "other": np.zeros(3)}, path, metadata)
    assert imported(path, "--batch-documents", "2") == 0
    assert service.upserts == [ids[:2], ids[2:4], ids[4:]]
    for id, matrix in zip(ids, np.split(tokens, np.cumsum(lengths)[:-1]), strict=True):
        np.testing.assert_array_equal(service.documents[id]["vectors"], matrix)
        assert service.documents[id]["vectors"].dtype == np.float16


def test_bfloat16_rows_arrive_exactly(tmp_path: Path, service: Any, imported: Import) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    tokens = torch.randn(5, 8, generator=torch.Generator().manual_seed(2)).bfloat16()
    save_torch({"tokens": tokens, "lengths": torch.tensor([2, 3])}, tmp_path / "b.safetensors")
    assert imported(tmp_path / "b.safetensors") == 0
    np.testing.assert_array_equal(service.documents["1"]["vectors"], tokens[2:].float().numpy())


def test_a_batch_ends_at_its_bytes_and_where_the_form_changes(
    tmp_path: Path, service: Any, imported: Import
) -> None:
    wide, narrow = [[0.5] * 8] * 4, [[0.5] * 4]
    documents = [{"id": f"w{i}", "vectors": wide} for i in range(3)]
    documents += [{"id": "n", "vectors": narrow}, {"id": "t", "text": "text"}]
    assert imported(write_lines(tmp_path / "m.jsonl", *documents), "--batch-bytes", "256") == 0
    assert service.upserts == [["w0", "w1"], ["w2"], ["n"], ["t"]]  # 128 bytes each


def test_what_is_refused_is_listed_with_its_line(
    tmp_path: Path, service: Any, imported: Import, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines(
        tmp_path / "bad.jsonl",
        {"id": "good", "text": "good"},
        {"id": "blank", "text": " "},
        "{broken",
        {"text": "no id"},
        {"id": True, "text": "no string"},
        {"id": "ragged", "vectors": [[1.0], [1.0, 2.0]]},
        '{"id": "nan", "vectors": [[NaN]]}',
        '{"id": "inf", "text": "x", "payload": 1e400}',
        {"id": "base64", "vectors": {"data": "!", "shape": [1, 8], "dtype": "float32"}},
        {"id": "short", "vectors": {"data": "AAAA", "shape": [1, 8], "dtype": "float32"}},
        {"id": "dtype", "vectors": {"data": "", "shape": [0, 8], "dtype": "float64"}},
        {"id": "flat", "vectors": [1.0, 2.0]},
        {"id": "title", "title": 7, "text": "x"},
        {"id": "nothing"},
        {"id": "half", "text": "a \ud800 of a pair"},
        [1, 2],
        {"id": "last", "text": "last"},
    )
    assert imported(path) == 3
    assert list(service.documents) == ["good", "last"]
    captured = capsys.readouterr()
    lines = sorted(int(number) for number in re.findall(r"^refused: line (\d+)", captured.err, re.MULTILINE))
    assert lines == list(range(2, 17))
    assert "line 2, id 'blank': nothing in it" in captured.err
    assert "2 documents stored" in captured.out
    assert "15 refused" in captured.out


def test_a_batch_refused_as_a_whole_is_sent_again_without_its_culprits(
    tmp_path: Path, service: Any, imported: Import
) -> None:
    service.refuse_whole_batch = True
    documents = [*texts(5), {"id": "blank", "text": ""}, *({"id": f"e{i}", "text": "x"} for i in range(3))]
    assert imported(write_lines(tmp_path / "c.jsonl", *documents)) == 3
    assert service.upserts == [["d0", "d1", "d2", "d3", "d4", "e0", "e1", "e2"]]


def test_a_file_of_refused_documents_only(tmp_path: Path, service: Any, imported: Import) -> None:
    assert imported(write_lines(tmp_path / "c.jsonl", {"id": "a", "text": ""}, {"id": "b", "text": " "})) == 3
    assert service.upserts == []


@pytest.mark.parametrize("suffix", [".jsonl", ".npz", ".safetensors"])
def test_an_interrupted_import_goes_on_where_it_stopped(
    suffix: str, tmp_path: Path, service: Any, imported: Import, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"c{suffix}"
    if suffix == ".jsonl":
        write_lines(path, *texts(10))
    else:
        arrays = {"tokens": np.arange(160, dtype=np.float32).reshape(20, 8), "lengths": np.full(10, 2)}
        np.savez(path, **arrays) if suffix == ".npz" else save_file(arrays, path)
    service.full_after = 3
    assert imported(path, "--batch-documents", "2") == 1
    assert "the disk is full (HTTP 507)" in capsys.readouterr().err
    service.full_after = None
    assert imported(path, "--batch-documents", "2") == 0
    assert [len(ids) for ids in service.upserts] == [2] * 5  # none twice
    assert len(service.documents) == 10
    captured = capsys.readouterr()
    assert "going on after 6" in captured.err
    assert "4 documents stored after 6 before the interruption" in captured.out
    if suffix != ".jsonl":
        np.testing.assert_array_equal(service.documents["7"]["vectors"].ravel(), np.arange(112, 128))
    # Through: the next import begins anew.
    assert imported(path) == 0
    assert len(service.upserts[-1]) == 10


def test_refusals_before_an_interruption_are_not_forgotten(
    tmp_path: Path, service: Any, imported: Import
) -> None:
    path = write_lines(tmp_path / "c.jsonl", {"id": "blank", "text": ""}, *texts(3))
    service.full_after = 1
    assert imported(path, "--batch-documents", "2") == 1
    service.full_after = None
    assert imported(path, "--batch-documents", "2") == 3


def interrupted(path: Path, service: Any, imported: Import) -> None:
    service.full_after = 1
    assert imported(path, "--batch-documents", "2") == 1
    service.full_after = None
    service.upserts.clear()


def test_restart_ignores_the_journal(tmp_path: Path, service: Any, imported: Import) -> None:
    path = write_lines(tmp_path / "c.jsonl", *texts(4))
    interrupted(path, service, imported)
    assert imported(path, "--restart") == 0
    assert service.upserts == [["d0", "d1", "d2", "d3"]]


def test_a_changed_file_starts_over(tmp_path: Path, service: Any, imported: Import) -> None:
    path = write_lines(tmp_path / "c.jsonl", *texts(4))
    interrupted(path, service, imported)
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    assert imported(path) == 0
    assert service.upserts == [["d0", "d1", "d2", "d3"]]


def test_a_collection_that_lost_documents_starts_over(
    tmp_path: Path, service: Any, imported: Import, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines(tmp_path / "c.jsonl", *texts(4))
    interrupted(path, service, imported)
    service.documents.clear()
    assert imported(path) == 0
    assert service.upserts == [["d0", "d1", "d2", "d3"]]
    assert "c had 2 documents when the import stopped and has 0 now" in capsys.readouterr().err


def test_a_torn_journal_starts_over(
    tmp_path: Path, service: Any, imported: Import, own_state_directory: Path
) -> None:
    path = write_lines(tmp_path / "c.jsonl", *texts(4))
    interrupted(path, service, imported)
    (journal,) = own_state_directory.rglob("*.json")
    journal.write_text(journal.read_text()[:9])
    assert imported(path) == 0
    assert service.upserts == [["d0", "d1", "d2", "d3"]]


def test_busy_answers_are_tried_again(tmp_path: Path, service: Any, imported: Import) -> None:
    service.faults = [(429, "0"), (503, "0"), (429, "0")]
    assert imported(write_lines(tmp_path / "c.jsonl", *texts(2))) == 0
    assert service.upserts == [["d0", "d1"]]


def test_a_broken_connection_is_tried_again(tmp_path: Path, service: Any, imported: Import) -> None:
    service.drop_connections = 1
    assert imported(write_lines(tmp_path / "c.jsonl", *texts(2))) == 0
    assert service.upserts == [["d0", "d1"]]


def test_create_takes_the_width_of_the_vectors(tmp_path: Path, service: Any) -> None:
    path = write_lines(tmp_path / "v.jsonl", {"id": "a", "vectors": [[1.0] * 24]})
    command = ["import", str(path), "-c", "new/one", "--url", service.url, "--create"]
    assert main([*command, "--dtype", "float32", "--no-normalize"]) == 0
    assert service.collections["new/one"] == {"dim": 24, "dtype": "float32", "normalize": False}


def test_create_leaves_the_width_of_texts_to_the_encoder(
    tmp_path: Path, service: Any, imported: Import
) -> None:
    service.collections.clear()
    assert imported(write_lines(tmp_path / "c.jsonl", *texts(1)), "--create") == 0
    assert service.collections == {"c": {}}


def test_a_missing_collection_names_the_remedy(
    tmp_path: Path, service: Any, imported: Import, capsys: pytest.CaptureFixture[str]
) -> None:
    service.collections.clear()
    assert imported(write_lines(tmp_path / "c.jsonl", *texts(1))) == 1
    assert "--create creates it" in capsys.readouterr().err


def test_the_api_key_is_sent(
    tmp_path: Path, service: Any, imported: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "c.jsonl", *texts(1))
    monkeypatch.setenv("MAXSIM_API_KEY", "from-environment")
    assert imported(path) == 0
    assert imported(path, "--api-key", "from-flag") == 0
    assert service.authorizations == ["Bearer from-environment", "Bearer from-flag"]


def test_nothing_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines(tmp_path / "c.jsonl", *texts(1))
    assert main(["import", str(path), "-c", "c", "--url", "http://127.0.0.1:9"]) == 1
    assert "no service answers at http://127.0.0.1:9" in capsys.readouterr().err


def broken_files(folder: Path) -> dict[str, tuple[Path, str]]:
    tokens, lengths = np.zeros((4, 8), np.float32), np.array([2, 2])

    def npz(name: str, **arrays: Any) -> Path:
        np.savez(folder / f"{name}.npz", **arrays)
        return folder / f"{name}.npz"

    (folder / "cut.safetensors").write_bytes(b"\xff" * 12)
    (folder / "cut.npz").write_bytes(b"PK\x03\x04" + bytes(40))
    (folder / "a.csv").write_text("a")
    save_file({"tokens": tokens.astype(np.float64), "lengths": lengths}, folder / "f64.safetensors")
    return {
        "absent": (folder / "absent.jsonl", "No such file"),
        "ending": (folder / "a.csv", "must end in .jsonl, .npz, .safetensors"),
        "cut": (folder / "cut.safetensors", "header does not fit"),
        "cut-npz": (folder / "cut.npz", "zip"),
        "f64-safetensors": (folder / "f64.safetensors", "tokens is F64"),
        "no-lengths": (npz("n", tokens=tokens), "no array lengths"),
        "sum": (npz("s", tokens=tokens, lengths=np.array([2, 1])), "add up to 3, but tokens has 4"),
        "negative": (npz("g", tokens=tokens, lengths=np.array([5, -1])), "none negative"),
        "float64": (
            npz("d", tokens=tokens.astype(np.float64), lengths=lengths),
            "float64; it must be float16",
        ),
        "flat": (npz("f", tokens=tokens.ravel(), lengths=lengths), "must be [rows, dim]"),
        "columns": (npz("c", tokens=np.asfortranarray(tokens), lengths=lengths), "column by column"),
        "ids": (npz("i", tokens=tokens, lengths=lengths, ids=["a"]), "ids must be a list of 2 items"),
        "pickled": (npz("p", tokens=tokens, lengths=lengths, ids=np.array([{}, {}], object)), "allow_pickle"),
    }


CASES = """
    absent ending cut cut-npz f64-safetensors no-lengths sum negative float64 flat columns ids pickled
"""


@pytest.mark.parametrize("case", CASES.split())
def test_a_file_that_cannot_be_read_says_why(
    case: str, tmp_path: Path, service: Any, imported: Import, capsys: pytest.CaptureFixture[str]
) -> None:
    path, reason = broken_files(tmp_path)[case]
    assert imported(path) == 1
    assert reason in capsys.readouterr().err
    assert service.upserts == []


def test_a_number_beyond_float32_is_sent_as_it_is(tmp_path: Path, service: Any, imported: Import) -> None:
    assert imported(write_lines(tmp_path / "v.jsonl", {"id": "a", "vectors": [[1e39] * 8]})) == 0
    assert np.isinf(service.documents["a"]["vectors"]).all()


def test_a_request_refused_as_such_names_its_lines(
    tmp_path: Path, service: Any, imported: Import, capsys: pytest.CaptureFixture[str]
) -> None:
    service.faults = [(413, None)]
    assert imported(write_lines(tmp_path / "c.jsonl", *texts(3))) == 1
    assert "line 1 to line 3: try again (HTTP 413)" in capsys.readouterr().err

"""What a batch uploads, and what becomes of its scores; only pinned memory and events are faked."""

import numpy as np
import pytest
import torch

import maxsim
from maxsim_serve.engine import staging
from maxsim_serve.engine.batch import Lane
from maxsim_serve.engine.candidates import Resolved
from maxsim_serve.engine.forms import query_dtype
from maxsim_serve.engine.scorer import Request
from maxsim_serve.store import Part

CPU = torch.device("cpu")
DIM = 32


class Event:
    def __init__(self, enable_timing):
        self.recorded = False

    def record(self, stream):
        self.recorded = True

    def synchronize(self):
        assert self.recorded

    def elapsed_time(self, later):
        assert self.recorded and later.recorded
        return 2.0


@pytest.fixture(params=["compiled", "NumPy"])
def lane(request, monkeypatch):
    if request.param == "compiled" and not staging.compiled:
        pytest.skip("the copying of arrays is not built")
    monkeypatch.setattr(staging, "compiled", request.param == "compiled")
    monkeypatch.setattr(staging, "helpers", lambda: 3)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory=False, **options: empty(*shape, **options))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return Lane(CPU, None, lambda query, stored: query_dtype(query, stored, keep_float32=False))


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def store(rng, dtype, documents=40):
    """Token rows, and the first row and length of each document."""
    lengths = rng.integers(1, 50, documents)
    rows = torch.from_numpy(rng.standard_normal((int(lengths.sum()), DIM), np.float32)).to(dtype)
    return rows, lengths.cumsum() - lengths, lengths


def resolved(stored, *chosen, count=None):
    """Each of the chosen is a part: of its documents, the positions in the request."""
    rows, starts, lengths = stored
    parts = [Part(rows, starts[places], lengths[places], positions) for places, positions in chosen]
    found = sum(len(part.positions) for part in parts)
    count = found if count is None else count
    return Resolved(parts, count, np.arange(count - found), int(sum(part.lengths.sum() for part in parts)))


def alone(query, found):
    """The scores by the library, one part after the other."""
    scores = np.full(found.count, -np.inf, np.float32)
    for part in found.parts:
        documents = maxsim.Spans(part.tokens, torch.from_numpy(part.starts), torch.from_numpy(part.lengths))
        rounded = torch.from_numpy(query).to(part.tokens.dtype)
        scores[part.positions] = maxsim.score(rounded, documents)[0].numpy()
    return scores


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_mixed_batch_scores_as_each_request_does(lane, rng, dtype):
    stored, other = store(rng, dtype), store(rng, torch.float16)

    def request(rows, numpy_dtype, found):
        return Request(rng.standard_normal((rows, DIM)).astype(numpy_dtype), found, found.count)

    def some(count):
        return rng.integers(0, 40, count), np.arange(count)

    requests = [
        request(7, np.float16, resolved(stored, some(33))),
        request(32, np.float32, resolved(stored, some(1))),
        request(40, np.float32, resolved(stored, some(17))),
        request(70, np.float32, resolved(stored, some(5))),
        request(71, np.float32, resolved(other, some(6))),
        request(3, np.float32, resolved(stored, (rng.integers(0, 40, 4), np.array([1, 2, 5, 6])), count=8)),
        request(5, np.float32, resolved(stored)),
        Request(rng.standard_normal((9, DIM)).astype(np.float32), resolved(other, some(11)), 3),
    ]
    for batch in (requests, requests[:1], requests[::-1]):  # the lane's buffers are used again
        scored = lane.launch(batch).wait()
        for (query, found, _), scores in zip(batch, scored.results, strict=True):
            np.testing.assert_array_equal(scores, alone(query, found))
        assert set(scored.stages_s) == {"upload", "kernel", "download", "launch"}
        assert scored.stages_s["kernel"] == 2e-3
    assert len(lane.launch(requests).wait().launches) == 5


def test_the_best_of_many_are_picked_before_the_download(lane, rng):
    stored = store(rng, torch.float16)
    many = rng.integers(0, 40, 20_000), np.arange(20_000)
    query = rng.standard_normal((4, DIM)).astype(np.float16)
    found = resolved(stored, many)
    scored = lane.launch([Request(query, found, 50)]).wait()
    wanted = maxsim.top_k(torch.from_numpy(alone(query, found)), 50)
    (best,) = scored.results
    assert best.positions.tolist() == wanted.indices.tolist()
    assert best.scores.tolist() == wanted.values.tolist()
    assert scored.stages_s["select"] == 2e-3 and scored.moved_bytes["down"] == 50 * 12


def test_nothing_found_is_nothing_launched(lane, rng):
    query = rng.standard_normal((4, DIM)).astype(np.float16)
    scored = lane.launch([Request(query, resolved(store(rng, torch.float16), count=3), 0)]).wait()
    assert scored.results[0].tolist() == [-np.inf] * 3 and scored.launches == []


def test_a_large_upload_is_what_was_laid_out(lane, rng):
    """More than a thread copies by itself; rows of some queries are not contiguous."""
    stored = store(rng, torch.float16)
    requests = []
    for number in range(40):
        query = rng.standard_normal((9, 2 * DIM)).astype(np.float16)[:, :DIM]
        found = resolved(stored, (rng.integers(0, 40, 600 + number), np.arange(600 + number)))
        requests.append(Request(query if number % 2 else query.copy(), found, 5))
    scored = lane.launch(requests).wait()
    assert scored.moved_bytes["up"] > 1 << 19
    for (query, found, _), scores in zip(requests, scored.results, strict=True):
        np.testing.assert_array_equal(scores, alone(query, found))


@pytest.mark.skipif(not staging.compiled, reason="the copying of arrays is not built")
@pytest.mark.parametrize("first", [-8, 1, 100], ids="first{}".format)
def test_nothing_is_copied_past_the_end(first):
    buffer = np.zeros(16, np.uint8)
    with pytest.raises(ValueError, match="no room"):
        staging._fill.fill(buffer, [0, first], [np.ones(16, np.uint8), np.ones(16, np.uint8)], 0)
    assert not buffer.any()


@pytest.mark.parametrize("first", [0, 1, 16], ids="from-byte-{}".format)
@pytest.mark.parametrize("size", [0, 1, 63, 64, 200, 4096 + 17])
def test_what_is_written_past_the_caches_is_whole_and_no_more(rng, size, first):
    memory = np.full(size + 48, 7, np.uint8)
    source = rng.integers(0, 256, size, dtype=np.uint8)
    staging.write_through(memory[first : first + size], source)
    assert memory[first : first + size].tolist() == source.tolist()
    assert set(memory[:first]) | set(memory[first + size :]) == {7}


@pytest.mark.skipif(not staging.compiled, reason="the copying of arrays is not built")
def test_what_is_written_past_the_caches_has_as_many_bytes_as_there_is_room_for():
    memory = np.zeros(16, np.uint8)
    with pytest.raises(ValueError, match="17 bytes for a buffer of 16"):
        staging.write_through(memory, np.ones(17, np.uint8))
    assert not memory.any()

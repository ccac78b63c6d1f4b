"""`stream`: what `score` and `top_k` find, however the documents lie and are cut into blocks.

Without a GPU the buffers and their order of events run on a driver that is faked: copies happen as late as
streams and events let them.
"""

import numpy as np
import pytest
import torch

import maxsim
from maxsim import Ragged, Spans, block_buffers, blocks
from maxsim.topk import Running

ROW_BYTES = {torch.float16: 32, torch.bfloat16: 32, torch.float32: 64}
LENGTHS = (1, 17, 63, 2, 111, 1, 1, 5, 30, 64, 65, 7, 9, 128, 3, 1)


class Driver:
    """Two streams of a GPU in the host's memory. Computing happens at once; a copy only when something that
    was enqueued before waits for it. What is waited for without having been recorded is done."""

    def __init__(self, monkeypatch):
        driver = self

        class Stream:
            def __init__(self, device=None):
                self.copies, self.done = [], 0

            def run(self, until):
                for target, source in self.copies[self.done : until]:
                    target.copy_(source)
                self.done = max(self.done, until)

            def wait_event(self, event):
                driver.log.append(("wait", self, event))
                event.finish()

            def wait_stream(self, other):
                driver.log.append(("wait all", self, other))
                other.run(len(other.copies))

        class Event:
            def __init__(self, enable_timing=False, blocking=False):
                self.stream = None

            def record(self, stream):
                driver.log.append(("record", stream, self))
                self.stream, self.after = stream, len(stream.copies)

            def synchronize(self):
                driver.log.append(("wait", "host", self))
                self.finish()

            def finish(self):
                if self.stream is not None:
                    self.stream.run(self.after)

        class Context:
            def __init__(self, stream):
                self.stream = stream

            def __enter__(self):
                self.before, driver.current = driver.current, self.stream

            def __exit__(self, *error):
                driver.current = self.before

        def enqueue_copy(target, source):
            driver.log.append(("copy", target, source))
            driver.current.copies.append((target, source))

        empty = torch.empty
        self.log = []
        self.compute = self.current = Stream()
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "stream", Context)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: driver.current)
        monkeypatch.setattr(block_buffers, "enqueue_copy", enqueue_copy)
        monkeypatch.setattr(
            torch, "empty", lambda *shape, pin_memory=False, **options: empty(*shape, **options)
        )


@pytest.fixture
def driver(monkeypatch):
    return Driver(monkeypatch)


@pytest.fixture(params=["in place", "buffers"])
def streamed(request):
    """stream(...) on the CPU, where the documents are or through buffers of the faked driver."""
    if request.param == "in place":
        return maxsim.stream
    request.getfixturevalue("driver")

    def buffered(query, documents, k, *, block_bytes=1 << 20, **options):
        buffers = maxsim.StreamBuffers(torch.device("cpu"), block_bytes)
        return maxsim.stream(query, documents, k, buffers=buffers, **options)

    return buffered


def scattered(seeded, lengths, dim=16, dtype=torch.float32, gap_rows=3):
    """Spans in random order, poison between them, one value in a row so that scores tie often."""
    order = torch.randperm(len(lengths), generator=seeded)
    lengths = torch.tensor(lengths)[order]
    gaps = torch.randint(0, gap_rows + 1, lengths.shape, generator=seeded)
    starts = lengths.cumsum(0) - lengths + gaps.cumsum(0)
    tokens = torch.full((int(starts[-1] + lengths[-1]) + 5, dim), torch.nan, dtype=dtype)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        values = torch.randint(-3, 4, (length, 1), generator=seeded).to(dtype)
        tokens[start : start + length] = values.expand(length, dim)
    back = order.argsort()
    return Spans(tokens, starts[back], lengths[back])


def assert_same(found, wanted):
    assert torch.equal(found.indices, wanted.indices)
    assert torch.equal(found.values, wanted.values)  # bits: nothing is NaN


def best(query, documents, k):
    return maxsim.top_k(maxsim.score(query, documents)[0], k)


@pytest.mark.parametrize("dtype", list(ROW_BYTES), ids=["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("block_rows", [1, 8, 64, 128, 10_000], ids="{}rows".format)
@pytest.mark.parametrize("k", [1, 7, 48, 5000], ids="k{}".format)
def test_of_scattered_documents(streamed, seeded, dtype, block_rows, k):
    documents = scattered(seeded, LENGTHS * 3, dtype=dtype)
    query = torch.randint(-1, 2, (5, 16), generator=seeded).to(dtype)
    found = streamed(query, documents, k, block_bytes=block_rows * ROW_BYTES[dtype])
    assert found.values.dtype == torch.float32 and found.indices.dtype == torch.int64
    assert_same(found, best(query, documents, k))


def test_of_a_ragged_by_the_definition(streamed, unit):
    items, query = [unit(n, 48) for n in LENGTHS], unit(9, 48)
    found = streamed(query, Ragged.from_list(items), 5, block_bytes=20 * 192)
    wanted = torch.stack([(query.double() @ item.double().T).amax(1).sum() for item in items])
    assert found.indices.tolist() == wanted.argsort(descending=True)[:5].tolist()
    torch.testing.assert_close(found.values.double(), wanted[found.indices], rtol=0, atol=9e-6)


def test_of_equals_in_different_blocks_the_first_wins(streamed):
    documents = Ragged(torch.ones(300, 16), torch.arange(301))
    found = streamed(torch.ones(2, 16), documents, 250, block_bytes=7 * 64)
    assert found.indices.tolist() == list(range(250))
    backwards = Spans(documents.tokens, documents.starts.flip(0), documents.lengths)
    assert streamed(torch.ones(2, 16), backwards, 250, block_bytes=7 * 64).indices.tolist() == [*range(250)]


def test_of_several_queries(streamed, seeded, unit):
    documents = scattered(seeded, LENGTHS)
    for queries in (unit(3, 5, 16), Ragged.from_list([unit(n, 16) for n in (1, 4, 2)])):
        found = streamed(queries, documents, 6, block_bytes=1000)
        wanted = maxsim.top_k(maxsim.score(queries, documents), 6)
        assert found.values.shape == (3, 6)
        assert_same(found, wanted)


def test_of_no_documents_and_of_empty_ones(streamed):
    none = streamed(torch.ones(2, 16), Ragged(torch.ones(0, 16), torch.tensor([0])), 3)
    assert (none.values.tolist(), none.indices.tolist()) == ([], [])
    one_full = Spans(torch.ones(9, 16), torch.tensor([9, 2, 0]), torch.tensor([0, 1, 0]))
    found = streamed(torch.ones(2, 16), one_full, 3, block_bytes=64)
    assert found.values.tolist() == [32.0, -torch.inf, -torch.inf]
    assert found.indices.tolist() == [1, 0, 2]
    assert streamed(torch.ones(2, 16), one_full, 0).indices.tolist() == []


def test_of_documents_that_overlap(streamed, unit):
    starts = torch.tensor([50, 0, 10, 49, 10, 5])
    documents = Spans(unit(100, 16), starts, torch.tensor([50, 60, 3, 1, 90, 2]))
    query = unit(3, 16)
    for block_rows in (1, 20, 64, 100):
        assert_same(streamed(query, documents, 6, block_bytes=block_rows * 64), best(query, documents, 6))


def test_more_documents_than_one_look_at_them_takes(streamed, seeded, monkeypatch):
    monkeypatch.setattr(blocks, "MOST_DOCUMENTS", 10)
    documents = scattered(seeded, LENGTHS * 4)
    query = torch.randint(-1, 2, (2, 16), generator=seeded).float()
    assert_same(streamed(query, documents, 20, block_bytes=70 * 64), best(query, documents, 20))


# How the store is cut.


def rows_of(copies, row_bytes):
    """Which row of the store each row of the block comes from."""
    rows = {}
    for copy in copies:
        for byte in range(copy.size):
            source, target = copy.source + byte, copy.target + byte
            assert source % row_bytes == target % row_bytes
            assert rows.setdefault(target // row_bytes, source // row_bytes) == source // row_bytes
    return rows


@pytest.mark.parametrize("slab_bytes", [0, 16, 100, 4096], ids="slab{}".format)
@pytest.mark.parametrize("gap_bytes", [0, 48, 1 << 30], ids="gap{}".format)
@pytest.mark.parametrize("block_bytes", [1, 480, 1 << 20], ids="block{}".format)
def test_every_row_of_every_document_comes_to_its_place(
    seeded, monkeypatch, block_bytes, gap_bytes, slab_bytes
):
    monkeypatch.setattr(blocks, "GAP_BYTES", gap_bytes)
    documents = scattered(seeded, LENGTHS[:9], gap_rows=6)
    starts, lengths = documents.starts.numpy(), documents.lengths.numpy()
    seen = []
    for block in blocks.cut(starts, lengths, 24, block_bytes, slab_bytes):
        rows = rows_of(block.copies, 24)
        assert max(rows) < max(block_bytes // 24, block.longest)
        for position, first, start, length in zip(*map(np.ndarray.tolist, block[:4]), strict=True):
            assert (first, length) == (starts[position], lengths[position])
            assert [rows[start + i] for i in range(length)] == [first + i for i in range(length)]
        for copy in block.copies:
            assert not slab_bytes or copy.source // slab_bytes == (copy.source + copy.size - 1) // slab_bytes
        seen += block.positions.tolist()
    assert sorted(seen) == list(range(len(documents)))


def test_a_short_gap_is_copied_along_and_a_long_one_is_not():
    long = blocks.GAP_BYTES // 256
    starts = np.array([0, 20, 40 + long, 41 + 2 * long + 10])
    (block,) = blocks.cut(starts, np.array([10, 20, 1, 5]), 256)
    assert block.copies == [
        (0, 0, (41 + long) * 256),
        ((51 + 2 * long) * 256, (41 + long) * 256, 5 * 256),
    ]
    assert block.starts.tolist() == [0, 20, 40 + long, 41 + long]


def test_documents_are_taken_by_row_however_far_apart():
    for far in (1000, 1 << 61):
        cut = blocks.cut(np.array([far, 5, far // 2]), np.array([1, 2, 3]), 1, block_bytes=1)
        assert [block.positions.tolist() for block in cut] == [[1], [2], [0]]


def test_a_store_without_gaps_is_one_copy_a_block_and_the_blocks_are_full():
    lengths = np.full(1000, 10)
    cut = list(blocks.cut(np.arange(1000) * 10, lengths, 256, block_bytes=256 * 105))
    assert [len(block.copies) for block in cut] == [1] * 100
    assert {block.copies[0].size for block in cut} == {100 * 256}
    slabs = list(blocks.cut(np.arange(1000) * 10, lengths, 256, 256 * 105, slab_bytes=256 * 1000))
    assert sum(len(block.copies) for block in slabs) == 100  # slabs end where documents do
    slabs = list(blocks.cut(np.arange(1000) * 10, lengths, 256, 256 * 105, slab_bytes=256 * 1005))
    assert sum(len(block.copies) for block in slabs) == 109


# The buffers, on the faked driver.


def test_nothing_is_overwritten_before_it_was_read(driver, seeded, monkeypatch):
    documents = scattered(seeded, LENGTHS * 2)
    buffers = maxsim.StreamBuffers(torch.device("cpu"), 64 * 64)
    add = Running.add

    def logged(self, scores, positions):
        driver.log.append(("score", positions, scores))
        add(self, scores, positions)

    monkeypatch.setattr(Running, "add", logged)
    maxsim.stream(torch.ones(2, 16), documents, 3, buffers=buffers)
    assert buffers.copied_blocks > block_buffers.AHEAD + 2
    assert driver.log[0] == ("wait all", buffers._stream, driver.compute)
    assert driver.log[-1] == ("wait all", driver.compute, buffers._stream)
    # The steps in their order, each with the memory that it is about.
    frees = {buffer.free: place(buffer.listing) for buffer in buffers._buffers}
    steps, buffer_of_bytes = [], {place(b.bytes): place(b.listing) for b in buffers._buffers}
    listing_of = {event: place(row) for event, row in zip(buffers._copied, buffers._listings, strict=True)}
    for kind, first, second in driver.log:
        if kind == "copy":
            steps.append(("copy to", buffer_of_bytes.get(place(first), place(first))))
            if place(first) not in buffer_of_bytes:
                steps.append(("copy from", second.data_ptr()))
        elif kind == "score":
            steps.append(("score", place(first)))
        elif kind == "record" and second in frees:
            assert first is driver.compute
            steps.append(("freed", frees[second]))
        elif kind == "wait" and second in frees:
            assert first is buffers._stream
            steps.append(("wait until free", frees[second]))
        elif kind == "record":
            assert first is buffers._stream
            steps.append(("copied", listing_of[second]))
        elif kind == "wait" and first == "host":
            steps.append(("wait until copied", listing_of[second]))
    for memory in frees.values():
        cycle = ["wait until free", "copy to", "score", "freed"]
        assert_cycles([step for step, where in steps if where == memory], cycle)
    for memory in listing_of.values():
        cycle = ["wait until copied", "copy from", "copied"]
        assert_cycles([step for step, where in steps if where == memory], cycle)


def place(tensor):
    """Where the memory of a listing, or of a buffer, begins."""
    row = tensor.storage_offset() // (3 * blocks.MOST_DOCUMENTS) * 3 * blocks.MOST_DOCUMENTS
    return tensor.untyped_storage().data_ptr() + (row * 8 if tensor.dtype == torch.int64 else 0)


def assert_cycles(steps, cycle):
    """Round and round, more than once; a step may be made of several."""
    merged = [step for step, before in zip(steps, [None, *steps], strict=False) if step != before]
    assert len(merged) > len(cycle)
    assert merged == (cycle * len(merged))[: len(merged)]


def test_buffers_are_allocated_once_and_grow_for_a_larger_document_alone(driver, unit):
    buffers = maxsim.StreamBuffers(torch.device("cpu"), 40 * 64)
    small, query = Ragged.from_list([unit(n, 16) for n in (30, 40, 7)]), unit(2, 16)
    maxsim.stream(query, small, 1, buffers=buffers)
    where, size = [b.bytes.data_ptr() for b in buffers._buffers], buffers.device_bytes
    assert buffers.copied_bytes == 77 * 64
    assert_same(maxsim.stream(query, small, 2, buffers=buffers), best(query, small, 2))
    assert [b.bytes.data_ptr() for b in buffers._buffers] == where
    large = Ragged.from_list([unit(n, 24).half() for n in (3, 100, 60)])
    query = unit(2, 24).half()
    assert_same(maxsim.stream(query, large, 2, buffers=buffers), best(query, large, 2))
    assert buffers.device_bytes == size + 2 * (100 * 48 - 40 * 64)


def test_after_an_error_the_buffers_are_of_use(driver, unit, monkeypatch):
    documents, query = Ragged.from_list([unit(n, 16) for n in LENGTHS]), unit(2, 16)
    buffers = maxsim.StreamBuffers(torch.device("cpu"), 40 * 64)
    real, scored = Running.add, []

    def failing(self, scores, positions):
        scored.append(len(positions))
        if len(scored) == 3:
            raise MemoryError("no room")
        real(self, scores, positions)

    monkeypatch.setattr(Running, "add", failing)
    with pytest.raises(MemoryError):
        maxsim.stream(query, documents, 4, buffers=buffers)
    assert driver.log[-1] == ("wait all", driver.compute, buffers._stream)
    assert_same(maxsim.stream(query, documents, 4, buffers=buffers), best(query, documents, 4))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda d: maxsim.stream(torch.ones(2, 24), d, 1), maxsim.ShapeError, "widths 24 and 16"),
        (lambda d: maxsim.stream(torch.ones(2, 16), d, -1), maxsim.ShapeError, "k: 0 or more wanted, got -1"),
        (
            lambda d: maxsim.stream(torch.ones(2, 16), d, 1, block_bytes=0),
            maxsim.ShapeError,
            "block_bytes: 1 or more wanted, got 0",
        ),
        (lambda d: maxsim.stream(torch.ones(2, 16), d, 1, slab_bytes=-1), maxsim.ShapeError, "slab_bytes: 0"),
        (lambda d: maxsim.stream(torch.ones(2, 16).double(), d, 1), maxsim.DTypeError, "query: .*float64"),
        (
            lambda d: maxsim.stream(torch.ones(2, 16), Ragged(d.tokens.double(), d.offsets), 1),
            maxsim.DTypeError,
            "host_documents: .*float64",
        ),
        (
            lambda d: maxsim.stream(
                torch.ones(2, 16), Ragged(torch.ones(8, 16)[::2], torch.tensor([0, 4])), 1
            ),
            maxsim.ShapeError,
            r"strides \(32, 1\)",
        ),
        (
            lambda d: maxsim.stream(
                torch.ones(2, 16),
                Spans.trusted(d.tokens.to("meta"), d.starts, d.lengths, 1),
                1,
            ),
            maxsim.DeviceError,
            "host memory wanted, got meta",
        ),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)  # fmt: skip
def test_refusals_name_the_argument_and_the_value(make, error, message):
    with pytest.raises(error, match=message):
        make(Ragged(torch.ones(5, 16), torch.tensor([0, 2, 5])))


# On a GPU.


def pinned(unit, lengths, dim, dtype, gap_rows):
    """Spans in pinned memory, in random order, poison between them."""
    lengths = torch.as_tensor(lengths, device="cpu")
    starts = lengths.cumsum(0) - lengths + gap_rows * torch.arange(len(lengths), device="cpu")
    total = int(starts[-1] + lengths[-1]) + 1
    tokens = torch.empty(total, dim, dtype=dtype, device="cpu", pin_memory=True)
    tokens.copy_(unit(total, dim, dtype=dtype))
    dead = torch.ones(total, dtype=torch.bool, device="cpu")
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        dead[start : start + length] = False
    tokens.masked_fill_(dead[:, None], torch.nan)
    order = torch.randperm(len(lengths), device="cpu")
    return Spans(tokens, starts[order], lengths[order])


def on_device(documents):
    return Spans(documents.tokens.cuda(), documents.starts.cuda(), documents.lengths.cuda())


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", list(ROW_BYTES), ids=["fp16", "bf16", "fp32"])
@pytest.mark.parametrize(("dim", "query_rows"), [(128, 32), (128, 300), (96, 1), (320, 33)], ids=str)
@pytest.mark.parametrize("gap_rows", [0, 1, 9000], ids="gap{}".format)
def test_bits_of_score_and_top_k(gpu, unit, seeded, dtype, dim, query_rows, gap_rows):
    count = 60 if gap_rows > 1 else 3000
    documents = pinned(unit, torch.randint(1, 200, (count,), generator=seeded).cpu(), dim, dtype, gap_rows)
    query = unit(query_rows, dim, dtype=dtype)
    for block_bytes, slab_bytes in ((1 << 20, 0), (1 << 20, 3_000_000), (1 << 27, 0)):
        found = maxsim.stream(query, documents, count // 2, block_bytes=block_bytes, slab_bytes=slab_bytes)
        assert found.values.is_cuda
        assert_same(found, best(query, on_device(documents), count // 2))


@pytest.mark.gpu
def test_ties_and_several_queries_on_a_gpu(gpu, unit):
    tokens = torch.ones(50_000, 128, dtype=torch.float16, device="cpu").pin_memory()
    documents = Ragged(tokens, torch.arange(50_001, device="cpu"))
    found = maxsim.stream(unit(3, 7, 128).half(), documents, 3000, block_bytes=1 << 20)
    assert torch.equal(found.indices, torch.arange(3000).expand(3, 3000))


@pytest.mark.gpu
def test_again_with_the_same_buffers_while_the_device_is_busy(gpu, unit, seeded):
    documents = pinned(unit, torch.randint(1, 200, (2000,), generator=seeded).cpu(), 128, torch.float16, 2)
    buffers = maxsim.StreamBuffers(gpu, 1 << 20)
    queries = [unit(32, 128).half() for _ in range(20)]
    found = [maxsim.stream(query, documents, 50, buffers=buffers) for query in queries]
    for query, one in zip(queries, found, strict=True):
        assert_same(one, best(query, on_device(documents), 50))


@pytest.mark.gpu
def test_device_memory_does_not_grow_with_the_documents(gpu, unit):
    most = []
    for million_rows in (4, 16):
        tokens = torch.empty(million_rows << 20, 128, dtype=torch.float16, device="cpu", pin_memory=True)
        tokens.view(torch.int16).fill_(0x3000)  # small and finite
        offsets = torch.arange(0, len(tokens) + 1, 128, device="cpu")
        query = unit(32, 128).half()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        maxsim.stream(query, Ragged(tokens, offsets), 1000, block_bytes=128 << 20)
        torch.cuda.synchronize()
        most.append(torch.cuda.max_memory_allocated() - before)
        assert most[-1] < 300 << 20
        del tokens
    assert most[1] <= 1.01 * most[0]


@pytest.mark.gpu
def test_nothing_in_it_waits_for_the_device(gpu, unit, seeded):
    documents = pinned(unit, torch.randint(1, 200, (2000,), generator=seeded).cpu(), 128, torch.float16, 2)
    query, buffers = unit(32, 128).half(), maxsim.StreamBuffers(gpu, 1 << 20)
    wanted = maxsim.stream(query, documents, 50, buffers=buffers)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = maxsim.stream(query, documents, 50, buffers=buffers)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same(found, wanted)

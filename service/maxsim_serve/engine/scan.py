"""A search of a whole collection in host memory: its rows are copied to the GPU block by block, under the
scoring, so that the device needs the same few buffers whatever the collection's size.

A rerank's candidates are read in place instead: only they cross the bus, wherever they are.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import maxsim

from ..store import SLAB_BYTES
from .gpu import GpuScorer
from .scorer import Best, Launched, Request, Scored

__all__ = ["SCAN_BYTES", "ScanningScorer", "is_scan"]

_BLOCK_BYTES = 128 << 20
_LISTING_BYTES = 2 << 20

SCAN_BYTES = 2 * (_BLOCK_BYTES + _LISTING_BYTES)
"""What the buffers take of the device, once something has been scanned."""

# Fewer bytes, or a smaller part of a stretch of rows than one in so many, are sooner read in place.
_LEAST_BYTES = 8 << 20
_LEAST_SHARE = 4


def is_scan(request: Request) -> bool:
    """Whether a request asks for a few of a whole collection, which is in host memory, large, and a good part
    of what lies there between its first row and its last."""
    resolved = request.resolved
    if resolved.ids is None or len(resolved.parts) != 1:
        return False
    (part,) = resolved.parts
    if part.host_tokens is None or not 0 < request.wanted <= len(part.positions) // 2:
        return False
    if resolved.tokens * part.host_tokens.shape[1] * part.host_tokens.element_size() < _LEAST_BYTES:
        return False
    stretch = int((part.starts + part.lengths).max()) - int(part.starts.min())
    return stretch <= _LEAST_SHARE * resolved.tokens


class ScanningScorer:
    """A GPU's scorer that scans what is to be scanned, and has the rest scored as before.

    A scan takes a second and more. It runs while its batch is waited for: by then the batch before has been
    answered, and the next one launched; that one is answered after it. The first scan allocates the buffers.
    """

    def __init__(self, scorer: GpuScorer) -> None:
        self.depth = scorer.depth
        self.device = scorer.device
        self._scorer = scorer
        self._buffers: maxsim.StreamBuffers | None = None

    @property
    def staging_bytes(self) -> int:
        """Device memory that uploads and blocks go to."""
        scanning_bytes = 0 if self._buffers is None else self._buffers.device_bytes
        return self._scorer.staging_bytes + scanning_bytes

    def bind(self) -> None:
        self._scorer.bind()

    def placed(self, query: NDArray[np.generic], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        return self._scorer.placed(query, dtype)

    def launch(self, requests: Sequence[Request]) -> Launched:
        if not any(map(is_scan, requests)):
            return self._scorer.launch(requests)
        scans = {number: request for number, request in enumerate(requests) if is_scan(request)}
        others = [request for number, request in enumerate(requests) if number not in scans]
        return _Flight(self._scorer.launch(others), scans, self)

    def explain(self, query: NDArray[np.generic], rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._scorer.explain(query, rows)

    def release(self) -> None:
        self._scorer.release()

    def scan(self, request: Request) -> "_Scanned":
        """Score a request that `is_scan`, and wait for it. No other may be in its midst."""
        (part,) = request.resolved.parts
        assert part.host_tokens is not None
        if self._buffers is None:
            self._buffers = maxsim.StreamBuffers(self.device, _BLOCK_BYTES)
        buffers = self._buffers
        rounded = self._scorer.rounded(request.query, part.tokens.dtype)
        query = torch.from_numpy(request.query).to(self.device, rounded)
        longest = int(part.lengths.max())
        documents, in_place = (
            maxsim.Spans.trusted(
                tokens, torch.from_numpy(part.starts), torch.from_numpy(part.lengths), longest
            )
            for tokens in (part.host_tokens, part.tokens)
        )
        launch = maxsim.plan(query, in_place).kernel, part.tokens.dtype
        bytes_before, blocks_before = buffers.copied_bytes, buffers.copied_blocks
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        try:
            best = maxsim.stream(query, documents, request.wanted, slab_bytes=SLAB_BYTES, buffers=buffers)
        except BaseException:
            # Copies may still read rows that the request holds; an error of its own is not the first one.
            with suppress(RuntimeError):
                torch.cuda.current_stream(self.device).synchronize()
            raise
        end.record()
        values, indices = best.values.cpu().numpy(), best.indices.cpu().numpy()
        return _Scanned(
            Best(part.positions[indices], values),
            [launch] * (buffers.copied_blocks - blocks_before),
            1e-3 * begin.elapsed_time(end),
            query.nbytes + buffers.copied_bytes - bytes_before,
            values.nbytes + indices.nbytes,
        )


class _Scanned(NamedTuple):
    """The best of one request; of each launch its (kernel, dtype); seconds of the device; bytes moved."""

    best: Best
    launches: list[tuple[str, torch.dtype]]
    kernel_s: float
    up_bytes: int
    down_bytes: int


class _Flight:
    """A batch of which the device works on all but the scans."""

    def __init__(self, launched: Launched, scans: Mapping[int, Request], scorer: ScanningScorer) -> None:
        self._launched = launched
        self._scans = scans
        self._scorer = scorer

    def glance(self) -> None:
        """A scan has results of its own."""

    def wait(self) -> Scored:
        scored = self._launched.wait()
        scanned = {number: self._scorer.scan(request) for number, request in self._scans.items()}
        results = iter(scored.results)
        count = len(scored.results) + len(scanned)
        every = scanned.values()
        kernel_s = scored.stages_s["kernel"] + sum(one.kernel_s for one in every)
        return replace(
            scored,
            results=[scanned[n].best if n in scanned else next(results) for n in range(count)],
            launches=[*scored.launches, *(launch for one in every for launch in one.launches)],
            stages_s=scored.stages_s | {"kernel": kernel_s},
            moved_bytes={
                "up": scored.moved_bytes["up"] + sum(one.up_bytes for one in every),
                "down": scored.moved_bytes["down"] + sum(one.down_bytes for one in every),
            },
        )

"""Blocks of a host-resident store on their way through two buffers of a GPU.

    copy stream      | copy 0 | copy 1 | copy 2 | copy 3 | …
    compute stream            | 0 |    | 1 |    | 2 |    | 3 |

Block i + 2 goes where block i was. Its copy waits, on the device, until block i has been scored; scoring
waits for the copy. The host only waits for a copy whose list of documents it is about to overwrite, `AHEAD`
blocks back, and so runs ahead of the device by as many.
"""

from collections.abc import Generator, Iterable

import numpy as np
import torch
from torch import Tensor

from maxsim.blocks import BLOCK_BYTES, MOST_DOCUMENTS, Block
from maxsim.ragged import Spans

__all__ = ["AHEAD", "StreamBuffers"]

AHEAD = 6
# Kernels are compiled for addresses that are multiples of 16.
_ALIGNED = 32


class _Buffer:
    """A block on the device: its bytes, and its documents' starts, lengths and positions."""

    def __init__(self, device: torch.device) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8, device=device)
        self.listing = torch.empty(3 * MOST_DOCUMENTS, dtype=torch.int64, device=device)
        self.free = torch.cuda.Event()


class StreamBuffers:
    """Two block buffers on a GPU for `maxsim.stream`, allocated once and used by one call after the other.

    All calls must come from one stream: the one that is current when the first is made. A document larger
    than `block_bytes` enlarges the buffers for good.
    """

    def __init__(self, device: torch.device, block_bytes: int = BLOCK_BYTES) -> None:
        self.device = device
        self.block_bytes = block_bytes
        self.copied_bytes = 0
        """Bytes of documents, and of gaps between them, that were copied so far."""
        self.copied_blocks = 0
        self._stream = torch.cuda.Stream(device)
        self._buffers = [_Buffer(device) for _ in range(2)]
        shape = (AHEAD, 3 * MOST_DOCUMENTS)
        self._listings = torch.empty(shape, dtype=torch.int64, device="cpu", pin_memory=True)
        self._copied = [torch.cuda.Event(blocking=True) for _ in range(AHEAD)]
        self._next = 0

    @property
    def device_bytes(self) -> int:
        return sum(buffer.bytes.nbytes + buffer.listing.nbytes for buffer in self._buffers)

    def reserve(self, size_bytes: int) -> None:
        """Make room for blocks of this size, or `block_bytes` if that is more."""
        size_bytes = max(size_bytes, self.block_bytes)
        for buffer in self._buffers:
            if len(buffer.bytes) < size_bytes:
                # Whatever reads the old one was enqueued on the current stream, or is waited for by it.
                buffer.bytes = torch.empty(0, dtype=torch.uint8, device=self.device)
                buffer.bytes = torch.empty(size_bytes, dtype=torch.uint8, device=self.device)

    def load(self, tokens: Tensor, blocks: Iterable[Block]) -> Generator[tuple[Spans, Tensor], None, None]:
        """Enqueue the copies of blocks of tokens [T, d] in host memory, each before it is yielded.

        → (its documents, their positions int64 [n]) on the device, to be read by the current stream only,
        and only until the next is asked for. The buffers must be large enough. Close it after use.
        """
        source = tokens.view(-1).view(torch.uint8)
        row_bytes = tokens.shape[1] * tokens.element_size()
        compute = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(compute)
        try:
            for block in blocks:
                buffer = self._buffers[self._next % len(self._buffers)]
                listing, copied = self._listings[self._next % AHEAD], self._copied[self._next % AHEAD]
                self._next += 1
                copied.synchronize()
                listed = _write(block, listing)
                self._stream.wait_event(buffer.free)
                with torch.cuda.stream(self._stream):
                    for copy in block.copies:
                        enqueue_copy(
                            buffer.bytes[copy.target : copy.target + copy.size],
                            source[copy.source : copy.source + copy.size],
                        )
                        self.copied_bytes += copy.size
                    enqueue_copy(buffer.listing[: 3 * listed], listing[: 3 * listed])
                copied.record(self._stream)
                self.copied_blocks += 1
                compute.wait_event(copied)
                count = len(block.positions)
                starts, lengths, positions = buffer.listing[: 3 * listed].view(3, listed)[:, :count]
                # All of the buffer, so that it is the same tensor of the same shape in every launch.
                whole = len(buffer.bytes) // row_bytes
                rows = buffer.bytes[: whole * row_bytes].view(tokens.dtype).view(whole, -1)
                yield Spans.trusted(rows, starts, lengths, block.longest), positions
                buffer.free.record(compute)
        finally:
            # What is enqueued from now on may overwrite or free the buffers.
            compute.wait_stream(self._stream)


def enqueue_copy(target: Tensor, source: Tensor) -> None:
    """From pinned host memory to the device, on the current stream."""
    target.copy_(source, non_blocking=True)


def _write(block: Block, listing: Tensor) -> int:
    """Starts, lengths and positions, one behind the other → at which distance."""
    count = len(block.positions)
    listed = -(-count // _ALIGNED) * _ALIGNED
    out = listing.numpy()[: 3 * listed].reshape(3, listed)
    out[:, :count] = np.stack([block.starts, block.lengths, block.positions])
    return listed

"""The out-of-core scan: the best of documents in host memory, which go through the GPU block by block."""

from collections.abc import Generator, Iterable
from contextlib import closing

import torch
from torch import Tensor

from maxsim.block_buffers import StreamBuffers
from maxsim.blocks import BLOCK_BYTES, Block, cut
from maxsim.errors import DeviceError, DTypeError, ShapeError
from maxsim.operators import score
from maxsim.ragged import Ragged, Spans
from maxsim.rows import Operand, count, parts
from maxsim.topk import Running, TopK

__all__ = ["StreamBuffers", "stream"]


def stream(
    query: Operand,
    host_documents: Ragged | Spans,
    k: int,
    *,
    block_bytes: int = BLOCK_BYTES,
    slab_bytes: int = 0,
    buffers: StreamBuffers | None = None,
) -> TopK:
    """The k documents that score best, best first: `top_k(score(query, documents), k)` to the bit, ties too.

    query           [Lq, d] on the GPU → values float32 [k], indices int64 [k] there; or several queries,
                    [Nq, L, d], a Ragged or a Spans → [Nq, k]
    host_documents  in host memory, which should be pinned: tokens [T, d] contiguous. Of a Spans only what
                    lies between its documents closely is copied along with them; their order is free

    The documents are cut into blocks of `block_bytes` at most (a larger document is a block of its own),
    copied to two buffers of that size on the device while the block before is scored: device memory does
    not grow with the documents. No copy crosses a multiple of `slab_bytes`, counted from the first byte of
    the tokens: host memory that was registered in such pieces must not be copied across them (0: in one).
    `buffers` are kept from call to call, with their own `block_bytes`; without, each call allocates them.

    Returns when all is enqueued, a few blocks before the device is done: leave the tokens as they are until
    the result has been waited for. On a CPU documents are scored where they are.

    Raises ShapeError, DTypeError, DeviceError.
    """
    left = parts(query, "query")
    tokens = host_documents.tokens
    _check(left.tokens, tokens, k, block_bytes, slab_bytes)
    device = left.tokens.device
    best = Running(count(left), min(k, len(host_documents)), device)
    row_bytes = tokens.shape[1] * tokens.element_size()
    starts, lengths = host_documents.starts.numpy(), host_documents.lengths.numpy()
    if device.type == "cuda" and buffers is None:
        buffers = StreamBuffers(device, block_bytes)
    if buffers is not None:
        block_bytes = buffers.block_bytes
        buffers.reserve(row_bytes * int(lengths.max(initial=0)))
    blocks = cut(starts, lengths, row_bytes, block_bytes, slab_bytes)
    loaded = _in_place(tokens, blocks) if buffers is None else buffers.load(tokens, blocks)
    with torch.no_grad(), closing(loaded):
        for documents, positions in loaded:
            best.add(score(query, documents), positions)
    values, indices = best.best()
    one = isinstance(query, Tensor) and query.ndim == 2
    return TopK(values[0], indices[0]) if one else TopK(values, indices)


def _in_place(tokens: Tensor, blocks: Iterable[Block]) -> Generator[tuple[Spans, Tensor], None, None]:
    for block in blocks:
        rows, lengths = torch.from_numpy(block.rows), torch.from_numpy(block.lengths)
        yield Spans.trusted(tokens, rows, lengths, block.longest), torch.from_numpy(block.positions)


def _check(query: Tensor, tokens: Tensor, k: int, block_bytes: int, slab_bytes: int) -> None:
    if tokens.device.type != "cpu":
        raise DeviceError(
            f"host_documents: host memory wanted, got {tokens.device}; what is there already, score in place"
        )
    if not tokens.is_contiguous():
        raise ShapeError(
            f"host_documents: rows one behind the other wanted, got strides {tokens.stride()}; "
            "pass the store that they lie in, as Spans"
        )
    if query.shape[-1] != tokens.shape[1]:
        raise ShapeError(
            f"query and host_documents: widths {query.shape[-1]} and {tokens.shape[1]} differ; "
            "encode both with one model"
        )
    for name, dtype in (("query", query.dtype), ("host_documents", tokens.dtype)):
        if dtype == torch.float64:
            raise DTypeError(f"{name}: float16, bfloat16 or float32 wanted, got {dtype}; convert it first")
    for name, value, least in (("k", k, 0), ("block_bytes", block_bytes, 1), ("slab_bytes", slab_bytes, 0)):
        if value < least:
            raise ShapeError(f"{name}: {least} or more wanted, got {value}")

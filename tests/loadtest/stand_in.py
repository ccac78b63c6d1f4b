"""Answers reranks at once, but for one fault: `stand_in.py PORT none|stall|error|drift|leak`."""

import asyncio
import sys
import time

import msgspec

LEAK_BYTES = 1 << 20  # a request
STALL_S, STALLS_AT = 0.5, 100
DRIFT_S_PER_S = 0.02
ERROR_EVERY = 50

started_s = time.monotonic()
leaked: list[bytes] = []
asked = 0


async def answer(fault: str, path: str, body: bytes) -> tuple[int, bytes]:
    global asked
    if path == "/metrics":
        return 200, b"maxsim_ready 1\n"
    asked += 1
    elapsed_s = time.monotonic() - started_s
    if fault == "error" and asked % ERROR_EVERY == 0:
        return 500, b"broken"
    if fault == "leak":
        leaked.append(b"x" * LEAK_BYTES)
    if fault == "drift":
        await asyncio.sleep(DRIFT_S_PER_S * elapsed_s)
    if fault == "stall" and asked == STALLS_AT:
        time.sleep(STALL_S)  # the whole process, as a collection of garbage does
    results = msgspec.msgpack.decode(body)["top_n"]
    return 200, msgspec.msgpack.encode({"results": [0] * results})


async def serve(port: int, fault: str) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = head.partition("content-length: ")[2].partition("\r")[0] or "0"
                status, data = await answer(fault, head.split()[1], await reader.readexactly(int(length)))
                writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))

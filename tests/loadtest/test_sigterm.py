"""SIGTERM under load: whatever was accepted is answered, and whatever was acknowledged is stored."""

import asyncio
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import msgspec
import numpy as np
from servers import service

DIM = 128
RERANKERS, UPSERTERS = 32, 4
DRAIN_TIMEOUT_S, GRACE_S = 10.0, 13.0
REFUSED = {429, 503}


@dataclass
class Tally:
    """What became of every request that was written to a connection."""

    statuses: Counter[int] = field(default_factory=Counter)
    dropped: list[str] = field(default_factory=list)
    no_retry_after: list[str] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    """Document id → the highest version whose upsert was answered 200."""
    signalled_at: float = float("inf")


def vectors(rng: np.random.Generator, rows: int) -> dict[str, object]:
    data = rng.standard_normal((rows, DIM)).astype(np.float16)
    return {"data": data.tobytes(), "shape": [rows, DIM], "dtype": "float16"}


def message(method: str, path: str, body: object) -> bytes:
    data = msgspec.msgpack.encode(body)
    head = f"{method} {path} HTTP/1.1\r\nhost: t\r\ncontent-type: application/msgpack\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


async def ask_until_refused(
    port: int, tally: Tally, request: Callable[[int], bytes], on_status: Callable[[int, int], None]
) -> None:
    """One request after another, on a kept connection and then on the next, until none can be had."""
    number = 0
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        opened, closing = time.monotonic(), False
        while not closing:
            number += 1
            try:
                writer.write(request(number))
                status, headers, body = await read_answer(reader)
            except (OSError, asyncio.IncompleteReadError) as error:
                # A connection that the listener never took from its backlog was not accepted.
                if opened < tally.signalled_at:
                    tally.dropped.append(f"{error!r} {time.monotonic() - tally.signalled_at:.3f} s after")
                return
            tally.statuses[status] += 1
            if status in REFUSED and not headers.get("retry-after", "").isdigit():
                tally.no_retry_after.append(body.decode())
            on_status(number, status)
            closing = headers.get("connection") == "close"
        writer.close()


async def load_and_stop(port: int, process: "subprocess.Popen[bytes]", ids: list[str], round: int) -> Tally:
    tally = Tally()
    rng = np.random.default_rng(round)

    reranks = [
        message("POST", "/rerank", {"query": vectors(rng, 32), "ids": [str(i) for i in rng.permutation(ids)]})
        for _ in range(8)
    ]

    def upserts(worker: int) -> tuple[Callable[[int], bytes], Callable[[int, int], None]]:
        def names(number: int) -> tuple[str, str]:
            return f"{round}/{worker}/{number}", f"{round}/{worker}/latest"

        def request(number: int) -> bytes:
            documents = [
                {"id": id, "vectors": vectors(rng, 9), "payload": {"version": number}} for id in names(number)
            ]
            return message("PUT", "/collections/default/documents", {"documents": documents})

        def on_status(number: int, status: int) -> None:
            if status == 200:
                tally.acknowledged |= dict.fromkeys(names(number), number)

        return request, on_status

    asking = [
        asyncio.create_task(ask_until_refused(port, tally, lambda n: reranks[n % 8], lambda *_: None))
        for _ in range(RERANKERS)
    ]
    asking += [
        asyncio.create_task(ask_until_refused(port, tally, *upserts(worker))) for worker in range(UPSERTERS)
    ]
    await asyncio.sleep(1 + 0.37 * round)
    assert not any(task.done() for task in asking)
    tally.signalled_at = time.monotonic()
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(*asking), GRACE_S)
    return tally


def fill(port: int, documents: int) -> list[str]:
    rng = np.random.default_rng(0)
    ids = [f"d{i}" for i in range(documents)]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        client.put("/collections/default", json={"dim": DIM}).raise_for_status()
        stored = msgspec.msgpack.encode(
            {"documents": [{"id": id, "vectors": vectors(rng, 100)} for id in ids]}
        )
        headers = {"content-type": "application/msgpack"}
        client.put("/collections/default/documents", content=stored, headers=headers).raise_for_status()
    return ids


def assert_stored(port: int, acknowledged: dict[str, int]) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for id, version in acknowledged.items():
            found = client.get(f"/collections/default/documents/{id}", params={"vectors": "false"})
            assert found.status_code == 200, f"{id} was acknowledged and is gone"
            assert found.json()["payload"]["version"] >= version


def test_sigterm_under_load_drops_no_request_and_loses_no_acknowledged_write(tmp_path):
    flags = ("--device", "cpu", "--drain-timeout-s", str(DRAIN_TIMEOUT_S))
    server = service(tmp_path / "data", *flags)
    acknowledged: dict[str, int] = {}
    ids: list[str] = []
    for round in range(3):
        with server.running():
            assert_stored(server.port, acknowledged)
            ids = ids or fill(server.port, 600)
            tally = asyncio.run(load_and_stop(server.port, server.process, ids, round))
            status = server.process.wait(GRACE_S)
            took_s = time.monotonic() - tally.signalled_at
            print(f"round {round}: {dict(tally.statuses)}, exit {took_s:.2f} s after SIGTERM")
            assert tally.dropped == []
            assert tally.no_retry_after == []
            assert set(tally.statuses) <= {200, *REFUSED}
            assert tally.statuses[200] > RERANKERS
            assert status == 0
            assert took_s < GRACE_S
            assert len(tally.acknowledged) > UPSERTERS
            acknowledged |= tally.acknowledged
    with server.running():
        assert_stored(server.port, acknowledged)


def test_work_that_outlasts_the_drain_is_refused_with_503_and_the_exit_is_in_time(tmp_path):
    drain_timeout_s = 2.0
    flags = ("--device", "cpu", "--drain-timeout-s", str(drain_timeout_s), "--max-batch-tokens", "1")
    with service(tmp_path / "data", *flags).running() as server:
        ids = fill(server.port, 600)
        query = vectors(np.random.default_rng(1), 1000)
        long = message("POST", "/rerank", {"query": query, "ids": ids * 6})  # about a second each
        tally = Tally()

        async def ask() -> None:
            async def one() -> None:
                await ask_until_refused(server.port, tally, lambda _: long, lambda *_: None)

            asking = [asyncio.create_task(one()) for _ in range(RERANKERS)]
            await asyncio.sleep(1.5)
            tally.signalled_at = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(asyncio.gather(*asking), 30)

        asyncio.run(ask())
        assert server.process.wait(30) == 0
        took_s = time.monotonic() - tally.signalled_at
        print(f"{dict(tally.statuses)}, exit {took_s:.2f} s after SIGTERM")
        assert tally.dropped == []
        assert tally.no_retry_after == []
        assert tally.statuses[503] > 0
        assert set(tally.statuses) <= {200, 503}
        assert took_s < drain_timeout_s + 3

"""`maxsim serve` as a process: start, refusals to start, and the drained stop."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(port: int, directory: Path, *flags: str) -> "subprocess.Popen[str]":
    environ = {k: v for k, v in os.environ.items() if not k.startswith("MAXSIM_")}
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "maxsim_serve",
            "serve",
            "--port",
            str(port),
            "--data-dir",
            str(directory),
            *flags,
        ],
        stderr=subprocess.PIPE,
        env=environ,
        text=True,
    )


def wait_until_ready(url: str, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError("the service was not ready within a minute")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[str, "subprocess.Popen[str]", Path]]:
    port = free_port()
    process = start(port, tmp_path / "data", "--threads", "1")
    url = f"http://127.0.0.1:{port}"
    wait_until_ready(url, process)
    yield url, process, tmp_path / "data"
    if process.poll() is None:
        process.kill()
    process.wait()


def store_documents(url: str, count: int, tokens: int) -> list[str]:
    rng = np.random.default_rng(0)
    httpx.put(f"{url}/collections/default", json={"dim": 128}).raise_for_status()
    ids = [f"d{i}" for i in range(count)]
    documents = [{"id": i, "vectors": rng.standard_normal((tokens, 128)).round(3).tolist()} for i in ids]
    answer = httpx.put(f"{url}/collections/default/documents", json={"documents": documents}, timeout=60)
    assert answer.json()["upserted"] == count
    return ids


def test_sigterm_answers_what_is_under_way_and_exits_zero(service):
    url, process, _ = service
    ids = store_documents(url, count=40, tokens=50)
    body = {"query": np.random.default_rng(1).standard_normal((1000, 128)).tolist(), "ids": ids * 40}

    async def ask_and_stop() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            asked = [asyncio.create_task(client.post("/rerank", json=body)) for _ in range(4)]
            # Until all four are past parsing, so that the signal finds them in the queue or being scored.
            while (
                'maxsim_stage_duration_seconds_count{stage="parse"} 4.0'
                not in (await client.get("/metrics")).text
            ):
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            return await asyncio.gather(*asked)

    answers = asyncio.run(ask_and_stop())
    assert [a.status_code for a in answers] == [200] * 4
    assert all(len(a.json()["results"]) == 1600 for a in answers)
    assert process.wait(30) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/livez")


def test_200_documents_score_alike_to_the_bit_together_alone_shuffled_crowded_and_in_a_search(service):
    url, _, _ = service
    rng = np.random.default_rng(5)
    httpx.put(f"{url}/collections/default", json={"dim": 128}).raise_for_status()
    ids = [f"d{i}" for i in range(200)]
    lengths = rng.integers(1, 160, 200)
    documents = [
        {"id": i, "vectors": rng.standard_normal((n, 128)).tolist()}
        for i, n in zip(ids, lengths, strict=True)
    ]
    httpx.put(
        f"{url}/collections/default/documents", json={"documents": documents}, timeout=60
    ).raise_for_status()
    query = rng.standard_normal((17, 128)).tolist()
    others = [rng.standard_normal((n, 128)).tolist() for n in (1, 5, 32, 64)]

    def scores(answer: httpx.Response) -> dict[str, float]:
        return {result["id"]: result["relevance_score"] for result in answer.json()["results"]}

    async def crowded() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            bodies = [{"query": q, "ids": ids} for q in [*others, query, *others, query]]
            return await asyncio.gather(*(client.post("/rerank", json=body) for body in bodies))

    with httpx.Client(base_url=url, timeout=60) as client:
        together = scores(client.post("/rerank", json={"query": query, "ids": ids}))
        assert len(together) == 200
        shuffled = [ids[i] for i in rng.permutation(200)]
        assert scores(client.post("/rerank", json={"query": query, "ids": shuffled})) == together
        for one in ids:
            assert scores(client.post("/rerank", json={"query": query, "ids": [one]})) == {one: together[one]}
        assert scores(client.post("/search", json={"query": query, "top_k": 200})) == together
    answers = asyncio.run(crowded())
    assert scores(answers[4]) == scores(answers[9]) == together


def test_what_was_stored_is_there_after_a_restart(service):
    url, process, directory = service
    ids = store_documents(url, count=7, tokens=5)
    query = np.random.default_rng(1).standard_normal((3, 128)).tolist()
    before = httpx.post(f"{url}/search", json={"query": query, "top_k": 7}).json()["results"]
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    port = free_port()
    again = start(port, directory)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", again)
        after = httpx.post(f"http://127.0.0.1:{port}/search", json={"query": query, "top_k": 7}).json()[
            "results"
        ]
    finally:
        again.terminate()
        again.wait(30)
    assert after == before
    assert sorted(r["id"] for r in after) == sorted(ids)


def test_a_second_service_on_the_directory_is_refused_by_the_holders_process_id(service):
    _, process, directory = service
    second = start(free_port(), directory)
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 1
    assert str(process.pid) in errors
    assert str(directory) in errors


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "http"], "port = 'http' (flag)"),
        (["--device", "cuda"], "device = cuda"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
    ids=["port", "device", "config"],
)
def test_settings_that_cannot_work_are_named_and_exit_two(tmp_path, flags, words):
    process = start(free_port(), tmp_path, *flags)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert words in errors


def test_an_encoder_that_does_not_exist_ends_the_start(tmp_path):
    process = start(free_port(), tmp_path, "--encoder", str(tmp_path / "no-such-model"))
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "no-such-model" in errors

"""`maxsim serve` as a process: start, refusals to start, and the drained stop."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from servers import Server, serve_command, service, surroundings

from maxsim_serve.cli.local import free_port


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with service(tmp_path / "data", "--threads", "1").running() as server:
        yield server


def refused(data_dir: Path, *flags: str) -> tuple[int, str]:
    """The exit status and the standard error of a service that does not start."""
    command = serve_command(free_port(), data_dir, *flags)
    done = subprocess.run(command, env=surroundings(), stderr=subprocess.PIPE, timeout=100)
    return done.returncode, done.stderr.decode()


def store_documents(url: str, count: int, tokens: int) -> list[str]:
    rng = np.random.default_rng(0)
    httpx.put(f"{url}/collections/default", json={"dim": 128}).raise_for_status()
    ids = [f"d{i}" for i in range(count)]
    documents = [{"id": i, "vectors": rng.standard_normal((tokens, 128)).round(3).tolist()} for i in ids]
    answer = httpx.put(f"{url}/collections/default/documents", json={"documents": documents}, timeout=60)
    assert answer.json()["upserted"] == count
    return ids


def test_sigterm_answers_what_is_under_way_and_exits_zero(server):
    url, process = server.url, server.process
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


def test_200_documents_score_alike_to_the_bit_together_alone_shuffled_crowded_and_in_a_search(server):
    url = server.url
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


def test_what_was_stored_is_there_after_a_restart(server):
    ids = store_documents(server.url, count=7, tokens=5)
    query = np.random.default_rng(1).standard_normal((3, 128)).tolist()

    def search() -> list[dict[str, object]]:
        return httpx.post(f"{server.url}/search", json={"query": query, "top_k": 7}).json()["results"]

    before = search()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(30) == 0
    server.start()
    after = search()
    assert after == before
    assert sorted(r["id"] for r in after) == sorted(ids)


def test_a_second_service_on_the_directory_is_refused_by_the_holders_process_id(server, tmp_path):
    status, errors = refused(tmp_path / "data")
    assert status == 1
    assert str(server.process.pid) in errors
    assert str(tmp_path / "data") in errors


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
    status, errors = refused(tmp_path, *flags)
    assert status == 2
    assert words in errors


def test_an_encoder_that_does_not_exist_ends_the_start(tmp_path):
    status, errors = refused(tmp_path, "--encoder", str(tmp_path / "no-such-model"))
    assert status == 1
    assert "no-such-model" in errors

"""The same scenarios for people who know Locust, which is no dependency of this project.

    pip install locust httpx msgspec numpy pyyaml safetensors
    locust -f loadtest/locustfile.py --host http://127.0.0.1:8080 --headless -u 16 -r 4 -t 30s
    SCENARIO=100-candidates locust -f loadtest/locustfile.py …

Fills a collection when the test starts, some ten seconds that count as part of `-t`. A user asks,
waits for the answer and asks again: a closed loop, whose latencies look better than they are once the service
is saturated; `sweep.py` is the measurement.
"""

import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import msgspec
from locust import FastHttpUser, constant, events, task

sys.path.insert(0, str(Path(__file__).parent))

from passages import fill
from scenarios import collection_of, is_upsert, messages, read

CATALOGUE = read()
SCENARIO = CATALOGUE.scenarios[os.environ.get("SCENARIO", "1000-candidates")]
COLLECTION = CATALOGUE.collection
NUMBERS = count()


@events.test_start.add_listener
def fill_collection(environment: Any, **_: Any) -> None:
    with httpx.Client(base_url=environment.host, timeout=300) as client:
        fill(
            client,
            collection_of(SCENARIO.tier),
            COLLECTION.documents,
            COLLECTION.dim,
            mean_tokens=COLLECTION.mean_tokens,
            tier=SCENARIO.tier,
        )


class Retriever(FastHttpUser):
    """Reranks, and upserts in the share that the scenario says."""

    wait_time = constant(0)

    @task
    def ask(self) -> None:
        number = next(NUMBERS)
        reranks, upserts = messages(SCENARIO, COLLECTION)
        bodies = upserts if is_upsert(SCENARIO, number) else reranks
        head, _, body = bodies[number % len(bodies)].partition(b"\r\n\r\n")
        method, path, _ = head.split(b"\r\n")[0].decode().split()
        form = f"application/{SCENARIO.form}"
        headers = {"content-type": form, "accept": form}
        with self.client.request(method, path, data=body, headers=headers, catch_response=True) as answer:
            if answer.status_code != 200 or bodies is upserts:
                return
            decode = msgspec.msgpack.decode if SCENARIO.form == "msgpack" else msgspec.json.decode
            found = len(decode(answer.content)["results"])
            if found != SCENARIO.results:
                answer.failure(f"{found} results where {SCENARIO.results} were asked for")

"""The real Prometheus scrapes the real service under load: every rule, every panel, an honest median."""

import json
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "config/grafana/dashboards/maxsim.json"
DIM, DOCUMENTS, TOKENS = 128, 400, 150

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (Debian package prometheus)"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[object], probe: str, log: Path) -> Iterator[None]:
    """A process, once `probe` answers 200."""
    with log.open("w") as output:
        process = subprocess.Popen([str(word) for word in command], stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + 60
            while True:
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                try:
                    if httpx.get(probe).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait(30)


@dataclass
class Load:
    """One client that asks, writes and errs, over and over; what it measured is in seconds."""

    url: str
    reranks_s: list[float] = field(default_factory=list)
    transports_s: list[float] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        rng = np.random.default_rng(3)
        query = rng.standard_normal((32, DIM)).round(3).tolist()
        ids = [f"d{i}" for i in range(DOCUMENTS)]
        # Encoded before the clock starts: the service is not there yet then.
        rerank = json.dumps({"query": query, "ids": [*ids, "nowhere"], "top_n": 5}).encode()
        small = {"documents": [{"id": "extra", "vectors": query}]}
        with httpx.Client(base_url=self.url, timeout=30) as client:
            while not self.stop.is_set():
                self.timed(client, self.reranks_s, "POST", "/rerank", content=rerank)
                self.timed(client, self.transports_s, "GET", "/livez")
                if len(self.reranks_s) % 10 == 1:
                    client.post("/search", json={"query": query, "top_k": 3}).raise_for_status()
                    client.put("/collections/default/documents", json=small).raise_for_status()
                    client.post("/collections/default/documents/delete", json={"ids": ["extra"]})
                    client.get(f"/no/such/path/{len(self.reranks_s)}")

    @staticmethod
    def timed(client: httpx.Client, into: list[float], method: str, path: str, **content: Any) -> None:
        started = time.perf_counter()
        client.request(method, path, **content).raise_for_status()
        into.append(time.perf_counter() - started)


@dataclass
class Watched:
    service: str
    prometheus: str
    load: Load

    def query(self, expression: str) -> list[float]:
        answer = httpx.get(f"{self.prometheus}/api/v1/query", params={"query": expression}, timeout=10)
        assert answer.status_code == 200, f"{expression}: {answer.text}"
        return [float(sample["value"][1]) for sample in answer.json()["data"]["result"]]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    port, own = free_port(), free_port()
    url, prometheus = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{own}"

    shutil.copytree(ROOT / "config/rules", folder / "rules")
    config = yaml.safe_load((ROOT / "config/prometheus.yml").read_text())
    config["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    for job in config["scrape_configs"]:  # there is no compose network to find names in
        job.pop("dns_sd_configs", None)
        targets = {"maxsim": [f"127.0.0.1:{port}"], "prometheus": [f"127.0.0.1:{own}"]}
        job["static_configs"] = [{"targets": targets.get(job["job_name"], [])}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))

    service = [sys.executable, "-m", "maxsim_serve", "serve", "--port", port, "--data-dir", folder / "data"]
    watcher = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{own}",
    ]
    with (
        running([*service, "--threads", 1], f"{url}/readyz", folder / "service.log"),
        running(watcher, f"{prometheus}/-/ready", folder / "prometheus.log"),
    ):
        rng = np.random.default_rng(1)
        httpx.put(f"{url}/collections/default", json={"dim": DIM}).raise_for_status()
        vectors = rng.standard_normal((DOCUMENTS, TOKENS, DIM)).round(2)
        documents = [{"id": f"d{i}", "vectors": rows.tolist()} for i, rows in enumerate(vectors)]
        body = {"documents": documents}
        httpx.put(f"{url}/collections/default/documents", json=body, timeout=60).raise_for_status()
        load = Load(url)
        client = threading.Thread(target=load.run)
        client.start()
        try:
            time.sleep(12)
            yield Watched(url, prometheus, load)
        finally:
            load.stop.set()
            client.join()


def test_every_rule_is_loaded_and_evaluates(watched):
    wanted = set()
    for path in (ROOT / "config/rules").glob("*.yml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            wanted |= {rule.get("record") or rule.get("alert") for rule in group["rules"]}
    groups = httpx.get(f"{watched.prometheus}/api/v1/rules").json()["data"]["groups"]
    loaded = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert set(loaded) == wanted
    assert {name: rule["health"] for name, rule in loaded.items()} == dict.fromkeys(wanted, "ok")


def test_every_recording_rule_returns_data(watched):
    rules = yaml.safe_load((ROOT / "config/rules/recording.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            values = watched.query(rule["record"])
            assert values and np.isfinite(values).any(), rule["record"]


def test_every_query_of_the_dashboard_returns_data(watched):
    """All but those of panels marked `GPU only.`, whose series a machine without a GPU need not have."""
    exempt, asked = [], 0
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*")
            values = watched.query(expression)
            if panel["description"].startswith("GPU only."):
                exempt.append(panel["title"])
                continue
            asked += 1
            assert values and np.isfinite(values).any(), f"{panel['title']}: {expression}"
    assert set(exempt) == {"GPU memory by purpose", "Stream bandwidth", "Kernel compilations"}
    assert asked >= 30


def test_the_variable_of_the_dashboard_finds_the_instance(watched):
    answer = httpx.get(f"{watched.prometheus}/api/v1/label/instance/values?match[]=maxsim_ready").json()
    assert answer["data"] == [watched.service.removeprefix("http://")]


def test_the_median_is_what_the_client_measured_less_transport(watched):
    while len(watched.load.reranks_s) < 200:
        time.sleep(0.2)
    time.sleep(2)  # until the last of them are scraped
    client_s = statistics.median(watched.load.reranks_s) - statistics.median(watched.load.transports_s)
    buckets = 'sum by (le) (rate(maxsim_http_request_duration_seconds_bucket{route="/rerank"}[5m]))'
    (histogram_s,) = watched.query(f"histogram_quantile(0.5, {buckets})")
    print(f"median of a rerank: histogram {1e3 * histogram_s:.2f} ms, client {1e3 * client_s:.2f} ms")
    assert histogram_s == pytest.approx(client_s, rel=0.2)


def test_no_alert_fires_for_a_service_that_is_well(watched):
    firing = watched.query(
        'ALERTS{alertstate="firing",alertname!~"MaxsimLatencyOverObjective|MaxsimMissingIds"}'
    )
    assert firing == []


def test_promtool_finds_no_fault_with_the_metrics(watched):
    text = httpx.get(f"{watched.service}/metrics").text
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout, done.stderr) == ("", "")

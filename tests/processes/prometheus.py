"""The real Prometheus over the repository's configuration, whose targets have become loopback ports."""

import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from servers import Server

from maxsim_serve.cli.local import free_port

__all__ = ["CONFIG", "Prometheus", "prometheus"]

CONFIG = Path(__file__).parents[2] / "config"


class Prometheus(Server):
    """Scrapes and evaluates once a second."""

    @cached_property
    def _http(self) -> httpx.Client:
        return httpx.Client(base_url=f"{self.url}/api/v1", timeout=10)

    def ask(self, path: str, **parameters: str) -> Any:
        answer = self._http.get(path, params=parameters)
        assert answer.status_code == 200, f"{parameters}: {answer.text}"
        return answer.json()["data"]

    def query(self, expression: str) -> list[float]:
        """The values of all series, now."""
        return [float(sample["value"][1]) for sample in self.ask("query", query=expression)["result"]]


def prometheus(directory: Path, ports: Mapping[str, int]) -> Prometheus:
    """`ports` are those of the jobs that have a target; the other jobs have none."""
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed: apt-get install prometheus")
    own = free_port()
    shutil.copytree(CONFIG / "rules", directory / "rules")
    config = yaml.safe_load((CONFIG / "prometheus.yml").read_text())
    config["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    for job in config["scrape_configs"]:  # there is no compose network to find names in
        job.pop("dns_sd_configs", None)
        port = {**ports, "prometheus": own}.get(job["job_name"])
        job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"] if port else []}]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        "prometheus",
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{own}",
    ]
    return Prometheus(command, own, ready_path="/-/ready")

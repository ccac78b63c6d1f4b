"""docker/compose.yaml, by an implementation of the specification, and by what an operator counts on."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from maxsim_serve.settings import Settings

COMPOSE = Path(__file__).parents[2] / "docker" / "compose.yaml"

# What may not be so, and why: each is explained in the file.
MAY_BE_ROOT = {"dcgm-exporter"}
OURS = {"cpu", "gpu", "retriever"}


def interpolated() -> str:
    """The file as an empty environment fills it in."""
    text = re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", COMPOSE.read_text(encoding="utf-8"))
    assert "${" not in text
    return text


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(yaml.safe_load(interpolated())["services"])


def test_it_is_a_valid_compose_file() -> None:
    compose_spec = pytest.importorskip("compose_spec", reason="pip install '.[dev]' brings it")
    document = yaml.safe_load(interpolated())  # merge keys resolved, which that parser leaves in extensions
    compose_spec.PyCompose.from_yaml(yaml.safe_dump(document)).validate()
    document["services"]["postgres"]["no_such_key"] = "256m"
    with pytest.raises(ValueError, match="no_such_key"):
        compose_spec.PyCompose.from_yaml(yaml.safe_dump(document))


def test_profiles_bring_up_whole_stacks(services: dict[str, Any]) -> None:
    def of(*profiles: str) -> set[str]:
        return {name for name, service in services.items() if set(service["profiles"]) & set(profiles)}

    assert of("cpu") == {"cpu"}
    assert of("gpu") == {"gpu", "dcgm-exporter"}
    assert of("demo") == {"cpu", "postgres", "retriever"}
    assert of("demo", "monitoring") == {"cpu", "postgres", "retriever", "prometheus", "grafana"}
    for name, service in services.items():
        for needed in service.get("depends_on", {}):
            assert set(service["profiles"]) <= set(services[needed]["profiles"]), (name, needed)


def test_every_service_is_confined(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        assert {"test", "interval", "timeout", "retries", "start_period"} <= set(service["healthcheck"]), name
        if name not in MAY_BE_ROOT:
            assert re.fullmatch(r"[1-9]\d*:\d+", service["user"]), name
        writable = [volume for volume in service.get("volumes", []) if not volume.endswith(":ro")]
        assert len(writable) <= 1 and all(not volume.startswith((".", "/")) for volume in writable), name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), (name, port)


def test_foreign_images_are_pinned(services: dict[str, Any]) -> None:
    for name in set(services) - OURS:
        assert re.search(r":v?\d+\.\d+(\.\d+)?[\w.-]*$", services[name]["image"]), services[name]["image"]


def test_images_and_users_are_those_of_the_dockerfiles(services: dict[str, Any]) -> None:
    for name in OURS:
        build = services[name]["build"]
        root = COMPOSE.parent / build["context"]
        dockerfile = (root / build.get("dockerfile", "Dockerfile")).read_text(encoding="utf-8")
        assert f"--uid {services[name]['user'].split(':')[0]} " in dockerfile
        if "target" in build:
            assert f" AS {build['target']}\n" in dockerfile


def test_a_stop_waits_for_the_drain(services: dict[str, Any]) -> None:
    drain_s = Settings().drain_timeout_s
    for name in ("cpu", "gpu"):
        assert int(services[name]["stop_grace_period"].removesuffix("s")) > drain_s


def test_the_gpu_service_reserves_a_device_and_may_lock_memory(services: dict[str, Any]) -> None:
    gpu = services["gpu"]
    assert gpu["ulimits"]["memlock"] == {"soft": -1, "hard": -1}
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia" and "gpu" in device["capabilities"]
    assert gpu["environment"] == services["cpu"]["environment"] | {"MAXSIM_DEVICE": "cuda"}


def test_settings_named_exist(services: dict[str, Any]) -> None:
    for name in ("cpu", "gpu"):
        for variable in services[name]["environment"]:
            assert variable.removeprefix("MAXSIM_").lower() in Settings.model_fields, variable


def test_mounted_files_are_there(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for volume in service.get("volumes", []):
            if volume.startswith("."):
                path = COMPOSE.parent / volume.split(":")[0]
                assert path.exists(), f"{name}: {path}"


def test_named_volumes_are_declared() -> None:
    document = yaml.safe_load(interpolated())
    used = {
        volume.split(":")[0]
        for service in document["services"].values()
        for volume in service.get("volumes", [])
        if not volume.startswith(".")
    }
    assert used == set(document["volumes"])

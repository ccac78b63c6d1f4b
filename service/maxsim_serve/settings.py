"""Settings: read once, typed. Built-in default, configuration file, environment, flag: the last one wins.

`config/default.yaml` and the table in the README are printed from this module (`maxsim settings`),
and a test holds them equal to it.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import InvalidInput

__all__ = ["PREFIX", "Settings", "as_markdown", "as_yaml", "load"]

PREFIX = "MAXSIM_"

_MIB = 1 << 20


class Settings(BaseModel):
    """Every setting, with its unit in the name or the description."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    data_dir: Path = Field(
        Path("data"), description="Directory that holds the collections. One process at a time."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where scores are computed.")
    query_dtype: Literal["stored", "float32"] = Field(
        "stored",
        description="On a GPU: round queries to the `stored` dtype (full speed), or keep them `float32`.",
    )
    kernel_cache_dir: Path | None = Field(
        None, description="Directory of compiled GPU kernels; null takes Triton's own."
    )
    probe_after_s: float = Field(
        5.0, gt=0, description="Seconds without a score after which `/readyz` tries the GPU."
    )
    encoder: str = Field(
        "none", description="`none`, `minilm` (embedded), or a late-interaction model by name or folder."
    )
    default_collection: str = Field("default", description="Collection of a request that names none.")
    api_key: str | None = Field(None, description="If set, requests need `Authorization: Bearer <key>`.")
    metrics_public: bool = Field(True, description="Whether `/metrics` answers without the API key.")

    max_body_bytes: int = Field(256 * _MIB, ge=1, description="Largest request body, in bytes.")
    max_candidates: int = Field(10_000, ge=1, description="Most ids or documents in one rerank.")
    max_query_tokens: int = Field(2048, ge=1, description="Most rows in a query.")
    max_document_tokens: int = Field(16_384, ge=1, description="Most rows in a document.")
    max_documents_per_upsert: int = Field(10_000, ge=1, description="Most documents in one upsert.")
    max_top_k: int = Field(10_000, ge=1, description="Most results of one search.")
    max_concurrent_uploads: int = Field(
        2, ge=1, description="Upserts decoded at the same time; the rest wait."
    )
    invalid_documents: Literal["skip", "refuse"] = Field(
        "skip",
        description="What one invalid document does to its batch: `skip` it, or `refuse` the whole batch.",
    )

    threads: int = Field(0, ge=0, description="Threads that score; 0 takes one a core.")
    queue_depth: int = Field(
        256, ge=1, description="Requests that may wait to be scored; more are answered 429."
    )
    awake_s: float = Field(
        0.01,
        ge=0,
        description="On a GPU: seconds that the scoring thread stays awake when it has nothing to do, at the "
        "cost of a core; after a sleep it answers a tenth of a millisecond later.",
    )
    deadline_s: float = Field(30.0, gt=0, description="Seconds a request may wait before it is answered 503.")
    retry_after_s: float = Field(1.0, ge=0, description="Seconds named in Retry-After.")
    max_batch_tokens: int = Field(
        2_000_000,
        ge=1,
        description="Document rows scored as one work list, counted once for each 32 query rows; four in a "
        "GPU's memory count as one.",
    )
    drain_timeout_s: float = Field(
        30.0, gt=0, description="Seconds that requests in flight get after SIGTERM."
    )

    segment_bytes: int = Field(256 * _MIB, ge=4096, description="Size of a segment file, in bytes.")
    compact_dead_share: float = Field(
        0.125, gt=0, le=1, description="Share of a collection's rows that may be dead before it is compacted."
    )
    host_budget_bytes: int = Field(
        0, ge=0, description="Most bytes of token rows in host memory; 0 takes 70 % of the machine's memory."
    )

    gpu_budget_bytes: int = Field(
        0, ge=0, description="Most bytes of token rows on the GPU; 0 takes what scoring and headroom leave."
    )
    tier: Literal["auto", "gpu", "host"] = Field(
        "auto",
        description="Where a collection that names no tier is resident; `auto`: on the GPU while it fits.",
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe line logged."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="`text` for people, `json` for collectors."
    )
    log_requests: bool = Field(False, description="Whether every request is logged, probes aside.")
    slow_request_s: float = Field(
        1.0, ge=0, description="Seconds from which on a request is logged as slow, with its stages."
    )
    otlp_endpoint: str | None = Field(
        None,
        description="Where traces are sent, `http://collector:4318/v1/traces`; needs the extra `otel`.",
    )


def load(
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from a YAML file (may be absent), `MAXSIM_*` variables and command-line flags.

    Raises `InvalidInput` that names the key, the value and where it came from.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for source, given in (
        (str(config), _from_file(config) if config is not None else {}),
        ("environment", _from_environment(environ)),
        ("flag", {k: v for k, v in (flags or {}).items() if v is not None}),
    ):
        for key, value in given.items():
            values[key], origin[key] = value, source
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise InvalidInput(_explain(error, values, origin), param=str(error.errors()[0]["loc"][0])) from None


def _from_file(path: Path) -> dict[str, Any]:
    try:
        parsed = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"config: cannot read {path}: {error.strerror}", param="config") from None
    except yaml.YAMLError as error:
        raise InvalidInput(f"config: {path} is not YAML: {error}", param="config") from None
    if parsed is None:
        return {}
    if not isinstance(parsed, dict) or not all(isinstance(key, str) for key in parsed):
        raise InvalidInput(f"config: {path} must be a mapping of setting names to values", param="config")
    return parsed


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """`MAXSIM_PORT=9000` → {"port": "9000"}. MAXSIM_CONFIG names the file and is no setting."""
    names = {
        name.removeprefix(PREFIX).lower(): value for name, value in environ.items() if name.startswith(PREFIX)
    }
    names.pop("config", None)
    if names.get("api_key") == "":
        del names["api_key"]
    return dict(names)


def _explain(error: ValidationError, values: Mapping[str, Any], origin: Mapping[str, str]) -> str:
    lines = []
    for item in error.errors():
        key = str(item["loc"][0])
        where = origin.get(key, "default")
        if where == "environment":
            where = f"{where} {PREFIX}{key.upper()}"
        if item["type"] == "extra_forbidden":
            lines.append(f"unknown setting {key!r} ({where}); `maxsim settings` lists all of them")
        else:
            shown = "***" if key == "api_key" else repr(values.get(key))
            lines.append(f"{key} = {shown} ({where}): {item['msg']}")
    return "; ".join(lines)


def as_yaml() -> str:
    """The text of `config/default.yaml`."""
    lines = ["# Every setting with its default. Order: this file (--config), MAXSIM_* variables, flags.", ""]
    for name, field in Settings.model_fields.items():
        lines += [f"# {field.description}", f"{name}: {_yaml_scalar(field.default)}"]
    return "\n".join(lines) + "\n"


def as_markdown() -> str:
    """The settings table of the README."""
    lines = ["| setting | default | environment | meaning |", "| --- | --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = _yaml_scalar(field.default)
        lines.append(f"| `{name}` | `{default}` | `{PREFIX}{name.upper()}` | {field.description} |")
    return "\n".join(lines) + "\n"


def _yaml_scalar(value: object) -> str:
    plain = str(value) if isinstance(value, Path) else value
    return yaml.safe_dump(plain).splitlines()[0]

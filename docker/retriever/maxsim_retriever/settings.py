"""Settings: `RETRIEVER_*` variables, read once."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Settings", "from_environment"]

_PREFIX = "RETRIEVER_"


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    database_url: str = "postgresql://localhost/retriever"
    database_connections: int = Field(8, ge=1)

    reranker_url: str = "http://127.0.0.1:8080"
    reranker_api_key: str | None = None
    reranker_connections: int = Field(64, ge=1)
    collection: str = "default"
    candidates: int = Field(1000, ge=1, description="Most ids handed to the reranker.")

    rerank_budget_s: float = Field(3.0, gt=0, description="All tries and the waits between them.")
    connect_timeout_s: float = Field(0.5, gt=0)
    tries: int = Field(3, ge=1)
    retry_after_cap_s: float = Field(1.5, ge=0, description="A longer Retry-After is waited for no longer.")
    max_query_characters: int = Field(2000, ge=1)
    max_top_k: int = Field(1000, ge=1)


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Raises pydantic's ValidationError, which names the setting and the value."""
    given = {
        name.removeprefix(_PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(_PREFIX) and value != ""
    }
    return Settings.model_validate(given)

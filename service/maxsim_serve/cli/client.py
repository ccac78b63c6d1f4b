"""The commands' HTTP client: waits where the service asks it to, and raises what the service answers."""

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

__all__ = ["Client", "NotAnswering", "RequestFailed", "collection_path"]

_RETRIED = {429, 503}
_TRIES = 8
_LONGEST_WAIT_S = 30.0
# An upsert of texts is answered when they are encoded, which takes as long as it takes.
_TIMEOUT = httpx.Timeout(600.0, connect=10.0)


class RequestFailed(Exception):
    """The service answered with an error; `refusals` lists the documents concerned, if it named any."""

    def __init__(self, status: int, message: str, refusals: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(f"{message} (HTTP {status})")
        self.message = message
        self.status = status
        self.refusals = refusals


class NotAnswering(Exception):
    """Nothing that speaks HTTP is at the URL, or it went away and did not come back."""


class Client:
    """One service. 429, 503 and broken connections are tried again, after Retry-After or a growing pause;
    everything that the commands send may be sent twice."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url.rstrip("/")
        self._sleep = sleep
        local = httpx.URL(url).host in ("127.0.0.1", "localhost", "::1")
        self._http = httpx.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=_TIMEOUT,
            transport=transport,
            trust_env=not local,  # a proxy named in the environment is not meant for this machine
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        content_type: str = "application/json",
        tries: int = _TRIES,
    ) -> dict[str, Any]:
        """The answer's JSON object. Raises `RequestFailed` for 4xx and 5xx, and `NotAnswering` after `tries`
        broken connections."""
        headers = {} if content is None else {"content-type": content_type}
        for attempt in range(1, _TRIES + 1):
            try:
                response = self._http.request(method, path, json=json, content=content, headers=headers)
            except httpx.TransportError as error:
                if attempt >= tries:
                    raise NotAnswering(
                        f"no service answers at {self.url}: {error or type(error).__name__}"
                    ) from error
                self._sleep(_pause_s(attempt, None))
                continue
            if response.status_code not in _RETRIED or attempt == _TRIES:
                break
            self._sleep(_pause_s(attempt, response.headers.get("retry-after")))
        return _answer(response)


def collection_path(name: str, rest: str = "") -> str:
    """The path of a collection, whatever characters its name has."""
    return f"/collections/{quote(name, safe='')}{rest}"


def _pause_s(attempt: int, retry_after: str | None) -> float:
    asked_s = float(retry_after) if retry_after is not None and retry_after.isdigit() else 0.25 * 2.0**attempt
    return min(asked_s, _LONGEST_WAIT_S)


def _answer(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise RequestFailed(
            response.status_code, f"no JSON object, so no maxsim service: {response.text[:200]!r}"
        )
    if response.is_error:
        raise RequestFailed(response.status_code, str(body.get("message", body)), body.get("errors") or ())
    return body

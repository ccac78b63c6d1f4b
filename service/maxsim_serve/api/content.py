"""Bodies in and out: the format by Content-Type and Accept, the size limit, and errors that name a field."""

import asyncio
import re
from contextlib import nullcontext
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..errors import DeadlineExceeded, InvalidInput, TooLarge
from .wire import ClientGone, MalformedBody, UnsupportedMediaType

__all__ = ["Codec", "Format", "format_of", "located", "read_body", "reply", "wants_msgpack"]

T = TypeVar("T")

_UNLIMITED = nullcontext()


class Format(Enum):
    """How a body is written; the value is its media type."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"
    SAFETENSORS = "application/vnd.safetensors"


_FORMATS = {form.value: form for form in Format} | {"application/x-msgpack": Format.MSGPACK}


def format_of(request: Request, *accepted: Format) -> Format:
    """The body's format; JSON where no Content-Type is given. Raises `UnsupportedMediaType`."""
    given = request.headers.get("content-type")
    if given is None:
        return Format.JSON
    form = _FORMATS.get(given.partition(";")[0].strip().lower())
    if form is None or form not in accepted:
        names = ", ".join(form.value for form in accepted)
        raise UnsupportedMediaType(
            f"Content-Type {given!r} is not accepted here; send {names}", param="content-type"
        )
    return form


async def read_body(request: Request, max_body_bytes: int, stall_s: float | None = None) -> bytes | bytearray:
    """The whole body, whether its length was announced or not.

    Raises `TooLarge` as soon as it is known to pass `max_body_bytes`, `ClientGone` when the client
    hangs up, and `DeadlineExceeded` when `stall_s` is given and nothing arrives for that long.
    """
    announced = request.headers.get("content-length", "")
    # Twenty digits are more than any limit, and int() refuses thousands of them.
    if announced.isdecimal() and (len(announced) > 20 or int(announced) > max_body_bytes):
        raise _too_large(f"{announced} bytes", max_body_bytes)
    body = bytearray()
    while True:
        try:
            async with _UNLIMITED if stall_s is None else asyncio.timeout(stall_s):
                message = await request.receive()
        except TimeoutError:
            raise DeadlineExceeded(f"no byte of the body came for {stall_s} s (setting deadline_s)") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk: bytes = message.get("body", b"")
        if len(body) + len(chunk) > max_body_bytes:
            raise _too_large(f"more than {max_body_bytes} bytes", max_body_bytes)
        last = not message.get("more_body", False)
        if last and not body:
            return chunk
        body += chunk
        if last:
            return body


def _too_large(size: str, max_body_bytes: int) -> TooLarge:
    return TooLarge(
        f"the body has {size}, the setting max_body_bytes allows {max_body_bytes}; send less at a time",
        param="max_body_bytes",
    )


class Codec(Generic[T]):
    """Decodes one type from JSON or MessagePack."""

    def __init__(self, kind: Any) -> None:
        self._json: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        self._msgpack: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)

    def decode(self, data: bytes | bytearray | memoryview | msgspec.Raw, form: Format, field: str = "") -> T:
        """Raises `MalformedBody` for what is not in the format, `InvalidInput` for what is of another shape.

        `field` is where in the request the data stands; errors are named from there.
        """
        try:
            return (self._json if form is Format.JSON else self._msgpack).decode(data)
        except msgspec.ValidationError as error:
            raise located(error, field) from None
        except msgspec.DecodeError as error:
            raise MalformedBody(
                f"{field or 'the body'} is not {form.name}: {error}", param=field or None
            ) from None
        except RecursionError:
            name = field or "the body"
            raise InvalidInput(f"{name} is nested too deeply", param=field or None, code="too_deep") from None


_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_ABSENT = re.compile(r"missing required field `(\w+)`")


def located(error: msgspec.ValidationError, field: str = "") -> InvalidInput:
    """``Expected `int`, got `str` - at `$.top_n` `` → an `InvalidInput` whose param is `top_n`."""
    found = _PATH.match(str(error))
    what, path = (found["what"], found["path"] or "") if found else (str(error), "")
    absent = _ABSENT.search(what)
    name = (field + path + (f".{absent[1]}" if absent else "")).lstrip(".")
    return InvalidInput(f"{name or 'the body'}: {what[:1].lower()}{what[1:]}", param=name or None)


def wants_msgpack(request: Request) -> bool:
    """Whether the client asks for MessagePack; JSON is the answer to everything else."""
    return any(name == b"accept" and b"msgpack" in value for name, value in request.scope["headers"])


def reply(request: Request, content: Any, status: int = 200) -> Response:
    """`content` (a Struct, a dataclass or plain data) in the format the client asks for."""
    if wants_msgpack(request):
        return Response(msgspec.msgpack.encode(content), status, media_type=Format.MSGPACK.value)
    return Response(msgspec.json.encode(content), status, media_type=Format.JSON.value)

"""Stop working for a client that has gone."""

import asyncio
from types import TracebackType

from starlette.types import Receive

from .wire import ClientGone

__all__ = ["HangUp"]


class HangUp:
    """`async with HangUp(receive):` cancels its block when the client hangs up, and raises `ClientGone`.

    Enter it once the body is read: from then on `receive` has nothing to tell but the disconnect.
    A request that waits in the engine's queue is dropped by the cancellation before it is scored.

    Nothing is left for the garbage collector: a cancelled task holds the frames that it was cancelled in, and
    those whatever the request held. Some thousand requests of that stop the service for 50 ms.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except asyncio.CancelledError:
            return  # by `__aexit__`: an exception would be kept, with its frames
        self._gone = True
        assert self._task is not None
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, watcher = self._task, self._watcher
        self._task = self._watcher = None
        assert task is not None and watcher is not None
        watcher.cancel()
        # Ours is the only cancellation unless the server, too, is taking the request down.
        if self._gone and isinstance(error, asyncio.CancelledError) and task.uncancel() == 0:
            raise ClientGone from error

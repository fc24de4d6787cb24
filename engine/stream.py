"""What `generate_stream` gives: results and tokens while they are made, for a plain loop or an async one.

Leaving the loop, closing, or forgetting the stream ends its requests and frees what they held.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

    from streamrunner.engine.call import Call
    from streamrunner.engine.dispatcher import Dispatcher
    from streamrunner.engine.request_output import RequestOutput


class _Stream:
    """owner: kept alive as long as the stream is, so that an LLM without another name is not closed under it."""

    def __init__(self, dispatcher: Dispatcher, call: Call, owner: Any) -> None:
        self._dispatcher = dispatcher
        self._call = call
        self._owner = owner

    def _close(self) -> None:
        with self._dispatcher.lock:
            self._dispatcher.drop(self._call)

    def _raise_fault(self) -> None:
        """Once; later the stream is merely at its end."""
        fault, self._call.fault = self._call.fault, None
        if fault is not None:
            raise fault

    def __del__(self) -> None:
        # Garbage is collected anywhere, also where the lock is held: only leave a mark.
        self._call.abandoned = True


class OutputStream(_Stream, Iterator["RequestOutput"]):
    """An iterator over RequestOutput; a context manager too. May be closed from another thread."""

    def __next__(self) -> RequestOutput:
        with self._dispatcher.lock:
            while (output := self._call.take()) is None and not self._call.ended:
                self._call.readable.wait()
        if output is None:
            self.close()
            self._raise_fault()
            raise StopIteration
        return output

    def close(self) -> None:
        """Abort what still runs and free it. The iterator is at its end then."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class AsyncOutputStream(_Stream, AsyncIterator["RequestOutput"]):
    """The same for `async for` and `async with`, on one event loop. A task that is cancelled may read on."""

    _event: asyncio.Event | None = None

    async def __anext__(self) -> RequestOutput:
        event = self._attached()
        while True:
            event.clear()
            with self._dispatcher.lock:
                output, ended = self._call.take(), self._call.ended
            if output is not None:
                return output
            if ended:
                self._close()
                self._raise_fault()
                raise StopAsyncIteration
            await event.wait()

    async def aclose(self) -> None:
        """Abort what still runs and free it."""
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._close()

    def _attached(self) -> asyncio.Event:
        if self._event is None:
            self._event = asyncio.Event()
            self._call.waker = _Waker(asyncio.get_running_loop(), self._event, self._call)
        return self._event


class _Waker:
    """Sets an event of an event loop from any thread; a loop that is closed already means that nobody reads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event, call: Call) -> None:
        self._loop = loop
        self._event = event
        self._call = call

    def __call__(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            self._call.abandoned = True

"""Prompts from an async iterable, for the thread that reads prompts: each is awaited on the caller's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamrunner.engine.prompt import Prompt

# How soon the end of the event loop is noticed.
_POLL_S = 0.25
_END = object()


class AsyncPrompts(Iterator["Prompt"]):
    """A plain iterator over it; to be made where the event loop runs, and read from another thread.

    Raises what the iterable raises, and RuntimeError once the event loop is closed.
    """

    def __init__(self, source: AsyncIterable[Prompt]) -> None:
        self._source = aiter(source)
        self._loop = asyncio.get_running_loop()

    def __next__(self) -> Prompt:
        if self._loop.is_closed():
            raise RuntimeError("the event loop of the prompts is closed")
        pulled = asyncio.run_coroutine_threadsafe(self._pull(), self._loop)
        while True:
            try:
                prompt = pulled.result(timeout=_POLL_S)
                break
            except TimeoutError:
                if pulled.done() or self._loop.is_closed():
                    raise
        if prompt is _END:
            raise StopIteration
        return prompt  # type: ignore[no-any-return]

    async def _pull(self) -> Any:
        return await anext(self._source, _END)

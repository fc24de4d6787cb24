"""The last seconds of a worker's flushes, for a server that may lose what it has acknowledged."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamrunner.sinks.log import Flush, Terminal

MAX_BYTES = 64 << 20


class KeptFlush(NamedTuple):
    """One acknowledged flush, when it was, and about how large."""

    flush: Flush
    at_s: float
    num_bytes: int


class KeptFlushes:
    """Flushes of one epoch, oldest first: those of the last `keep_s` seconds, and no more than 64 MiB of them."""

    def __init__(self, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._flushes: deque[KeptFlush] = deque()
        self._num_bytes = 0

    def add(self, flush: Flush) -> None:
        """Keep one more and let the old ones go."""
        if not self._keep_s:
            return
        now = self._clock()
        num_bytes = len(flush.steps) + sum(len(one.payload) for one in flush.terminals)
        self._flushes.append(KeptFlush(flush, now, num_bytes))
        self._num_bytes += num_bytes
        while self._flushes[0].at_s < now - self._keep_s or self._num_bytes > MAX_BYTES:
            self._num_bytes -= self._flushes.popleft().num_bytes
            if not self._flushes:
                return

    def after(self, n: int) -> list[Flush]:
        """Those with a higher number than `n`. The first may be higher than n + 1: then some are gone for good."""
        return [one.flush for one in self._flushes if one.flush.n > n]

    def terminals(self) -> Iterator[Terminal]:
        """Every row's ending in them."""
        return (terminal for one in self._flushes for terminal in one.flush.terminals)

    def clear(self) -> None:
        """Forget all: a new epoch has numbers of its own."""
        self._flushes.clear()
        self._num_bytes = 0

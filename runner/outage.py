"""Telling people that the log takes no writes: once, however many threads wait and however often they try."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrunner.sinks.faults import LogFault

# After a restart these follow each other by themselves: one word about the first is enough.
_EXPECTED = ("no_connection", "loading", "no_library")


class OutageTeller:
    """Says when an outage begins, when its reason becomes one that somebody must act on, and when it is over."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._guard = threading.Lock()
        self._waiting: set[OutageLine] = set()
        self._told: set[str] = set()
        self._began = 0.0

    def line(self) -> OutageLine:
        """One log's end of it: its `wait` and `back` go to that JobLog."""
        return OutageLine(self)

    def wait(self, line: OutageLine, fault: LogFault) -> None:
        """A log waits."""
        with self._guard:
            if not self._waiting:
                self._began = time.monotonic()
                self._told = set()
            self._waiting.add(line)
            news = not self._told or not (fault.code in self._told or fault.code in _EXPECTED)
            self._told.add(fault.code)
        if news:
            self._say(f"the log takes no writes, {fault.message}: waiting, nothing is lost")

    def back(self, line: OutageLine) -> None:
        """A log works again."""
        with self._guard:
            self._waiting.discard(line)
            over = not self._waiting
            seconds = time.monotonic() - self._began
        if over:
            self._say(f"the log takes writes again after {seconds:.1f} s")


class OutageLine:
    """What one JobLog reports to."""

    def __init__(self, teller: OutageTeller) -> None:
        self._teller = teller

    def wait(self, fault: LogFault) -> None:
        """Hear why the log takes no writes."""
        self._teller.wait(self, fault)

    def back(self) -> None:
        """Hear that it does again."""
        self._teller.back(self)

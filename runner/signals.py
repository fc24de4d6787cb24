"""SIGINT, SIGTERM and SIGHUP mean the same: keep all, give the ranges back, exit 75."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopFlag:
    """Set by a signal (or by `set`); threads ask `is_set` between steps. A second signal does not hurry anything."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""

    def install(self) -> None:
        """Catch the signals; only from the main thread."""
        for number in _SIGNALS:
            # nohup ignores SIGHUP on purpose; that stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._caught)

    def set(self, reason: str) -> None:
        """Ask everybody to stop."""
        self.reason = self.reason or reason
        self._event.set()

    def is_set(self) -> bool:
        """Whether somebody asked."""
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Sleep until asked, at most timeout_s."""
        return self._event.wait(timeout_s)

    def _caught(self, number: int, _frame: FrameType | None) -> None:
        self.set(signal.Signals(number).name)

"""Whether the engine still makes steps: a heartbeat proves that the process lives, not that its rows move.

step ── step ── step ──────── limit ───────▶ stalled: the rows go to others ──── step ──▶ works again
                                                                  └──── limit ───▶ hopeless: the process ends
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Loops are compiled and memory is touched during the first step.
_FIRST_STEP_FACTOR = 3
# A longer pause between two looks was not the engine's: the process was stopped, or waited for the log.
_LONGEST_LOOK_S = 1.0


class StallWatch:
    """Told after every look at the engine whether it had work and brought a step. limit_s: for one step."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.stalled = False
        self.limit_s = limit_s
        self._clock = clock
        self._last = clock()
        self._quiet_s = 0.0
        self._has_stepped = False

    @property
    def hopeless(self) -> bool:
        """Whether a stalled engine has stayed so for as long again."""
        return self.stalled and self._quiet_s > 2 * self._allowed_s

    def look(self, *, has_work: bool, stepped: bool) -> None:
        """Count the time without a step while there is work, or while the engine has not come back."""
        now = self._clock()
        elapsed_s = min(now - self._last, _LONGEST_LOOK_S)
        self._last = now
        if stepped:
            self._has_stepped = True
        if stepped or not (has_work or self.stalled):
            self._quiet_s, self.stalled = 0.0, False
            return
        self._quiet_s += elapsed_s
        self.stalled = self._quiet_s > self._allowed_s

    @property
    def _allowed_s(self) -> float:
        return self.limit_s if self._has_stepped else self.limit_s * _FIRST_STEP_FACTOR

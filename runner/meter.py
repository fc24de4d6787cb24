"""Counts what the engine does, and says once an interval where it is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrunner.engine.step import StepOutput


class Meter:
    """Rates over the last interval, totals since this worker began."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._since = clock()
        self._tokens_then = 0
        self._output_tokens = 0
        self._prompt_tokens = 0
        self._last: StepOutput | None = None

    def take(self, step: StepOutput) -> None:
        """Count one step."""
        self._output_tokens += sum(len(one.token_ids) for one in step.outputs)
        self._prompt_tokens += step.num_prompt_tokens
        self._last = step

    def due(self, num_in_flight: int, queue_wait_ms: float = 0.0) -> dict[str, Any] | None:
        """The `progress` data, if an interval has passed and the engine has made a step."""
        now = self._clock()
        elapsed_s = now - self._since
        if self._last is None or elapsed_s < self._interval_s:
            return None
        rate = (self._output_tokens - self._tokens_then) / elapsed_s
        self._since, self._tokens_then = now, self._output_tokens
        return {
            "phase": "running",
            "running": self._last.num_running,
            "waiting": max(num_in_flight - self._last.num_running, 0),
            "prompt_tokens": self._prompt_tokens,
            "output_tokens": self._output_tokens,
            "output_tokens_per_s": round(rate, 1),
            "kv_cache_usage": round(self._last.kv_cache_usage, 4),
            "queue_wait_ms": round(queue_wait_ms, 1),
        }

"""Counts what the engine does, and says once an interval where it is and how long the rest will take.

Totals are of this worker since it joined. Rates are over the last half minute, so that one slow step does not make them
jump and a change still shows.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.runner.forecast import Estimate, Forecast
from streamrunner.runner.lengths import Answer
from streamrunner.runner.row_work import RowWork, prompt_chars, token_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrunner.engine.step import StepOutput
    from streamrunner.runner.flight import RowRun
    from streamrunner.runner.row_work import Kind, WorkSum

WINDOW_S = 30.0
# Wall time over engine time beyond this is a pause or an outage, and says nothing about the rest.
_MAX_SLOWNESS = 5.0


class _Totals(NamedTuple):
    """Where the counters stood at one moment of the clock."""

    at_s: float
    rows: int = 0
    steps: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0


class Meter:
    """Fed by the worker thread with rows and steps; `due` makes a `progress` of them."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._now = _Totals(clock())
        self._window = deque([self._now])
        self._last: StepOutput | None = None
        self._warm = self._now
        self._forecast = Forecast()

    @property
    def num_rows(self) -> int:
        """Rows that have their result."""
        return self._now.rows

    def admitted(self, run: RowRun) -> None:
        """Count a row that goes into the engine."""
        self._forecast.admitted(prompt_chars(run.row), len(run.prompt_token_ids))

    def ended(self, run: RowRun) -> None:
        """Count a row that has its result. A row is one, however many choices it has."""
        self._now = self._now._replace(rows=self._now.rows + 1)
        for answer in _answers(run):
            self._forecast.lengths.ended(answer)

    def take(self, step: StepOutput) -> None:
        """Count one step."""
        output_tokens = sum(len(one.token_ids) for one in step.outputs)
        now = self._now
        self._now = _Totals(
            now.at_s, now.rows, now.steps + 1, now.output_tokens + output_tokens,
            now.prompt_tokens + step.num_prompt_tokens,
        )  # fmt: skip
        self._forecast.take_step(output_tokens, step.num_prompt_tokens, step.num_running, step.step_ms)
        if self._last is None:
            self._warm = self._now._replace(at_s=self._clock())
        self._last = step

    def is_due(self) -> bool:
        """Whether an interval has passed and the engine has made a step."""
        return self._last is not None and self._clock() - self._window[-1].at_s >= self._interval_s

    def due(
        self,
        in_flight: Sequence[RowRun] = (),
        num_sequences: int = 0,
        waiting: dict[Kind, WorkSum] | None = None,
        queue_wait_ms: float = 0.0,
    ) -> dict[str, Any] | None:
        """The `progress` data if it is due. waiting: the job's open rows beside `in_flight`, None where unknown."""
        if self._last is None or not self.is_due():
            return None
        then, now = self._slide()
        elapsed_s = now.at_s - then.at_s
        estimate = self._estimate(in_flight, waiting, then, now)
        return {
            "phase": "running",
            "running": self._last.num_running,
            "waiting": max(num_sequences - self._last.num_running, 0),
            "rows": now.rows,
            "in_flight_rows": len(in_flight),
            "in_flight_tokens": sum(len(choice.token_ids) for run in in_flight for choice in run.choices),
            "prompt_tokens": now.prompt_tokens,
            "output_tokens": now.output_tokens,
            "rows_per_s": round((now.rows - then.rows) / elapsed_s, 3),
            "prompt_tokens_per_s": round((now.prompt_tokens - then.prompt_tokens) / elapsed_s, 1),
            "output_tokens_per_s": round((now.output_tokens - then.output_tokens) / elapsed_s, 1),
            "kv_cache_usage": round(self._last.kv_cache_usage, 4),
            "queue_wait_ms": round(queue_wait_ms, 1),
            "eta_s": None if estimate is None else round(estimate.total_s, 1),
            "drain_s": None if estimate is None else round(estimate.drain_s, 1),
        }

    def _slide(self) -> tuple[_Totals, _Totals]:
        """The window's first and last totals."""
        self._now = self._now._replace(at_s=self._clock())
        self._window.append(self._now)
        while len(self._window) > 2 and self._now.at_s - self._window[1].at_s >= WINDOW_S:
            self._window.popleft()
        return self._window[0], self._now

    def _estimate(
        self, in_flight: Sequence[RowRun], waiting: dict[Kind, WorkSum] | None, then: _Totals, now: _Totals
    ) -> Estimate | None:
        cost = self._forecast.pace.cost()
        if waiting is None or cost is None:
            return None
        # Not the first step, which compiles.
        then = max(then, self._warm)
        engine_ms = cost.of(
            now.steps - then.steps, now.output_tokens - then.output_tokens, now.prompt_tokens - then.prompt_tokens
        )
        slowness = min((now.at_s - then.at_s) * 1000 / engine_ms, _MAX_SLOWNESS) if engine_ms > 0 else 1.0
        unread = sum(len(run.prompt_token_ids) for run in in_flight if not any(one.token_ids for one in run.choices))
        running = [answer for run in in_flight for answer in _answers(run, only_open=True)]
        return self._forecast.estimate(waiting, running, unread, slowness)


def _answers(run: RowRun, *, only_open: bool = False) -> list[Answer]:
    limit = token_limit(run.params.max_tokens)
    kind = RowWork(prompt_chars(run.row), run.params.n, limit).kind
    return [Answer(kind, len(one.token_ids), limit) for one in run.choices if not (only_open and one.finish_reason)]

"""Progress for whoever sits at the terminal: rows, tokens, rate, time left.

Live on a terminal, a line now and then elsewhere. Everything goes to stderr: stdout belongs to results. Rows only ever
move forward and end at 100 %.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

from streamrunner.runner.summary import estimate_s
from streamrunner.runner.terminal import clean

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress, TaskID

    from streamrunner.runner.fold import JobState

_PLAIN_EVERY_S = 5.0
_RATE_TOKENS = 200


class Display:
    """Shows a job's state; `update` as often as one likes, `say` for a line of its own."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._live = not quiet and sys.stderr.isatty()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._next_plain = time.monotonic() + _PLAIN_EVERY_S
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, message: str) -> None:
        """One line above the progress."""
        if self._quiet:
            return
        if self._progress is not None:
            self._progress.console.print(clean(message), markup=False, emoji=False, highlight=False)
        else:
            sys.stderr.write(clean(message) + "\n")
            sys.stderr.flush()

    def update(self, state: JobState, phase: str = "") -> None:
        """Show where the job is; `phase` names what goes on while no row can move."""
        if self._quiet or not state.num_rows:
            return
        facts = describe(state, phase)
        if self._live:
            self._update_bar(state, facts)
        elif time.monotonic() >= self._next_plain and facts != self._shown:
            self._next_plain, self._shown = time.monotonic() + _PLAIN_EVERY_S, facts
            self.say(f"{state.finished_rows}/{state.num_rows} rows  {facts}")

    def _update_bar(self, state: JobState, facts: str) -> None:
        if self._progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns: tuple[Any, ...] = (
                BarColumn(bar_width=30), MofNCompleteColumn(), TextColumn("rows"), TextColumn("{task.fields[facts]}"),
                TimeElapsedColumn(),
            )  # fmt: skip
            self._progress = Progress(*columns, console=Console(stderr=True), refresh_per_second=4)
            self._task = self._progress.add_task("", total=state.num_rows, facts="")
            self._progress.start()
        if self._task is not None:
            self._progress.update(self._task, completed=state.finished_rows, facts=facts)


def describe(state: JobState, phase: str) -> str:
    """The facts beside the bar."""
    alive = [worker.progress for worker in state.workers.values() if worker.alive and worker.progress]
    if not alive:
        return phase or "waiting for a worker"
    rate = sum(one["output_tokens_per_s"] for one in alive)
    running = sum(one["running"] for one in alive)
    made = sum(one["output_tokens"] for one in alive)
    # The first steps after a start are prefill: their rate says nothing about the rest.
    known = made >= _RATE_TOKENS
    eta = estimate_s(state.open_rows, state.completed, state.completion_tokens, rate) if known else None
    left = "" if eta is None else f"  ~{eta:.0f} s left"
    failed = f"  {state.failed} failed" if state.failed else ""
    return f"{running} running  {made} tokens  {rate:.0f} tok/s{left}{failed}"

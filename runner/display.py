"""Progress for whoever sits at the terminal: rows, tokens, rate, time left.

Live on a terminal, a line now and then elsewhere. Everything goes to stderr: stdout belongs to results. Rows only ever
move forward and end at 100 %.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

from streamrunner.runner.summary import eta_s, phase_of, rates_of
from streamrunner.runner.terminal import clean
from streamrunner.runner.units import format_seconds

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress, TaskID

    from streamrunner.runner.fold import JobState

_PLAIN_EVERY_S = 5.0
_WIDE, _NARROW = 100, 60


class Display:
    """Shows a job's state; `update` as often as one likes, `say` for a line of its own, `finish` at the end."""

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
            return
        try:
            sys.stderr.write(clean(message) + "\n")
            sys.stderr.flush()
        except BrokenPipeError:
            # Nobody listens any more (`runner submit job.yaml 2>&1 | head`); the job is not at fault.
            self._quiet = True

    def update(self, state: JobState, phase: str = "") -> None:
        """Show where the job is; `phase` names what goes on while no row can move."""
        if self._quiet or not state.num_rows:
            return
        facts = describe(state, phase)
        if self._live:
            self._update_bar(state, facts)
        elif time.monotonic() >= self._next_plain:
            self._say_plain(state, facts)

    def finish(self, state: JobState) -> None:
        """Show where the job stands now that nothing more comes: all rows of one that has ended."""
        if self._quiet or not state.num_rows:
            return
        facts = f"{state.output_tokens} tokens" + _failed(state)
        if self._live and self._progress is not None:
            self._update_bar(state, facts)
        elif self._shown:
            self._say_plain(state, facts)

    def _say_plain(self, state: JobState, facts: str) -> None:
        line = f"{state.finished_rows}/{state.num_rows} rows  {facts}"
        if line != self._shown:
            self.say(line)
            self._next_plain, self._shown = time.monotonic() + _PLAIN_EVERY_S, line

    def _update_bar(self, state: JobState, facts: str) -> None:
        if self._progress is None:
            self._progress = _make_progress()
            self._task = self._progress.add_task("", total=state.num_rows, completed=state.finished_rows, facts=facts)
            self._progress.start()
        if self._task is not None:
            self._progress.update(self._task, completed=state.finished_rows, facts=facts)


class Counting:
    """Progress of something that goes through rows before there is a job: `add` rows as they are done."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._next_plain = self._began + _PLAIN_EVERY_S
        self._progress = _make_progress() if sys.stderr.isatty() else None
        self._task = self._progress.add_task("", total=total, facts=what) if self._progress is not None else None

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def add(self, rows: int) -> None:
        """Count rows that are done."""
        self._done += rows
        now = time.monotonic()
        rate = self._done / max(now - self._began, 1e-6)
        facts = f"{self._what}  {rate:.0f} rows/s  ~{format_seconds((self._total - self._done) / max(rate, 1e-6))} left"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._done, facts=facts)
        elif now >= self._next_plain:
            self._next_plain = now + _PLAIN_EVERY_S
            sys.stderr.write(f"{self._done}/{self._total} rows  {facts}\n")


def _make_progress() -> Progress:
    """A bar that never wraps: on a narrow terminal the bar goes first, then the end of the facts."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    console = Console(stderr=True)
    columns: list[Any] = [] if console.width < _NARROW else [BarColumn(30 if console.width >= _WIDE else 10)]
    cut = Column(no_wrap=True, overflow="ellipsis")
    columns.append(TextColumn("{task.completed}/{task.total} rows  {task.fields[facts]}", table_column=cut))
    if console.width >= _NARROW:
        columns.append(TimeElapsedColumn())
    return Progress(*columns, console=console, refresh_per_second=4)


def describe(state: JobState, phase: str) -> str:
    """The facts beside the bar."""
    alive = [worker.progress for worker in state.workers.values() if worker.alive]
    working = [one for one in alive if one.get("phase") == "running"]
    if not working:
        return phase or phase_of(alive) or "waiting for a worker"
    rates, left = rates_of(working), eta_s(working)
    time_left = "" if left is None else f"  ~{format_seconds(left)} left"
    return (
        f"{rates['running']} running  {state.output_tokens} tokens  {rates['output_tokens_per_s']:.0f} tok/s"
        f"{time_left}{_failed(state)}"
    )


def _failed(state: JobState) -> str:
    return f"  {state.failed} failed" if state.failed else ""

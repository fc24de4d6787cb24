"""A writer whose appends can be switched off while it works, and a core whose steps are timed."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

from streamrunner.runner.writer import LogWriter, Pending

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrunner.engine.core import EngineCore
    from streamrunner.engine.step import StepOutput
    from streamrunner.runner.flight import RowRun
    from streamrunner.sinks.wire import StepDelta

MODES = ("off", "results", "steps")


class SwitchedWriter(LogWriter):
    """off: nothing is appended. results: no tokens. steps: everything. Rows must not end while tokens are left out."""

    mode: ClassVar[str] = "steps"

    def add_deltas(self, run: RowRun, deltas: list[StepDelta]) -> None:
        """Tokens, in mode steps alone."""
        if self.mode == "steps":
            super().add_deltas(run, deltas)

    def flush(self, in_flight: list[RowRun]) -> None:
        """Nothing goes out in mode off."""
        if self.mode == "off":
            self._pending = Pending()
        super().flush(in_flight)


class TimedCore:
    """Hands on to a core, and notes when each step began."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self.max_model_len = core.max_model_len
        self._began: list[float] = []
        self._last: StepOutput | None = None
        self._stepped = threading.Condition()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self) -> StepOutput:
        """The core's."""
        began = time.perf_counter()
        output = self._core.step()
        with self._stepped:
            self._began.append(began)
            self._last = output
            self._stepped.notify_all()
        return output

    def wait_until(self, condition: Callable[[StepOutput], bool]) -> None:
        """Until a step is like that."""
        with self._stepped:
            self._stepped.wait_for(lambda: self._last is not None and condition(self._last))

    def take_times(self, count: int) -> list[float]:
        """From the start of one step to that of the next, in s, for the next `count` steps."""
        with self._stepped:
            start = len(self._began)
            self._stepped.wait_for(lambda: len(self._began) > start + count)
            times = self._began[start : start + count + 1]
        return [after - before for before, after in itertools.pairwise(times)]

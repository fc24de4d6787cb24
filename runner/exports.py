"""All outputs of a job at once: what keeps one of them from being written does not keep the others."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.exporter import Exporter
from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrunner.runner.job import JobContext
    from streamrunner.sinks.server import LogServer

_POLL_S = 0.1


class Exports:
    """One exporter for each output of the job, started together."""

    def __init__(self, job: JobContext, server: LogServer) -> None:
        self._exporters = [Exporter(job, server, output) for output in job.spec.outputs]
        self._started: list[Exporter] = []
        self._faults: list[SinkError | RunnerError] = []

    def start(self, patience_s: float = 0.0) -> None:
        """Begin to write all, waiting so long for one that another process writes.

        Raises SinkError if one is not to be had; then none is left running.
        """
        deadline = time.monotonic() + patience_s
        try:
            for exporter in self._exporters:
                _start(exporter, deadline)
                self._started.append(exporter)
        except SinkError:
            with contextlib.suppress(SinkError, RunnerError):
                self.finish()
            raise

    def start_free(self) -> None:
        """Begin to write those that no other process writes; what keeps others from starting is told by `finish`."""
        for exporter in self._exporters:
            try:
                exporter.start()
                self._started.append(exporter)
            except SinkError as error:
                if error.code != "output_locked":
                    self._faults.append(error)

    def finish(self, deadline_s: Callable[[], float | None] = lambda: None) -> None:
        """Wait until all have what the log holds. Raises the first fault, once all have ended.

        deadline_s: asked again and again for how long to wait at most from its first answer on; None is without limit.
        """
        for exporter in self._started:
            exporter.ask_to_finish()
        began: float | None = None
        while any(exporter.running for exporter in self._started):
            limit = deadline_s()
            began = time.monotonic() if began is None and limit is not None else began
            if limit is not None and began is not None and time.monotonic() - began > limit:
                break
            time.sleep(_POLL_S)
        for exporter in self._started:
            if fault := exporter.fault_at_end():
                self._faults.append(fault)
        if self._faults:
            raise self._faults[0]


def _start(exporter: Exporter, deadline: float) -> None:
    while True:
        try:
            return exporter.start()
        except SinkError as error:
            if error.code != "output_locked" or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)

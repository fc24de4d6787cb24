"""Copies results from the log to an output file while the job runs, each row exactly once through any kill.

It follows the log on its own connection and never slows the writer. The file says which rows it has (`sinks.jsonl`),
so a new exporter reads the log from the start and skips those.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.fold import JobState
from streamrunner.runner.results import ResultLine, open_row_lines, result_lines
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.jsonl import JsonlFile, RowAttempt
from streamrunner.sinks.reader import LogReader
from streamrunner.sinks.wire import LogEntry

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import redis

    from streamrunner.runner.job import JobContext
    from streamrunner.sinks.server import LogServer

_POLL_MS = 500
_RETRY_S = 0.5


class Exporter:
    """Exports one job to one file, in a thread of its own until the job ends or `finish` is called."""

    def __init__(self, job: JobContext, server: LogServer, path: Path) -> None:
        self._job = job
        self._server = server
        self.path = path
        self.fault: SinkError | RunnerError | None = None
        self._state = JobState()
        self._finish = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"export-{path.name}", daemon=True)

    def start(self) -> None:
        """Open the file and begin to follow the log. Raises SinkError at once if the file is not to be had."""
        self._file = JsonlFile(self.path, self._job.job_id.removeprefix("job_"))
        self._thread.start()

    def finish(self, timeout_s: float = 60.0) -> None:
        """Write what the log holds by now, and stop. Raises SinkError if the file could not be written, and RunnerError
        if the input is gone that names the rows which share their job's ending.
        """
        self._finish.set()
        self._thread.join(timeout_s)
        if self.fault is not None:
            raise self.fault
        if self._thread.is_alive():
            raise SinkError(
                "output_unfinished", f"{self.path} is behind the log: run the same command again to complete it"
            )

    def _run(self) -> None:
        try:
            with self._file as file:
                self._follow(file)
        except (SinkError, RunnerError) as error:
            self.fault = error
        except OSError as error:
            self.fault = SinkError("output_unwritable", f"{self.path} cannot be written: {error.strerror}")

    def _follow(self, file: JsonlFile) -> None:
        from redis.exceptions import RedisError

        while True:
            try:
                client = self._server.client(blocking=True)
                self._read_to_the_end(file, client)
                return
            except RedisError as error:
                # The server is gone or loads: the worker revives it; this reader folds again from its last entry.
                if self._finish.wait(_RETRY_S):
                    raise SinkError(
                        "log_unreachable", f"the log went away during the export to {self.path}: {error}"
                    ) from error

    def _read_to_the_end(self, file: JsonlFile, client: redis.Redis) -> None:
        reader = LogReader(client, self._job.keys)
        self._state = JobState()
        while not self._state.ended:
            finishing = self._finish.is_set()
            entries = [item.entry for item in reader.poll(None if finishing else _POLL_MS)]
            log_entries = [entry for entry in entries if isinstance(entry, LogEntry)]
            lines = result_lines(client, self._job.keys, self._job.job_id, log_entries)
            for entry in log_entries:
                self._state.apply(entry)
            _append(file, lines)
            if finishing and not entries:
                return
        _append(file, open_row_lines(client, self._job.keys, self._job.job_id, self._state, self._job.spec))


def _append(file: JsonlFile, lines: Iterable[ResultLine]) -> None:
    new: list[ResultLine] = []
    for line in lines:
        if RowAttempt(line.row, line.attempt) not in file.written:
            file.written.add(RowAttempt(line.row, line.attempt))
            new.append(line)
    if new:
        file.append(one.line for one in new)
        file.sync()

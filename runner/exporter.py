"""Copies results from the log to an output while the job runs, each row exactly once through any kill.

It follows the log on its own connection and never slows the writer. The output says itself which rows it has, so an
exporter that starts reads the log from the beginning, puts the output right (`settle`), and then follows (`advance`).
"""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.outputs import export_to, open_output, output_place
from streamrunner.runner.result_feed import ResultFeed
from streamrunner.runner.retention import ExportBeat
from streamrunner.runner.selection import Selection
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.outputs.append_file import AppendFile

if TYPE_CHECKING:
    from array import array

    import redis

    from streamrunner.runner.job import JobContext
    from streamrunner.runner.spec import OutputSpec
    from streamrunner.sinks.outputs.parts import PartsFolder
    from streamrunner.sinks.server import LogServer

_POLL_MS = 500
_RETRY_S = 0.5
_DISK_RETRY_S = 5.0
# Faults of an output that an attempt later may not meet.
_PASSING = frozenset({"output_changed", "output_unwritable"})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Exporter:
    """Exports one job to one output, in a thread of its own until the job ends or `finish` is called."""

    def __init__(self, job: JobContext, server: LogServer, output: OutputSpec) -> None:
        self._job = job
        self._server = server
        self._output = output
        self.place = output_place(job, output)
        required = [output_place(job, one) for one in job.spec.outputs]
        self._beat = ExportBeat(job, server, self.place, required)
        self.fault: SinkError | RunnerError | None = None
        self._target: AppendFile | PartsFolder | None = None
        self._finish = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"export-{output.path}", daemon=True)

    def start(self) -> None:
        """Open the output and begin to follow the log. Raises SinkError at once if it is not to be had."""
        try:
            self._target = open_output(self._job, self._output)
        except OSError as error:
            raise self._unwritable(error) from error
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the thread is at work."""
        return self._thread.is_alive()

    def ask_to_finish(self) -> None:
        """Let the thread write what the log holds by now, and end."""
        self._finish.set()

    def fault_at_end(self) -> SinkError | RunnerError | None:
        """What kept the output from being complete: the disk, a lost log, an input that is gone, or too little time."""
        if self.fault is None and self.running:
            return SinkError(
                "output_unfinished", f"{self.place} is behind the log: run the same command again to complete it"
            )
        return self.fault

    def finish(self) -> None:
        """Write what the log holds by now, and stop. Raises SinkError if the output could not be written, and
        RunnerError if the input is gone that names the rows which share their job's ending.
        """
        self.ask_to_finish()
        self._thread.join()
        if fault := self.fault_at_end():
            raise fault

    def _run(self) -> None:
        try:
            self._write_patiently()
        except (SinkError, RunnerError) as error:
            self.fault = error

    def _write_patiently(self) -> None:
        """A disk may be full for a while, a file deleted: what is missing is written from the log once it can be."""
        while True:
            is_last_try = self._finish.is_set()
            try:
                with self._target or open_output(self._job, self._output) as target:
                    self._follow(target)
                return
            except OSError as error:
                fault = self._unwritable(error)
            except SinkError as error:
                if error.code not in _PASSING:
                    raise
                fault = error
            self._target = None
            if is_last_try:
                raise fault
            self._finish.wait(_DISK_RETRY_S)

    def _unwritable(self, error: OSError) -> SinkError:
        safe = "Its results are safe in the log"
        if error.errno in _FULL:
            return SinkError(
                "output_disk_full",
                f"{self.place} is incomplete: {error.strerror}. {safe}: make room and run the same command again",
            )
        return SinkError(
            "output_unwritable",
            f"{self.place} cannot be written: {error.strerror}. {safe}: mend that, or give `outputs` another path, and "
            "run the same command again",
        )

    def _follow(self, target: AppendFile | PartsFolder) -> None:
        from redis.exceptions import RedisError

        while True:
            try:
                self._read_to_the_end(target, self._server.client(blocking=True))
                return
            except RedisError as error:
                # The server is gone or loads: the worker revives it; this reader folds again from the beginning.
                if self._finish.wait(_RETRY_S):
                    raise SinkError(
                        "log_unreachable", f"the log went away during the export to {self.place}: {error}"
                    ) from error

    def _read_to_the_end(self, target: AppendFile | PartsFolder, client: redis.Redis) -> None:
        feed = ResultFeed(client, self._job.keys)
        export = export_to(target, self._output, feed)
        export.settle()
        self._tell(feed, target, now=True)
        while not feed.ended:
            is_finishing = self._finish.is_set()
            applied = feed.poll(None if is_finishing else _POLL_MS)
            if applied is not None:
                export.advance(applied)
            elif is_finishing:
                break
            self._tell(feed, target, now=False)
        self._tell(feed, target, now=True)

    def _tell(self, feed: ResultFeed, target: AppendFile | PartsFolder, *, now: bool) -> None:
        if not isinstance(target, AppendFile):
            return  # results that parts need may not leave the log: `spec` refuses that
        file = target

        def written() -> array[int]:
            file.sync()
            return file.packed

        self._beat.tell(feed, Selection(self._output.rows, self._output.order), written, now=now)

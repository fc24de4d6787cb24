"""One process that lends its engine to jobs that others submitted: `runner worker`.

It adds itself to a job whether or not somebody works on it already; the log shares out the ranges and knows who lives.
Output files are not its business: the process that submitted the job, or a later `submit`, writes them.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from streamrunner.engine.errors import EngineError
from streamrunner.runner.errors import ExitCode, RunnerError
from streamrunner.runner.session import STOP_S, WorkerPart
from streamrunner.runner.settle import settle
from streamrunner.runner.submission import PREFIX, find_job
from streamrunner.runner.watcher import live_workers
from streamrunner.sinks.directory import JobDirectory, OpenJob
from streamrunner.sinks.errors import LogUnreachable, SinkError
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import JobLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrunner.runner.display import Display
    from streamrunner.runner.job import JobContext
    from streamrunner.runner.session import SessionOptions
    from streamrunner.runner.signals import StopFlag
    from streamrunner.sinks.server import LogServer

T = TypeVar("T")

_IDLE_S = 1.0
_POLL_S = 0.1
# How often a worker looks for a more urgent job.
_LOOK_S = 1.0


class WorkerService:
    """Works on open jobs, by priority and then age, or on one job only (`wanted`, as `JobDirectory.find` takes it).

    A job that cannot run here (no such model or input on this machine, no memory) is named and left to others; only
    where it is the `wanted` one its error is raised.
    """

    def __init__(
        self, server: LogServer, options: SessionOptions, stop: StopFlag, display: Display, wanted: str | None = None
    ) -> None:
        self._server = server
        self._options = options
        self._stop = stop
        self._display = display
        self._wanted = None if wanted is None else JobDirectory(server.client(), PREFIX).find(wanted).job_id
        self._refused: set[str] = set()
        self._said = ""

    def run(self, *, exit_when_idle: bool) -> ExitCode:
        """Work until a signal (STOPPED); OK once the wanted job has ended, or no job is open and that is enough.

        Raises SinkError if the log stays unreachable, and whatever keeps the wanted job from running here.
        """
        while not self._stop.is_set():
            found = self._patiently(self._find_open)
            if found is not None:
                self._work_on(found)
            elif not self._stop.is_set():
                if exit_when_idle or self._patiently(self._wanted_ended):
                    return ExitCode.OK
                self._say_once("no job to work on: waiting for one")
                self._stop.wait(_IDLE_S)
        return ExitCode.STOPPED

    def _patiently(self, question: Callable[[JobDirectory], T]) -> T | None:
        """Ask until the log answers; None if a signal came first."""
        deadline = time.monotonic() + self._options.log_timeout_s
        while not self._stop.is_set():
            try:
                return self._ask(question)
            except LogUnreachable as error:
                if time.monotonic() > deadline:
                    raise
                self._say_once(f"note: {error.message}")
            self._stop.wait(_IDLE_S)
        return None

    def _ask(self, question: Callable[[JobDirectory], T]) -> T:
        from redis.exceptions import ConnectionError as Disconnected
        from redis.exceptions import TimeoutError as TimedOut

        try:
            return question(JobDirectory(self._server.client(), PREFIX))
        except (Disconnected, TimedOut, OSError) as error:
            self._server.revive()
            raise LogUnreachable(f"the log at {self._server.address} does not answer: {error}") from error

    def _find_open(self, directory: JobDirectory) -> OpenJob | None:
        """The job to work on next: with rows to be had before one without, then by priority, then the oldest."""
        found = [one for one in directory.open_jobs() if self._is_for_us(one) and not self._settle(one)]
        if len(found) < 2:
            return found[0] if found else None
        return max(found, key=lambda one: (directory.has_claimable(one.job_id), one.priority))

    def _is_for_us(self, job: OpenJob) -> bool:
        return job.job_id == self._wanted or (self._wanted is None and job.job_id not in self._refused)

    def _settle(self, job: OpenJob) -> bool:
        """Whether an open job has no work: it is paused, or being cancelled. What should have ended is ended."""
        client: Any = self._server.client()
        keys = JobKeys(job.job_id, PREFIX)
        log = partial(JobLog, self._server, keys, "worker", patience_s=1.0)
        if settle(job.meta, int(client.time()[0]) * 1000, lambda: bool(live_workers(client, keys)), log):
            return True
        return job.meta.get("paused") == "1" or job.meta["status"] == "cancelling"

    def _has_better(self, current: OpenJob) -> bool:
        """Whether a more urgent job than this one has rows to be had."""
        if self._wanted is not None:
            return False
        try:
            return self._ask(partial(self._find_better, current))
        except LogUnreachable:
            return False  # the worker meets the same outage, and has the patience for it

    def _find_better(self, current: OpenJob, directory: JobDirectory) -> bool:
        jobs = directory.open_jobs()
        priority = next((one.priority for one in jobs if one.job_id == current.job_id), current.priority)
        better = [one for one in jobs if one.priority > priority and self._is_for_us(one) and not self._settle(one)]
        return any(directory.has_claimable(one.job_id) for one in better)

    def _wanted_ended(self, directory: JobDirectory) -> bool:
        return self._wanted is not None and "ended" in directory.meta(self._wanted)

    def _say_once(self, message: str) -> None:
        if message != self._said:
            self._display.say(message)
        self._said = message

    def _work_on(self, found: OpenJob) -> None:
        job_id = found.job_id
        try:
            job = find_job(self._server.client(), job_id)
            self._say_once(f"{job_id} {job.spec.name}: working on it")
            self._lend_to(found, job)
        except (RunnerError, EngineError, SinkError) as error:
            if self._stop.is_set() and isinstance(error, SinkError):
                # A log that fails while we stop is no news: the lease runs out by itself.
                self._display.say(f"note: {error.message}")
                return
            if self._wanted is not None or isinstance(error, LogUnreachable) or error.code == "engine_stalled":
                raise
            self._refused.add(job_id)
            self._display.say(f"{job_id} cannot run here and is left to others: {error.message} [{error.code}]")

    def _lend_to(self, found: OpenJob, job: JobContext) -> None:
        part = WorkerPart(job, self._server, self._options, self._stop, self._display)
        part.start()
        next_look, leaves = time.monotonic() + _LOOK_S, False
        while part.running and not self._stop.is_set():
            part.wait(_POLL_S)
            if not leaves and time.monotonic() >= next_look:
                next_look = time.monotonic() + _LOOK_S
                leaves = self._has_better(found)
                if leaves:
                    part.leave_early()
        if self._stop.is_set():
            self._display.say(f"{self._stop.reason}: keeping all that is done …")
            part.wait(STOP_S)
        part.settle()
        how = "stopped" if self._stop.is_set() else "paused" if part.paused else "done"
        how = "left for a more urgent job" if part.yielded else how
        self._display.say(f"{job.job_id} {job.spec.name}: {how}")

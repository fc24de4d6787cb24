"""One process's part in a job: it is the worker if nobody else is, and a watcher that takes over otherwise.

    main thread     display, signals                 worker thread   engine loop, feed, writer (`worker`)
    beat thread     keeps the lease (`lease`)        export threads  one per output file (`exporter`)

All threads are daemons: a model that is still loading must not hold up an exit within 10 s of a signal.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.runner.exports import Exports
from streamrunner.runner.fingerprint import numerics_fingerprint
from streamrunner.runner.lease import LeaseKeeper, new_worker_id
from streamrunner.runner.outage import OutageTeller
from streamrunner.runner.phase import phase_progress
from streamrunner.runner.settle import settle
from streamrunner.runner.watcher import Watcher, live_workers
from streamrunner.sinks.directory import JobDirectory
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.locks import WorkerLock, is_worker_dead
from streamrunner.sinks.log import JobLog

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.runner.display import Display
    from streamrunner.runner.fold import JobState
    from streamrunner.runner.job import JobContext
    from streamrunner.runner.signals import StopFlag
    from streamrunner.runner.worker import Outcome, Worker
    from streamrunner.sinks.server import LogServer

_POLL_MS = 250
# What a worker needs to finish its step, flush and leave; then the process goes without it (exit within 10 s).
STOP_S = 8.0
_TAKEOVER_EVERY_S = 1.0
# Runners that start at the same moment, or see the same death, settle within this who works.
_RACE_S = 10.0
_GOES_ON = ("validating", "in_progress")


class SessionOptions(NamedTuple):
    """Where this process keeps its things, and how long it waits for an unreachable log."""

    data_dir: Path
    log_timeout_s: float


class Session:
    """Brings one submitted job to its end, or as far as this process may."""

    def __init__(
        self, job: JobContext, server: LogServer, options: SessionOptions, stop: StopFlag, display: Display
    ) -> None:
        self._job = job
        self._server = server
        self._options = options
        self._stop = stop
        self._display = display
        self._outage = OutageTeller(display.say).line()
        self._watcher = Watcher(server, job.keys, patience_s=options.log_timeout_s, should_stop=stop.is_set)
        self._race_over = time.monotonic() + _RACE_S

    @property
    def state(self) -> JobState:
        """The job as far as this process has read its log."""
        return self._watcher.state

    def run(self) -> JobState:
        """Work or watch until the job has ended, is paused, or a signal came. Raises what made the worker fail."""
        self._catch_up()
        self._settle()
        while not (self._watcher.state.ended or self._stop.is_set()):
            if self._others_alive():
                self._watch()
            elif self._work():
                break
        self._display.finish(self._watcher.state)
        return self._watcher.state

    def export(self) -> None:
        """Complete the outputs from the log alone."""
        exports = Exports(self._job, self._server)
        exports.start(patience_s=_RACE_S)
        exports.finish(self._time_to_stop)

    def _time_to_stop(self) -> float | None:
        return STOP_S if self._stop.is_set() else None

    # ── watching ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _others_alive(self) -> bool:
        """Whether a worker holds the job; those whose lock file is free are declared dead at once."""
        alive = self._log("cli").ask(lambda client: live_workers(client, self._job.keys))
        dead = [worker for worker in alive if is_worker_dead(self._options.data_dir, worker)]
        for worker in dead:
            self._log("cli").lost(worker, "its process is gone")
        return len(alive) > len(dead)

    def _watch(self) -> None:
        self._display.say("another runner has this job: attached to it, and taking over if it goes away")
        next_check = 0.0
        while not (self._stop.is_set() or self._watcher.state.ended):
            self._show("")
            if time.monotonic() >= next_check:
                next_check = time.monotonic() + _TAKEOVER_EVERY_S
                self._settle()
                if not self._others_alive() and not self._watcher.state.paused:
                    self._race_over = time.monotonic() + _RACE_S
                    return
        if self._watcher.state.ended:
            self._export_if_free()

    def _export_if_free(self) -> None:
        """The worker may have died between the job's end and the last line of its output."""
        exports = Exports(self._job, self._server)
        exports.start_free()
        exports.finish(self._time_to_stop)

    # ── working ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> bool:
        """Be the worker; True if the job was paused under it."""
        exports = self._take_outputs()
        if exports is None:
            return False
        part = WorkerPart(self._job, self._server, self._options, self._stop, self._display)
        part.start()
        while part.running:
            self._show(part.phase)
            if self._stop.is_set():
                self._display.say(f"{self._stop.reason}: keeping all that is done …")
                part.wait(STOP_S)
                break
            if part.halted:
                part.abandon()
                break
        part.settle()
        self._settle()
        self._catch_up()
        exports.finish(self._time_to_stop)
        return part.paused

    def _take_outputs(self) -> Exports | None:
        """The outputs, held by this process; None where another runner that started at the same moment has them.

        That one is about to join; one that has ended the job is writing the last lines. Either is seen in the log soon.
        """
        exports = Exports(self._job, self._server)
        try:
            exports.start()
        except SinkError as error:
            if error.code != "output_locked" or time.monotonic() > self._race_over:
                raise
            self._show("")
            return None
        return exports

    def _settle(self) -> None:
        """End the job if it ought to have ended and no worker does it: a cancel, a limit or a deadline."""
        from redis.exceptions import RedisError

        client: Any = self._server.client()
        keys = self._job.keys
        try:
            meta = JobDirectory(client, keys.prefix).meta(keys.job_id)
            now_ms = int(client.time()[0]) * 1000
            if settle(meta, now_ms, lambda: bool(live_workers(client, keys)), lambda: self._log("submit")):
                self._catch_up()
        except (RedisError, OSError, SinkError):
            return  # who works or watches meets the same outage, and has the patience for it

    def _show(self, phase: str) -> None:
        self._watcher.poll(_POLL_MS)
        self._display.update(self._watcher.state, phase)

    def _catch_up(self) -> None:
        while self._watcher.poll(None):
            pass

    def _log(self, by: str) -> JobLog:
        return JobLog(
            self._server, self._job.keys, by, patience_s=self._options.log_timeout_s, should_stop=self._stop.is_set,
            on_wait=self._outage.wait, on_back=self._outage.back,
        )  # fmt: skip


class WorkerPart:
    """The worker thread: joins, loads the model, runs, and leaves in order."""

    def __init__(
        self, job: JobContext, server: LogServer, options: SessionOptions, stop: StopFlag, display: Display
    ) -> None:
        self.phase = "starting"
        self.paused = self.yielded = False
        self._worker: Worker | None = None
        self._is_abandoned = self._leaves_early = False
        self._job = replace(job, data_dir=options.data_dir)
        self._server = server
        self._options = options
        self._stop = stop
        self._display = display
        self._fault: BaseException | None = None
        self._left = False
        self._worker_id = new_worker_id()
        self._outages = OutageTeller(display.say)
        self._lock = WorkerLock(options.data_dir, self._worker_id)
        self._lease = LeaseKeeper(self._worker_id, self._log(patience_s=2.0), self._introduction())
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)

    @property
    def running(self) -> bool:
        """Whether the thread is at work."""
        return self._thread.is_alive()

    @property
    def halted(self) -> bool:
        """Whether there is nothing left to do for it while it still loads its model: the job is paused or over."""
        control = self._lease.control
        return self._worker is None and (control.get("paused") or control.get("status") not in (*_GOES_ON, None))

    def abandon(self) -> None:
        """Do not wait for the model that loads."""
        self.paused = bool(self._lease.control.get("paused"))
        self._is_abandoned = True

    def leave_early(self) -> None:
        """Take no more rows, and stop once those in hand have their ending."""
        self._leaves_early = True
        if self._worker is not None:
            self._worker.leave_early()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Give the thread time to end."""
        self._thread.join(timeout_s)

    def settle(self) -> None:
        """After the thread ended or ran out of time: give the lease back if that is still to do, raise its fault."""
        self._lease.stop()
        if not self._left:
            self._leave_for_it()
        self._lock.close()
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        try:
            self._join_and_work()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which reports it
            self._fault = error

    def _join_and_work(self) -> None:
        log = self._log(patience_s=self._options.log_timeout_s)
        joined = self._lease.join(log)
        if joined["s"] != "OK":
            self._left = True
            return
        from streamrunner.runner.engine import start_engine

        engine = start_engine(self._job, self._options.data_dir / "cache", self._say_phase)
        if self._stop.is_set() or self._is_abandoned:
            return
        self.phase = "compiling, and reading the first prompts"
        self._lease.tell(phase_progress(self.phase))
        self._worker = worker = engine.worker(
            self._job, log, self._server.client(), self._lease, self._stop.is_set, self._display.say
        )
        if self._leaves_early:
            worker.leave_early()
        outcome = worker.run(joined)
        if not worker.stalled:
            engine.close()
        self._finish(worker, outcome)

    def _finish(self, worker: Worker, outcome: Outcome) -> None:
        from streamrunner.runner.worker import Outcome

        self.paused, self.yielded = outcome is Outcome.PAUSED, outcome is Outcome.YIELDED
        if outcome is not Outcome.ENDED:
            worker.stop(self._stop.reason or ("paused" if self.paused else "a more urgent job"))
        self._left = True

    def _leave_for_it(self) -> None:
        try:
            self._lease.leave(self._log(patience_s=1.0), self._stop.reason or ("paused" if self.paused else "stopped"))
        except (SinkError, RuntimeError):
            return  # never joined, or no log to tell: the lease runs out by itself

    def _say_phase(self, phase: str) -> None:
        self.phase = phase
        self._display.say(f"{phase} …")
        self._lease.tell(phase_progress(phase))

    def _log(self, *, patience_s: float) -> JobLog:
        line = self._outages.line()
        return JobLog(
            self._server, self._job.keys, self._worker_id, patience_s=patience_s,
            should_stop=self._stop.is_set, on_wait=line.wait, on_back=line.back,
        )  # fmt: skip

    def _introduction(self) -> dict[str, object]:
        import socket

        fingerprint = numerics_fingerprint(self._job.spec.engine)
        return {"host": socket.gethostname(), "pid": os.getpid(), "fingerprint": fingerprint}

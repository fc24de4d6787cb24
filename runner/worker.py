"""The worker: claims rows, keeps the engine full, and writes what comes out, until the job ends or it must stop.

    feed ──rows──▶ engine thread ──StepOutput──▶ (bounded queue) ──▶ this thread ──flush──▶ log
      ▲                                                                  │
      └────────────── claims, one range ahead of the engine ─────────────┘

One thread owns rows, text and writes, so nothing here is locked. Whatever the worker does not get to write is
recomputed by the next one from the tokens that are durable.
"""

from __future__ import annotations

import enum
import queue
import time
from typing import TYPE_CHECKING, Any

from streamrunner.engine.loop import EngineLoop, LoopEnd
from streamrunner.runner.errors import ExitCode, RunnerError
from streamrunner.runner.feed import Feed
from streamrunner.runner.meter import Meter
from streamrunner.runner.runs import Runs
from streamrunner.runner.writer import LeaseGone, LogWriter
from streamrunner.sinks.log import JobLog, Reply, claimed_range

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from streamrunner.engine.step import StepOutput
    from streamrunner.engine.tokenizer import Tokenizer
    from streamrunner.runner.job import JobContext
    from streamrunner.runner.lease import LeaseKeeper

# How many sequences wait in the engine beyond those that run: enough that it never starves between two flushes.
_AHEAD = 16
_CLAIM_RETRY_S = 0.5
# Followers get this long to read the tokens of an ended job; its results and history stay.
_STEPS_TTL_MS = 3_600_000


class Outcome(enum.Enum):
    """Why a worker's run returned."""

    ENDED = "ended"
    STOPPED = "stopped"
    PAUSED = "paused"


class Worker:
    """Runs one job with one engine. `run` returns when the job has ended, is paused, or `should_stop` says so."""

    def __init__(
        self,
        job: JobContext,
        *,
        log: JobLog,
        client: redis.Redis,
        lease: LeaseKeeper,
        loop: EngineLoop,
        tokenizer: Tokenizer,
        max_model_len: int,
        should_stop: Callable[[], bool],
    ) -> None:
        self._job = job
        self._log = log
        self._lease = lease
        self._loop = loop
        self._should_stop = should_stop
        self._feed = Feed(job, log, client)
        self._writer = LogWriter(job, log, lease, self._row_closed, tokenizer.token)
        self._runs = Runs(job, loop, tokenizer, max_model_len, self._writer)
        self._meter = Meter(job.spec.events.progress_interval_s)
        self._max_in_flight = job.spec.engine.max_num_seqs + _AHEAD
        self._next_claim = 0.0

    def run(self, joined: Reply) -> Outcome:
        """Work until there is a reason to stop. `joined` is the reply of the join that gave the lease.

        Raises SinkError if the log stays unreachable, RunnerError if the engine died.
        """
        self._reconcile(joined)
        while True:
            outcome = self._standing()
            if outcome is not None:
                return outcome
            self._refill()
            for step in self._next_steps():
                self._take_step(step)
            self._report()
            if self._writer.due:
                self._flush()

    def stop(self, reason: str) -> None:
        """Keep all that is done: flush the last steps and give the lease back. The log may refuse; then it expires."""
        for step in self._drain():
            self._take_step(step)
        self._flush()
        self._lease.leave(self._log, reason)

    # ── when to stop ────────────────────────────────────────────────────────────────────────────────────────────────

    def _standing(self) -> Outcome | None:
        if self._should_stop():
            return Outcome.STOPPED
        if self._lease.faulted.is_set():
            self._rejoin()
        status = self._lease.control.get("status")
        if status == "cancelling":
            return self._end("cancelled", "cancelled by request")
        if self._lease.control.get("paused"):
            return Outcome.PAUSED
        if status not in ("in_progress", "validating", None):
            return Outcome.ENDED
        if self._writer.open_rows == 0:
            return self._end("completed", "")
        return None

    def _end(self, status: str, reason: str) -> Outcome | None:
        for step in self._drain():
            self._take_step(step)
        self._flush()
        reply = self._log.end(status, reason)
        self._lease.observe(reply)
        if reply["s"] == "OPEN":
            self._writer.open_rows = int(reply["open"])
            if not self._runs.in_flight:
                # A server that lost its tail has rows open again that were done: the join tells which.
                self._lease.faulted.set()
            return None
        if self._job.spec.events.retention == "live":
            self._log.expire_steps(_STEPS_TTL_MS)
        return Outcome.ENDED

    # ── rows in ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _refill(self) -> None:
        while self._runs.num_sequences < self._max_in_flight:
            claimed = self._feed.take()
            if claimed is not None:
                self._runs.admit(claimed)
            elif not self._claim():
                return

    def _claim(self) -> bool:
        if time.monotonic() < self._next_claim:
            return False
        reply = self._feed.claim(self._lease.lease)
        self._lease.observe(reply)
        if reply["s"] == "OK":
            return True
        if reply["s"] in ("EXPIRED", "FENCED"):
            self._lease.faulted.set()
        self._next_claim = time.monotonic() + _CLAIM_RETRY_S
        if reply["s"] == "NONE" and not self._runs.in_flight:
            # Nothing to claim and nothing in flight: every row may have its ending (a resumed job does at once).
            self._end("completed", "")
        return False

    # ── steps out ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _next_steps(self) -> list[StepOutput]:
        try:
            first = self._loop.outputs.get(timeout=self._job.spec.events.flush_ms / 1000)
        except queue.Empty:
            return []
        if isinstance(first, LoopEnd):
            raise RunnerError("engine_died", f"the engine stopped: {first.error or 'closed'}", ExitCode.INTERNAL)
        return [first, *self._drain()]

    def _drain(self) -> list[StepOutput]:
        """What the engine has put out by now; its end, if it comes, is left to the next wait."""
        steps: list[StepOutput] = []
        while True:
            try:
                item = self._loop.outputs.get_nowait()
            except queue.Empty:
                return steps
            if isinstance(item, LoopEnd):
                self._loop.outputs.put(item)
                return steps
            steps.append(item)

    def _take_step(self, step: StepOutput) -> None:
        self._meter.take(step)
        self._runs.take_step(step)

    # ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _report(self) -> None:
        progress = self._meter.due(self._runs.num_sequences)
        if progress is not None:
            self._writer.add_event("progress", progress)

    def _flush(self) -> None:
        rejoined = True
        while rejoined:
            try:
                self._writer.flush(self._runs.in_flight)
            except LeaseGone:
                rejoined = self._rejoin()
            else:
                return

    def _row_closed(self, range_id: str, row: int, _verdict: Any) -> None:
        # CLOSED and STALE too: either way the row is no longer this worker's to finish.
        self._feed.close(range_id, row)

    def _rejoin(self) -> bool:
        """Acquire the lease anew and append all that is in flight again; False if the job has ended meanwhile."""
        reply = self._lease.join(self._log)
        if reply["s"] != "OK":
            self._lease.faulted.clear()
            return False
        held = {one.id: one for one in map(claimed_range, reply["held"] or ())}
        self._writer.rejoined(held)
        taken = self._runs.drop(lambda run: run.range not in held or held[run.range].claim != run.claim)
        if taken:
            message = (
                f"{len(taken)} rows went to another worker while this one was away; what it had for them is dropped"
            )
            self._writer.add_event("notice", {"code": "rows_taken_over", "message": message})
        self._reconcile(reply)
        self._runs.append_again()
        return True

    def _reconcile(self, joined: Reply) -> None:
        """Bring the ranges this worker believes to hold in line with those the log says it holds."""
        held = [claimed_range(one) for one in joined["held"] or ()]
        claims = {one.id: one.claim for one in held}
        for range_id, mine in list(self._feed.held.items()):
            if claims.get(range_id) != mine.claim:
                self._feed.drop(range_id)
        known = {run.row.index for run in self._runs.in_flight} | self._writer.pending_rows
        for one in held:
            self._feed.adopt(one, [*one.previous, self._lease.worker], skip=known)

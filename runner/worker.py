"""The worker: claims rows, keeps the engine full, and writes what comes out, until the job ends or it must stop.

    feed ──rows──▶ engine thread ──StepOutput──▶ (bounded queue) ──▶ this thread ──flush──▶ log
      ▲                                                                  │
      └────────────── claims, one range ahead of the engine ─────────────┘

One thread owns rows, text and writes, so nothing here is locked. Whatever the worker does not get to write is
recomputed by the next one from the tokens that are durable.
"""

from __future__ import annotations

import enum
import threading
import time
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from streamrunner.runner.errors import ExitCode, RunnerError
from streamrunner.runner.feed import Feed
from streamrunner.runner.ids import new_ulid
from streamrunner.runner.limits import Breach, Tally, find_breach
from streamrunner.runner.meter import Meter
from streamrunner.runner.open_work import OpenWork
from streamrunner.runner.ownership import Ownership
from streamrunner.runner.runs import Runs
from streamrunner.runner.settings import LiveSettings
from streamrunner.runner.stall import StallWatch
from streamrunner.runner.step_queue import StepQueue
from streamrunner.runner.writer import LeaseGone, LogWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from streamrunner.engine.loop import EngineLoop
    from streamrunner.engine.step import StepOutput
    from streamrunner.engine.tokenizer import Tokenizer
    from streamrunner.runner.flight import RowRun
    from streamrunner.runner.job import JobContext
    from streamrunner.runner.lease import LeaseKeeper
    from streamrunner.runner.row_work import Kind, WorkSum
    from streamrunner.runner.stop_rules import Fired
    from streamrunner.sinks.log import JobLog, Reply

# How many sequences wait in the engine beyond those that run: enough that it never starves between two flushes.
_AHEAD = 16
_CLAIM_RETRY_S = 0.5
# Followers get this long to read the tokens of an ended job; its results and history stay.
_STEPS_TTL_MS = 3_600_000
# So many ranges in a row that cannot be read, and this machine leaves the job to others.
_MAX_GIVEN_BACK = 3


class Outcome(enum.Enum):
    """Why a worker's run returned."""

    ENDED = "ended"
    STOPPED = "stopped"
    PAUSED = "paused"
    YIELDED = "yielded"


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
        say: Callable[[str], None] = lambda _message: None,
    ) -> None:
        self._job = job
        self._log = log
        self._lease = lease
        self._loop = loop
        self._should_stop = should_stop
        self._say = say
        self._feed = Feed(job, log)
        self._writer = LogWriter(job, log, lease, self._row_closed, tokenizer.token)
        self._settings = LiveSettings(client, job.keys, job.spec)
        self._meter = Meter(job.spec.events.progress_interval_s)
        self._runs = Runs(job, loop, tokenizer, max_model_len, self._writer, self._meter, self._look_at)
        self._open_work = OpenWork(client, job.keys, job.spec.sampling)
        self._steps = StepQueue(loop, job.spec.events.flush_ms / 1000)
        self._ownership = Ownership(log, lease, self._feed, self._runs, self._writer)
        self._stall = StallWatch(job.spec.engine.step_timeout_s)
        self._max_running = job.spec.engine.max_num_seqs
        self._next_claim = 0.0
        self._fired: Fired | None = None
        self._leaves_early = threading.Event()

    @property
    def stalled(self) -> bool:
        """Whether the engine hangs in a step; it cannot be closed then."""
        return self._stall.stalled

    def run(self, joined: Reply) -> Outcome:
        """Work until there is a reason to stop. `joined` is the reply of the join that gave the lease.

        Raises SinkError if the log stays unreachable, RunnerError if the engine died (`engine_died`) or hangs for good
        (`engine_stalled`), or if no range of the input can be read here.
        """
        self._ownership.reconcile(joined)
        while True:
            outcome = self._standing()
            if outcome is not None:
                return outcome
            has_claimed = self._refill()
            steps = self._steps.next(may_wait=self._runs.num_sequences > 0 or not has_claimed)
            for step in steps:
                self._take_step(step)
            self._look(stepped=bool(steps))
            self._report()
            if self._writer.due:
                self._flush()

    def stop(self, reason: str) -> None:
        """Keep all that is done: flush the last steps and give the lease back. The log may refuse; then it expires."""
        for step in self._steps.drain():
            self._take_step(step)
        self._flush()
        self._lease.leave(self._log, reason)

    # ── when to stop ────────────────────────────────────────────────────────────────────────────────────────────────

    def _standing(self) -> Outcome | None:
        if self._should_stop():
            return Outcome.STOPPED
        if self._lease.faulted.is_set():
            self._rejoin()
        self._hear()
        status = self._lease.control.get("status")
        if status == "cancelling":
            return self._end("cancelled", "cancelled by request")
        if self._lease.control.get("paused"):
            return Outcome.PAUSED
        if status not in ("in_progress", "validating", None):
            return Outcome.ENDED
        return self._stop_by_itself()

    def _stop_by_itself(self) -> Outcome | None:
        """Rows and rules that end or pause the job, and a more urgent one elsewhere."""
        if self._writer.open_rows == 0:
            return self._end("completed", "")
        breach = self._find_breach()
        if breach is not None:
            return self._end(breach.status, breach.reason, breach.limit)
        if self._fired is not None:
            self._pause(self._fired)
            return None
        if self._leaves_early.is_set() and not self._feed.held and not self._writer.pending_rows:
            return Outcome.YIELDED
        return None

    def leave_early(self) -> None:
        """Claim no more rows, and come to an end once those in hand have theirs; from any thread."""
        self._leaves_early.set()

    def _hear(self) -> None:
        """Take in what was asked for since: other settings, and rows that were cancelled."""
        closed = self._settings.hear(int(self._lease.control.get("ctl", 0)), self._rows_in_hand)
        if closed:
            for run in self._runs.drop(lambda run: run.row.index in closed):
                self._feed.close(run.range, run.row.index)
            self._feed.discard(closed)

    def _rows_in_hand(self) -> list[int]:
        return [run.row.index for run in self._runs.in_flight] + [one.row.index for one in self._feed.waiting]

    def _find_breach(self) -> Breach | None:
        sums, tokens = self._writer.sums, 0
        if self._settings.limits.max_output_tokens is not None:
            tokens = sum(len(choice.token_ids) for run in self._runs.in_flight for choice in run.choices)
        clock_ms = int(self._lease.control.get("clock", 0))
        tally = Tally(sums.completed, sums.failed, sums.output_tokens + tokens, self._lease.now_ms, clock_ms)
        return find_breach(self._settings.limits, tally)

    def _look_at(self, run: RowRun) -> None:
        """A row is completed: the rules on outputs judge it."""
        self._fired = self._settings.guard.take(run) or self._fired

    def _pause(self, fired: Fired) -> None:
        """Stop the job for somebody to look at these rows; `resume` goes on, with empty windows."""
        self._fired = None
        self._flush()
        if self._writer.open_rows == 0:
            return
        self._say(fired.message)
        self._writer.add_event("notice", {"code": "stop_when", "message": fired.message, "rows": fired.rows})
        self._flush()
        self._lease.observe(self._log.control(new_ulid(), "pause", {"reason": fired.message}))

    def _end(self, status: str, reason: str, limit: str = "") -> Outcome | None:
        for step in self._steps.drain():
            self._take_step(step)
        self._flush()
        reply = self._log.end(status, reason, limit)
        self._lease.observe(reply)
        if reply["s"] == "OPEN":
            self._writer.open_rows = int(reply["open"])
            if not self._runs.in_flight:
                # A server that lost its tail has rows open again that were done: the join tells which.
                self._lease.faulted.set()
            return None
        if self._job.spec.events.retention != "full":
            self._log.expire_steps(_STEPS_TTL_MS)
        return Outcome.ENDED

    # ── rows in ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _refill(self) -> bool:
        """Fill the engine; with one more range at most, so that workers that start together share a small job.

        True if it took one.
        """
        has_claimed = False
        while self._runs.num_sequences < self._max_running + _AHEAD and not self._stall.stalled:
            claimed = self._feed.take()
            if claimed is not None:
                self._runs.admit(claimed)
            elif has_claimed or not self._claim():
                break
            else:
                has_claimed = True
        return has_claimed

    def _claim(self) -> bool:
        """Take more rows, if the log has some for this worker; False if it has to wait."""
        if time.monotonic() < self._next_claim or self._leaves_early.is_set():
            return False
        reply = self._feed.claim(self._lease.lease)
        self._lease.observe(reply)
        if reply["s"] == "OK" and reply["range"] in self._feed.held:
            return True
        self._next_claim = time.monotonic() + _CLAIM_RETRY_S
        if reply["s"] in ("EXPIRED", "FENCED"):
            self._lease.faulted.set()
        elif reply["s"] == "BUSY" and self._runs.num_sequences < self._max_running:
            return self._feed.split(self._lease.lease)
        elif not self._runs.in_flight:
            self._come_to_rest(reply["s"])
        return False

    def _come_to_rest(self, why: str) -> None:
        """Nothing to claim and nothing in flight."""
        if self._feed.unreadable is not None and (why == "NONE" or self._feed.num_given_back >= _MAX_GIVEN_BACK):
            raise self._feed.unreadable
        if why == "NONE":
            # Every row may have its ending (those of a resumed job do at once).
            self._end("completed", "")

    # ── steps out ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _take_step(self, step: StepOutput) -> None:
        self._meter.take(step)
        self._runs.take_step(step)

    def _look(self, *, stepped: bool) -> None:
        """Give the rows of an engine that hangs to others, and begin anew once it moves again."""
        before = self._stall.stalled
        # A hung engine whose rows were taken from it makes no step any more, but takes that in once it is back.
        is_back = before and self._loop.num_unread == 0
        self._stall.look(has_work=self._runs.num_sequences > 0, stepped=stepped or is_back)
        if self._stall.hopeless:
            message = f"the engine has made no step for {2 * self._stall.limit_s:g} s: start a new process"
            raise RunnerError("engine_stalled", message, ExitCode.INTERNAL)
        if self._stall.stalled and not before:
            self._give_all_back()
        elif before and not self._stall.stalled:
            self._notice("engine_resumed", "the engine makes steps again: claiming rows anew")

    def _give_all_back(self) -> None:
        self._flush()
        dropped = self._runs.drop(lambda _run: True)
        message = (
            f"the engine has made no step for {self._stall.limit_s:g} s (`engine.step_timeout`): "
            f"its {len(dropped)} rows in flight are left to others"
        )
        self._say(message)
        self._log.give_back(self._lease.lease, list(self._feed.held), {"code": "engine_stalled", "message": message})
        for range_id in list(self._feed.held):
            self._feed.drop(range_id)

    # ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _report(self) -> None:
        if self._meter.is_due():
            in_flight, num_sequences = self._runs.in_flight, self._runs.num_sequences
            progress = self._meter.due(in_flight, num_sequences, self._waiting(in_flight), self._loop.queue_wait_ms)
            if progress is not None:
                self._writer.add_event("progress", progress)

    def _waiting(self, in_flight: list[RowRun]) -> dict[Kind, WorkSum] | None:
        """The open rows beside those in flight; None while the server does not answer."""
        try:
            return self._open_work.waiting((run.range for run in in_flight), self._meter.num_rows)
        except (RedisError, OSError):
            return None

    def _notice(self, code: str, message: str) -> None:
        self._say(message)
        self._writer.add_event("notice", {"code": code, "message": message})

    def _flush(self) -> None:
        rejoined = True
        while rejoined:
            try:
                self._writer.flush(self._runs.in_flight)
            except LeaseGone:
                rejoined = self._rejoin()
            else:
                rejoined = False
        self._ownership.follow_splits()
        if self._job.spec.events.retention != "full":
            self._ownership.forget_predecessors()

    def _row_closed(self, range_id: str, row: int, _verdict: Any) -> None:
        # CLOSED and STALE too: either way the row is no longer this worker's to finish.
        self._feed.close(range_id, row)

    def _rejoin(self) -> bool:
        """Acquire the lease anew and append all that is in flight again; False if the job has ended meanwhile."""
        num_taken = self._ownership.rejoin()
        if num_taken is None:
            self._say("the job ended while this worker was away: what it had in flight is dropped")
            return False
        if num_taken:
            message = (
                f"{num_taken} rows went to another worker while this one was away; what it had for them is dropped"
            )
            self._notice("rows_taken_over", message)
        return True

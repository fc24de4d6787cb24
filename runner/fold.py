"""A job's state: nothing but a fold over its log, so any prefix of the log plus the rest gives the same state.

completed + failed + cancelled + expired + open = rows          (checked by `JobState.check`)

Rows that were open when their job ended stay OPEN here while it is ended, and count as its ending says. If the job is
reopened they get that ending for good, but for those that are retried.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streamrunner.sinks.wire import LogEntry

OPEN, COMPLETED, FAILED, CANCELLED, EXPIRED = range(5)
_ROW_EVENTS = {
    "request.completed": COMPLETED,
    "request.failed": FAILED,
    "request.cancelled": CANCELLED,
    "request.expired": EXPIRED,
}
OUTCOME_OF_JOB = {"completed": COMPLETED, "failed": FAILED, "cancelled": CANCELLED, "expired": EXPIRED}
ENDED_STATUSES = frozenset(OUTCOME_OF_JOB)
_COUNTERS = ("", "completed", "failed", "cancelled", "expired")


@dataclass(slots=True)
class WorkerState:
    """What the log last said of one worker."""

    epoch: int
    host: str
    pid: int
    alive: bool = True
    progress: dict[str, Any] = field(default_factory=dict)
    in_flight_tokens: int = 0


@dataclass(slots=True)
class JobState:
    """Everything the log says about one job; `apply` is the only thing that changes it. Times are Unix ms.

    limit: the key of `limits` that ended the job. attempts: of rows that were retried; all others are at their first.
    running_since_ms: when it started, or was last reopened.
    shared_reasons: what a reopened job had ended for, by the outcome that its open rows got from it.
    output_tokens: those of completed rows and of rows in flight, the most there ever were: a worker that dies takes its
    rows in flight out of sight until another has them, and nobody should see tokens disappear that are kept.
    """

    name: str = ""
    status: str = ""
    reason: str | None = None
    limit: str | None = None
    num_rows: int = 0
    rows: bytearray = field(default_factory=bytearray)
    attempts: dict[int, int] = field(default_factory=dict)
    shared_reasons: dict[int, str | None] = field(default_factory=dict)
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    in_flight_tokens: int = 0
    output_tokens: int = 0
    paused: bool = False
    pause_reason: str | None = None
    submitted_ms: int = 0
    started_ms: int = 0
    running_since_ms: int = 0
    ended_ms: int = 0
    spec: dict[str, Any] = field(default_factory=dict)
    submission: dict[str, Any] = field(default_factory=dict)
    workers: dict[str, WorkerState] = field(default_factory=dict)
    notices: list[dict[str, Any]] = field(default_factory=list)
    last_seq: int = 0
    last_ms: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to the job, unless somebody retries rows of it."""
        return self.status in ENDED_STATUSES

    @property
    def finished_rows(self) -> int:
        """Rows that have their ending."""
        return self.completed + self.failed + self.cancelled + self.expired

    @property
    def open_rows(self) -> int:
        """Rows that still need one."""
        return self.num_rows - self.finished_rows

    def apply(self, entry: LogEntry) -> None:
        """Take in one entry; entries at or before the last one are ignored, so repeats are harmless."""
        if entry.seq <= self.last_seq:
            return
        self.last_seq, self.last_ms = entry.seq, entry.time
        if entry.type in _ROW_EVENTS:
            self._close_row(entry)
        elif handler := _HANDLERS.get(entry.type):
            handler(self, entry)

    def set_in_flight(self, worker: WorkerState, num_tokens: int) -> None:
        """Note how many tokens a worker has made for rows that have not ended."""
        self.in_flight_tokens += num_tokens - worker.in_flight_tokens
        worker.in_flight_tokens = num_tokens
        self.output_tokens = max(self.output_tokens, self.completion_tokens + self.in_flight_tokens)

    def check(self) -> None:
        """Assert the module's equation, and that row states and counters agree."""
        if self.ended and self.open_rows:
            raise AssertionError(f"job ended with {self.open_rows} rows unaccounted for")
        for outcome, name in enumerate(_COUNTERS):
            counted, held = getattr(self, name, 0), self.rows.count(outcome)
            if name and not self.ended and counted != held:
                raise AssertionError(f"{held} rows are {name}, the counter says {counted}")

    def _close_row(self, entry: LogEntry) -> None:
        row, outcome = entry.data["row"], _ROW_EVENTS[entry.type]
        if self.rows[row] != OPEN:
            return
        self.rows[row] = outcome
        self.count(outcome, 1)
        if outcome == COMPLETED:
            usage = entry.data["usage"]
            self.prompt_tokens += usage["prompt_tokens"]
            self.completion_tokens += usage["completion_tokens"]
            if worker := self.workers.get(entry.by):
                self.set_in_flight(worker, max(worker.in_flight_tokens - usage["completion_tokens"], 0))

    def count(self, outcome: int, change: int) -> None:
        """Add to the counter of an outcome; open rows have none."""
        name = _COUNTERS[outcome]
        setattr(self, name, getattr(self, name) + change)


def _submitted(state: JobState, entry: LogEntry) -> None:
    data = entry.data
    state.name, state.num_rows, state.spec, state.submission = data["name"], data["rows"], data["spec"], data
    state.rows = bytearray(state.num_rows)
    state.status, state.submitted_ms = "validating", entry.time


def _started(state: JobState, entry: LogEntry) -> None:
    state.status, state.started_ms, state.running_since_ms = "in_progress", entry.time, entry.time


def _paused(state: JobState, entry: LogEntry) -> None:
    state.paused, state.pause_reason = True, entry.data.get("reason")


def _resumed(state: JobState, entry: LogEntry) -> None:
    state.paused, state.pause_reason = False, None
    _changed(state, entry)


def _changed(state: JobState, entry: LogEntry) -> None:
    state.spec = {**state.spec, **entry.data.get("changes", {})}


def _cancel_requested(state: JobState, _entry: LogEntry) -> None:
    state.status, state.paused = "cancelling", False


def _ended(state: JobState, entry: LogEntry) -> None:
    counts = entry.data["counts"]
    state.status, state.reason, state.ended_ms = entry.data["status"], entry.data["reason"], entry.time
    state.limit, state.paused = entry.data.get("limit"), False
    state.completed, state.failed = counts["completed"], counts["failed"]
    state.cancelled, state.expired = counts["cancelled"], counts["expired"]
    for worker in state.workers.values():
        worker.alive = False
        state.set_in_flight(worker, 0)


def _reopened(state: JobState, entry: LogEntry) -> None:
    outcome = OUTCOME_OF_JOB[state.status]
    state.shared_reasons[outcome] = state.reason
    state.rows = state.rows.replace(bytes([OPEN]), bytes([outcome]))
    state.status, state.reason, state.limit, state.ended_ms = "in_progress", None, None, 0
    state.running_since_ms = entry.time


def _retried(state: JobState, entry: LogEntry) -> None:
    row = entry.data["row"]
    state.count(state.rows[row], -1)
    state.rows[row] = OPEN
    state.attempts[row] = entry.data["attempt"]


def _joined(state: JobState, entry: LogEntry) -> None:
    data = entry.data
    if before := state.workers.get(data["worker"]):
        state.set_in_flight(before, 0)
    state.workers[data["worker"]] = WorkerState(data["epoch"], data["host"], data["pid"])


def _left(state: JobState, entry: LogEntry) -> None:
    if worker := state.workers.get(entry.data["worker"]):
        worker.alive = False
        state.set_in_flight(worker, 0)


def _progress(state: JobState, entry: LogEntry) -> None:
    if worker := state.workers.get(entry.by):
        worker.progress = entry.data
        state.set_in_flight(worker, entry.data.get("in_flight_tokens", 0))


def _notice(state: JobState, entry: LogEntry) -> None:
    state.notices.append(entry.data)


_HANDLERS: dict[str, Callable[[JobState, LogEntry], None]] = {
    "job.submitted": _submitted,
    "job.started": _started,
    "job.paused": _paused,
    "job.resumed": _resumed,
    "job.changed": _changed,
    "job.cancel_requested": _cancel_requested,
    "job.reopened": _reopened,
    "job.ended": _ended,
    "request.retried": _retried,
    "worker.joined": _joined,
    "worker.preempted": _left,
    "worker.lost": _left,
    "progress": _progress,
    "notice": _notice,
}


def fold(entries: Iterable[LogEntry]) -> JobState:
    """The state after these entries."""
    state = JobState()
    for entry in entries:
        state.apply(entry)
    return state

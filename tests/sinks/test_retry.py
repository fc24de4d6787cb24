"""Rows that get a second life, or an early end, straight on the log: retry and the cancelling of one row."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from streamrunner.runner.fold import OPEN, JobState, fold
from streamrunner.sinks.events import validate_event
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import (
    ClaimedRange,
    Flush,
    JobLog,
    RetriedCounts,
    RetriedRange,
    RowToCancel,
    Terminal,
    WorkerLease,
    claimed_range,
)
from streamrunner.sinks.reader import read_log, read_payloads

if TYPE_CHECKING:
    from streamrunner.sinks.embedded.server import EmbeddedServer
    from streamrunner.sinks.server import LogServer

INFO: dict[str, Any] = {"host": "here", "pid": 1, "fingerprint": {}}
_ids = itertools.count()


class Job:
    """One submitted job of ranges of four rows, with a worker `a` that has claimed them all."""

    def __init__(self, server: LogServer, num_ranges: int = 2, per_range: int = 4) -> None:
        self.server, self.keys = server, JobKeys(f"job_retry{next(_ids)}")
        self.client: Any = server.client()
        self.log = JobLog(server, self.keys, "cli", patience_s=5.0)
        self.per_range, self.num_rows = per_range, num_ranges * per_range
        data = {"name": "t", "rows": self.num_rows, "ranges": num_ranges, "seed": 1, "spec": {"priority": 3}}
        ranges = [{"first": per_range * i, "count": per_range} for i in range(num_ranges)]
        self.log.submit({**data, "identity": {}, "base": "/", "invalid": 0}, self.num_rows, ranges)
        self.next_n: dict[str, int] = {}
        self.lease = self.join("a")
        self.claims: dict[int, ClaimedRange] = {}
        for _ in range(num_ranges):
            claimed = self.claim(self.lease)
            self.claims |= dict.fromkeys(range(claimed.spec["first"], claimed.spec["first"] + per_range), claimed)

    def join(self, worker: str) -> WorkerLease:
        self.next_n[worker] = 1
        return WorkerLease(worker, self.log.join(worker, "t" + worker, INFO)["epoch"], "t" + worker)

    def claim(self, lease: WorkerLease) -> ClaimedRange:
        known = [raw.decode() for raw in self.client.hkeys(self.keys.claims)]
        return claimed_range(self.log.claim(lease, known))

    def finish(self, kind: str, *rows: int, attempt: int = 1, by: WorkerLease | None = None) -> Any:
        """The verdicts on rows that a worker says have ended so, or why it may not say it."""
        lease = by or self.lease
        terminals = [self.terminal(kind, row, self.claims[row], attempt) for row in rows]
        self.next_n[lease.worker] += 1
        reply = self.log.flush(lease, Flush(self.next_n[lease.worker] - 1, b"", "", (), terminals))
        return reply["t"] if reply["s"] == "OK" else reply["s"]

    def terminal(self, kind: str, row: int, claimed: ClaimedRange, attempt: int = 1) -> Terminal:
        data: dict[str, Any] = {
            "row": row, "custom_id": f"c{row}", "attempt": attempt, "range": claimed.id, "claim": claimed.claim
        }  # fmt: skip
        if kind == "completed":
            usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
            data |= {"finish_reasons": ["stop"], "usage": usage}
        else:
            data |= {"error": {"code": "nan_logits", "message": "m", "param": None}}
        return Terminal(row, claimed.id, claimed.claim, f"request.{kind}", data, b"{}", 3, 4)

    def retry(self, *rows: int, cmd: str = "", seq: int | None = None) -> Any:
        """Retry rows as a caller would that has read the whole log."""
        state = self.state()
        counts = [sum(state.rows[row] == outcome for row in rows) for outcome in (2, 3, 4)]
        if state.ended:
            counts[1] += sum(state.rows[row] == OPEN for row in rows)
        ranges = []
        for first, group in itertools.groupby(rows, lambda row: row - row % self.per_range):
            events = [{"row": r, "custom_id": f"c{r}", "attempt": state.attempts.get(r, 1) + 1} for r in group]
            attempts = {str(event["row"]): event["attempt"] for event in events}
            ranges.append(RetriedRange({"first": first, "count": self.per_range, "attempts": attempts}, events))
        last = state.last_seq if seq is None else seq
        return self.log.retry(cmd or f"cmd{next(_ids)}", last, ranges, RetriedCounts(*counts))

    def cancel_row(self, row: int, cmd: str = "", attempt: int = 1) -> Any:
        error = {"code": "request_cancelled", "message": "m", "param": None}
        data = {"row": row, "custom_id": f"c{row}", "attempt": attempt, "range": self.claims[row].id, "error": error}
        return self.log.cancel_row(
            cmd or f"cmd{next(_ids)}", RowToCancel(row, attempt, self.claims[row].id, data, b"{}")
        )

    def state(self) -> JobState:
        """The fold, checked, with every event held against the contract."""
        entries = list(read_log(self.client, self.keys))
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        for entry in entries:
            validate_event(entry.type, entry.data)
        state = fold(entries)
        state.check()
        return state

    def meta(self, *names: str) -> list[int]:
        return [int(value) for value in self.client.hmget(self.keys.meta, *names)]


@pytest.fixture
def job(log_server: LogServer) -> Job:
    return Job(log_server)


def test_a_failed_row_of_a_running_job_is_open_again_in_a_range_of_its_own(job: Job) -> None:
    job.finish("failed", 1, 5, 6)
    assert job.retry(1, 6)["s"] == "OK"
    state = job.state()
    assert (state.failed, state.open_rows, state.attempts) == (1, 7, {1: 2, 6: 2})
    assert job.meta("failed", "completed") == [1, 0]
    first, second = job.claim(job.lease), job.claim(job.lease)
    assert (first.done, second.done) == ("1011", "1101")
    assert (first.spec["attempts"], second.spec["attempts"]) == ({"1": 2}, {"6": 2})
    job.claims |= {1: first, 6: second}
    assert all(isinstance(one, int) for one in job.finish("completed", 1, 6, attempt=2))
    assert all(isinstance(one, int) for one in job.finish("completed", 0, 2, 3, 4, 7))
    assert job.log.end("completed")["s"] == "OK"
    assert job.state().completed == 7
    assert job.client.xpending(job.keys.work, "workers")["pending"] == 0


def test_a_retried_row_no_longer_belongs_to_whoever_has_its_old_range(job: Job) -> None:
    old = job.claims[1]
    job.finish("failed", 1)
    job.retry(1)
    assert job.finish("completed", 1) == ["STALE"]
    heir = job.join("b")
    job.log.leave(job.lease, "test")
    again = claimed_range(job.log.claim(heir, []))
    assert (again.id, again.done) == (old.id, "0100"), "its other rows go on, this one does not"


def test_retrying_twice_is_one_attempt_and_an_outdated_caller_is_told(job: Job) -> None:
    job.finish("failed", 1, 2)
    seen = job.state().last_seq
    first = job.retry(1, cmd="one")
    assert job.retry(1, cmd="one")["seq"] == first["seq"]
    assert job.retry(1, 2, cmd="two", seq=seen)["s"] == "STALE"
    assert job.retry(1, cmd="three")["s"] == "STALE", "it is open already"
    assert job.state().attempts == {1: 2}


def test_retrying_rows_of_an_ended_job_reopens_it_for_them_alone(job: Job) -> None:
    job.finish("completed", 0)
    job.finish("failed", 1)
    job.log.control("c", "cancel")
    job.log.end("cancelled", "enough")
    assert job.retry(1, 5)["s"] == "OK"
    state = job.state()
    assert (state.status, state.open_rows, state.cancelled) == ("in_progress", 2, 5)
    assert job.meta("completed", "failed", "cancelled") == [1, 0, 5]
    assert job.finish("completed", 3) == "EXPIRED", "the old worker is fenced off"
    heir = job.join("b")
    first, second = job.claim(heir), job.claim(heir)
    assert (first.done, second.done) == ("1011", "1011")
    assert job.log.claim(heir, [first.id, second.id])["s"] == "NONE"
    job.claims |= {1: first, 5: second}
    job.finish("completed", 1, 5, attempt=2, by=heir)
    assert job.log.end("completed")["s"] == "OK"
    state = job.state()
    assert (state.completed, state.failed, state.cancelled, state.open_rows) == (3, 0, 5, 0)


def test_no_row_of_a_job_that_is_being_cancelled_is_retried(job: Job) -> None:
    job.finish("failed", 1)
    job.log.control("c", "cancel")
    assert job.retry(1)["s"] == "CANCELLING"


def test_rows_of_another_job_are_refused_before_anything_is_written(job: Job) -> None:
    job.finish("failed", 1)
    before = job.state().last_seq
    event = {"row": 99, "custom_id": "c", "attempt": 2}
    with pytest.raises(ResponseError, match="row 99 is outside the job"):
        job.log.retry("x", before, [RetriedRange({"first": 96, "count": 4}, [event])], RetriedCounts(1, 0, 0))
    with pytest.raises(ResponseError, match="cut short"):
        job.log.retry("y", before, [], RetriedCounts(0, 0, 0))
    assert job.state().last_seq == before


def test_a_hundred_thousand_rows_are_retried_in_one_call(embedded: EmbeddedServer) -> None:
    job = Job(embedded, num_ranges=2, per_range=8)
    many = Job(embedded, num_ranges=1, per_range=64)
    many.client.hset(many.keys.meta, mapping={"rows": 100_000, "failed": 100_000})
    ranges = []
    for first in range(0, 100_000, 64):
        rows = range(first, min(first + 64, 100_000))
        events = [{"row": row, "custom_id": f"c{row}", "attempt": 2} for row in rows]
        spec = {"first": first, "count": len(rows), "attempts": {str(row): 2 for row in rows}}
        ranges.append(RetriedRange(spec, events))
    many.log.end("failed")
    last = int(many.client.xrevrange(many.keys.log, count=1)[0][0].partition(b"-")[0])
    many.client.hset(many.keys.meta, "failed", 100_000)
    assert many.log.retry("all", last, ranges, RetriedCounts(100_000, 0, 0))["s"] == "OK"
    assert many.client.bitcount(many.keys.done) == 0
    assert many.client.xlen(many.keys.log) == last + 100_001
    assert job.state().status == "in_progress", "others are served again"


def test_one_row_is_cancelled_and_the_rest_goes_on(job: Job) -> None:
    done = job.cancel_row(2)
    assert (done["s"], done["open"]) == ("OK", 7)
    entry = list(read_log(job.client, job.keys))[-1]
    assert (entry.type, entry.data["row"], entry.data["claim"]) == ("request.cancelled", 2, job.claims[2].claim)
    assert read_payloads(job.client, job.keys, [entry]) == {entry.id: b"{}"}
    assert job.finish("completed", 2) == ["CLOSED"]
    state = job.state()
    assert (state.status, state.cancelled, state.open_rows) == ("in_progress", 1, 7)


def test_cancelling_a_row_twice_or_after_its_end_changes_nothing(job: Job) -> None:
    first = job.cancel_row(2, cmd="one")
    assert job.cancel_row(2, cmd="one")["seq"] == first["seq"]
    assert job.cancel_row(2, cmd="two")["s"] == "CLOSED"
    job.finish("completed", 3)
    assert job.cancel_row(3)["s"] == "CLOSED"
    assert job.state().cancelled == 1


def test_a_cancelled_row_can_be_retried_and_its_new_attempt_cancelled(job: Job) -> None:
    job.cancel_row(2)
    assert job.retry(2)["s"] == "OK"
    assert job.cancel_row(2)["s"] == "STALE", "the caller did not know of the retry"
    job.claims[2] = job.claim(job.lease)
    assert job.cancel_row(2, attempt=2)["s"] == "OK"
    assert job.state().cancelled == 1


def test_the_last_row_of_a_range_may_be_a_cancelled_one(job: Job) -> None:
    job.finish("completed", 0, 1, 2)
    job.cancel_row(3)
    assert job.client.xpending(job.keys.work, "workers")["pending"] == 1


def test_workers_read_changed_settings_in_one_place(job: Job) -> None:
    assert job.client.hget(job.keys.meta, "priority") == b"3"
    job.log.control("p", "pause", {"reason": "a look"})
    job.log.control("c", "change", {"changes": {"priority": -2, "limits": {"max_failed": 1}, "engine": {}}})
    assert job.client.hmget(job.keys.meta, "priority", "limits", "engine") == [b"-2", b'{"max_failed":1}', None]
    state = job.state()
    assert (state.paused, state.spec["priority"]) == (True, -2)
    assert job.log.standing() | {"ctl": 0} == {"s": "OK", "status": "in_progress", "paused": True, "ctl": 0}

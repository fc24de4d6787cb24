"""Ranges that change hands while their owner lives: split, given back; and tokens of workers that are gone."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.sinks.events import validate_event
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import ClaimedRange, Flush, JobLog, Terminal, WorkerLease, claimed_range
from streamrunner.sinks.reader import newest_steps, read_log, read_steps
from streamrunner.sinks.wire import StepDelta, encode_deltas

if TYPE_CHECKING:
    from streamrunner.sinks.server import LogServer

INFO = {"host": "here", "pid": 1, "fingerprint": {}}
NOTICE = {"code": "input_missing", "message": "not here"}
_ids = itertools.count()


class Job:
    """Two ranges of eight rows."""

    def __init__(self, server: LogServer) -> None:
        self.keys = JobKeys(f"job_split{next(_ids)}")
        self.client: Any = server.client()
        self.log = JobLog(server, self.keys, "test", patience_s=5.0)
        ranges = [{"first": 8 * i, "count": 8, "uri": "/a", "offset": 10**13 + i} for i in range(2)]
        assert self.log.submit({"name": "t"}, 16, ranges)
        self.numbers: dict[int, int] = {}

    def join(self, worker: str) -> WorkerLease:
        return WorkerLease(worker, self.log.join(worker, "token", INFO)["epoch"], "token")

    def claim(self, lease: WorkerLease, *known: str) -> ClaimedRange:
        return claimed_range(self.log.claim(lease, known))

    def split(self, lease: WorkerLease, cut: int) -> ClaimedRange:
        """Cut the largest range of another worker."""
        return claimed_range(self.log.split(lease, self.log.others(lease)[0], cut))

    def flush(self, lease: WorkerLease, *ended: tuple[ClaimedRange, int], steps: bytes = b"") -> Any:
        """One numbered flush that completes rows of ranges."""
        n = self.numbers[lease.epoch] = self.numbers.get(lease.epoch, 0) + 1
        terminals = [
            Terminal(row, one.id, one.claim, "request.completed", {"row": row}, b"{}", 1, 1) for one, row in ended
        ]
        return self.log.flush(lease, Flush(n, steps, "", (), terminals))

    def pending(self) -> dict[str, str]:
        found = self.client.xpending_range(self.keys.work, "workers", "-", "+", 100)
        return {one["message_id"].decode(): one["consumer"].decode() for one in found}


@pytest.fixture
def job(log_server: LogServer) -> Job:
    return Job(log_server)


def test_an_idle_worker_takes_the_rows_behind_a_cut_and_the_owner_keeps_the_others(job: Job) -> None:
    a, b = job.join("a"), job.join("b")
    first = job.claim(a)
    job.claim(a, first.id)
    assert job.log.claim(b, [])["s"] == "BUSY"
    taken = job.split(b, 5)
    assert (taken.spec["first"], taken.spec["count"], taken.spec["skip"], taken.done) == (5, 3, 5, "000")
    assert taken.spec["offset"] == 10**13
    assert [one.worker for one in taken.previous] == ["a"]
    assert taken.claim > first.claim
    reply = job.flush(a, (first, 4), (first, 5))
    assert isinstance(reply["t"][0], int)
    assert reply["t"][1] == "STALE"
    assert job.flush(b, (taken, 5))["t"] != ["STALE"]


def test_the_owner_learns_of_a_split_from_its_next_reply_once(job: Job) -> None:
    a, b = job.join("a"), job.join("b")
    first = job.claim(a)
    job.claim(a, first.id)
    job.split(b, 6)
    job.split(b, 12)
    assert job.flush(a)["cuts"] == "1-0=6 2-0=12 "
    assert "cuts" not in job.flush(a)
    job.split(b, 4)
    reply = job.flush(a, (first, 0))
    job.numbers[a.epoch] -= 1
    again = job.flush(a, (first, 0))
    assert (again["s"], again["cuts"]) == ("DUP", reply["cuts"])


def test_a_halved_range_is_acknowledged_once_its_own_rows_have_ended(job: Job) -> None:
    a, b = job.join("a"), job.join("b")
    first = job.claim(a)
    job.claim(a, first.id)
    taken = job.split(b, 2)
    job.flush(a, (first, 0), (first, 1))
    assert job.pending() == {"2-0": "a", taken.id: "b"}
    job.flush(b, *((taken, row) for row in range(2, 8)))
    assert job.pending() == {"2-0": "a"}


def test_a_cut_before_the_first_row_takes_the_whole_range(job: Job) -> None:
    a, b = job.join("a"), job.join("b")
    first = job.claim(a)
    job.claim(a, first.id)
    taken = job.split(b, 0)
    assert (taken.spec["first"], taken.spec["count"]) == (0, 8)
    assert first.id not in job.pending()
    assert job.flush(a, (first, 0))["t"] == ["STALE"]


def test_ranges_are_split_only_when_none_is_left_to_claim(job: Job) -> None:
    a, b = job.join("a"), job.join("b")
    job.claim(a)
    assert job.log.split(b, job.log.others(b)[0], 4)["s"] == "FRESH"


@pytest.mark.parametrize("cut", [8, 100])
def test_a_cut_outside_the_range_changes_nothing(job: Job, cut: int) -> None:
    a, b = job.join("a"), job.join("b")
    job.claim(a, job.claim(a).id)
    before = len(list(read_log(job.client, job.keys)))
    assert job.log.split(b, job.log.others(b)[0], cut)["s"] == "STALE"
    assert len(list(read_log(job.client, job.keys))) == before


def test_a_split_of_a_range_that_changed_hands_or_has_no_open_row_left_is_refused(job: Job) -> None:
    a, b, c = job.join("a"), job.join("b"), job.join("c")
    first = job.claim(a)
    job.claim(a, first.id)
    seen = next(one for one in job.log.others(b) if one.id == first.id)
    job.flush(a, *((first, row) for row in (6, 7)))
    assert job.log.split(b, seen, 6)["s"] == "STALE"
    job.log.lost("a", "killed")
    job.claim(c)
    assert job.log.split(b, seen, 4)["s"] == "STALE"


def test_a_split_whose_reply_was_lost_is_found_by_the_next_claim(job: Job) -> None:
    a, b = job.join("a"), job.join("b")
    job.claim(a, job.claim(a).id)
    seen = job.log.others(b)[0]
    taken = claimed_range(job.log.split(b, seen, 4))
    assert job.log.split(b, seen, 4)["s"] == "STALE"
    assert job.claim(b) == taken


def test_a_split_range_can_be_split_again_and_taken_over(job: Job) -> None:
    a, b, c = job.join("a"), job.join("b"), job.join("c")
    job.claim(a, job.claim(a).id)
    taken = job.split(b, 2)
    mine = job.log.others(c)
    third = claimed_range(job.log.split(c, next(one for one in mine if one.id == taken.id), 5))
    assert (third.spec["first"], third.spec["count"], third.spec["skip"]) == (5, 3, 5)
    assert [one.worker for one in third.previous] == ["a", "b"]
    job.log.lost("b", "killed")
    heir = job.claim(c, third.id)
    assert (heir.id, heir.done) == (taken.id, "000")


def test_what_others_hold_is_shown_with_the_most_open_rows_first(job: Job) -> None:
    a, b = job.join("a"), job.join("b")
    first = job.claim(a)
    job.claim(a, first.id)
    job.flush(a, (first, 1))
    assert [(one.id, one.first, one.done) for one in job.log.others(b)] == [
        ("2-0", 8, "0" * 8),
        ("1-0", 0, "01000000"),
    ]
    assert job.log.others(a) == []


def test_a_worker_that_joins_anew_holds_what_splits_left_it(job: Job) -> None:
    a, b = job.join("a"), job.join("b")
    job.claim(a, job.claim(a).id)
    job.split(b, 3)
    held = [claimed_range(one) for one in job.log.join("a", "new", INFO)["held"]]
    assert [one.done for one in held] == ["000", "0" * 8]


def test_a_range_given_back_goes_to_another_worker_and_not_to_its_giver(job: Job) -> None:
    a, b = job.join("a"), job.join("b")
    first = job.claim(a)
    assert job.log.give_back(a, [first.id], NOTICE)["given"] == [first.id]
    assert job.flush(a, (first, 0))["t"] == ["STALE"]
    second = claimed_range(job.log.claim(a, [], [first.id]))
    assert second.id == "2-0"
    assert job.log.claim(a, [second.id], [first.id])["s"] == "NONE"
    taken = job.claim(b)
    assert (taken.id, [one.worker for one in taken.previous]) == (first.id, ["a"])
    assert isinstance(job.flush(b, (taken, 0))["t"][0], int)
    kinds = [entry.type for entry in read_log(job.client, job.keys)]
    assert kinds.count("notice") == 1
    assert "worker.lost" not in kinds


def test_giving_back_twice_or_what_is_not_held_changes_nothing(job: Job) -> None:
    a, b = job.join("a"), job.join("b")
    first = job.claim(a)
    job.log.give_back(a, [first.id], NOTICE)
    job.claim(b)
    before = list(read_log(job.client, job.keys))
    assert job.log.give_back(a, [first.id, "9-0"], NOTICE)["s"] == "OK"
    assert list(read_log(job.client, job.keys)) == before


def test_the_last_adopter_lets_a_dead_workers_tokens_go(job: Job) -> None:
    a = job.join("a")
    first = job.claim(a)
    second = job.claim(a, first.id)
    job.flush(a, steps=encode_deltas([StepDelta(0, first.claim, 0, 0, [5], "x")]))
    assert job.log.forget("a", 60_000)["s"] == "ALIVE"
    job.log.lost("a", "killed")
    b, c = job.join("b"), job.join("c")
    one, two = job.claim(b), job.claim(c)
    job.flush(b, *((one, row) for row in range(8)))
    assert job.log.forget("a", 60_000)["s"] == "HELD", "c may still need them"
    job.flush(c, *((two, row) for row in range(8, 16)))
    assert job.log.forget("a", 60_000)["s"] == "OK"
    assert 0 < job.client.pttl(job.keys.steps("a")) <= 60_000
    assert second.id == two.id


def test_a_worker_that_comes_back_keeps_its_tokens(job: Job) -> None:
    a = job.join("a")
    first = job.claim(a)
    job.flush(a, steps=encode_deltas([StepDelta(0, first.claim, 0, 0, [5], "x")]))
    job.log.lost("a", "slept")
    job.client.pexpire(job.keys.steps("a"), 60_000)
    job.log.join("a", "again", INFO)
    assert job.client.pttl(job.keys.steps("a")) == -1


def test_a_claimer_is_told_where_the_tokens_of_its_rows_begin(job: Job) -> None:
    a = job.join("a")
    for token in range(3):
        job.flush(a, steps=encode_deltas([StepDelta(99, 1, 0, token, [token], "x")]))
    first = job.claim(a)
    job.flush(a, steps=encode_deltas([StepDelta(0, first.claim, 0, 0, [5], "x")]))
    job.log.lost("a", "killed")
    [source] = job.claim(job.join("b")).previous
    entries = list(read_steps(job.client, job.keys, *source))
    assert [delta.row for entry in entries for delta in entry.deltas] == [0]
    assert [one.n for one in newest_steps(job.client, job.keys, "a", 2)] == [4, 3]


def test_events_of_splits_fit_the_contract(job: Job) -> None:
    a, b = job.join("a"), job.join("b")
    job.claim(a, job.claim(a).id)
    job.split(b, 5)
    job.log.give_back(b, ["3-0"], NOTICE)
    entries = [one for one in read_log(job.client, job.keys) if one.type in ("range.claimed", "notice")]
    for entry in entries:
        validate_event(entry.type, entry.data)
    assert entries[-2].data | {"epoch": 0} == {
        "range": "3-0", "claim": 3, "worker": "b", "epoch": 0, "first": 5, "count": 3, "from": "a",
    }  # fmt: skip

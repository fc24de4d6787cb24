"""Flushes on a server that forgets: what was acknowledged and lost is in the log again, once, and is not computed
twice.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.engine.params import SamplingParams
from streamrunner.runner.errors import ExitCode, RunnerError
from streamrunner.runner.flight import RowPlace, RowRun
from streamrunner.runner.job import JobContext
from streamrunner.runner.kept import KeptFlushes
from streamrunner.runner.lease import LeaseKeeper
from streamrunner.runner.rows import Row
from streamrunner.runner.spec import JobSpec
from streamrunner.runner.writer import LeaseGone, LogWriter
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import ClaimedRange, Flush, JobLog, Terminal, claimed_range
from streamrunner.sinks.reader import read_log, read_steps
from streamrunner.sinks.server import ExternalServer
from streamrunner.sinks.wire import StepDelta

sys.path.insert(0, str(Path(__file__).parents[1] / "sinks"))
from redis_process import RedisProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

INFO: dict[str, Any] = {"host": "h", "pid": 1, "fingerprint": {}}
ROWS = 6
ERROR = {"code": "c", "message": "m", "param": None}
PARAMS = SamplingParams()
_ids = itertools.count()


class Desk:
    """A writer with one claimed range, on a server that keeps only what was saved before it is killed."""

    def __init__(self, process: RedisProcess) -> None:
        self.process = process
        self.server = ExternalServer(process.url)
        keys = JobKeys(f"job_gap{next(_ids)}")
        spec = JobSpec.model_validate({"name": "t", "model": "m", "requests": [{"prompt": "x"}]})
        self.job = JobContext(keys.job_id, keys, spec, 7, process.folder, 1700)
        self.log = JobLog(self.server, keys, "w", patience_s=10)
        self.log.submit({"name": "t"}, ROWS, [{"first": 0, "count": ROWS}])
        self.lease = LeaseKeeper("w", JobLog(self.server, keys, "w"), INFO)
        self.lease.join(self.log)
        self.claimed = claimed_range(self.log.claim(self.lease.lease, []))
        self.verdicts: list[tuple[int, Any]] = []
        self.writer = LogWriter(self.job, self.log, self.lease, lambda _, row, v: self.verdicts.append((row, v)), str)
        self.save()

    def save(self) -> None:
        self.process.client().save()

    def lose_what_was_not_saved(self) -> None:
        self.process.restart()

    def write(self, row: int) -> None:
        """One flush: a token of the row, and its ending."""
        made: Any = RowRun(Row(row, f"r{row}", "completion"), self.claimed.id, self.claimed.claim, 1, [1], PARAMS, [])
        self.writer.add_deltas(made, [StepDelta(row, self.claimed.claim, 0, 0, [row], "x")])
        self.writer.fail(RowPlace(row, f"r{row}", 1, self.claimed.id, self.claimed.claim), ERROR)
        self.writer.flush([])

    def held(self) -> dict[str, ClaimedRange]:
        return {one.id: one for one in map(claimed_range, self.lease.join(self.log)["held"])}

    def ended_rows(self) -> list[int]:
        entries = read_log(self.process.client(), self.job.keys)
        return [one.data["row"] for one in entries if one.type.startswith("request.")]

    def step_ids(self) -> list[tuple[int, int]]:
        return [(one.epoch, one.n) for one in read_steps(self.process.client(), self.job.keys, "w")]


@pytest.fixture
def desk(redis_binary: str, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(RedisProcess(redis_binary, tmp_path, appendonly="no"))
    yield made
    made.lease.stop()
    made.process.kill()


@pytest.mark.redis
def test_flushes_of_a_lost_tail_are_sent_again_under_their_numbers(desk: Desk) -> None:
    for row in range(2):
        desk.write(row)
    desk.save()
    for row in range(2, 5):
        desk.write(row)
    desk.lose_what_was_not_saved()
    assert desk.ended_rows() == [0, 1]
    with pytest.raises(LeaseGone, match="GAP"):
        desk.write(5)
    assert desk.ended_rows() == [0, 1, 2, 3, 4, 5]
    assert desk.step_ids() == [(1, n) for n in range(1, 7)]
    assert all(isinstance(verdict, int) for _, verdict in desk.verdicts)
    gens = [entry.gen for entry in read_log(desk.process.client(), desk.job.keys)]
    assert gens == sorted(gens)
    assert gens[-1] == 1, "no id names two entries: what was lost had gen 0"
    epoch = desk.lease.lease.epoch
    desk.held()
    assert desk.lease.lease.epoch > epoch + 100, "epochs of a lost tail are not given out again"


@pytest.mark.redis
def test_endings_come_back_where_the_numbers_are_lost_with_the_join(desk: Desk) -> None:
    """The tail took the lease's renewal too: the worker has to join, and its rows are not computed again."""
    for row in range(3):
        desk.write(row)
    desk.lose_what_was_not_saved()
    desk.process.client().delete(desk.job.keys.lease("w"))
    with pytest.raises(LeaseGone, match="EXPIRED"):
        desk.write(3)
    desk.writer.rejoined(desk.held())
    assert desk.writer.pending_rows == {0, 1, 2, 3}
    desk.writer.flush([])
    assert sorted(desk.ended_rows()) == [0, 1, 2, 3]


@pytest.mark.redis
def test_a_tail_longer_than_what_is_kept_is_left_to_the_join(desk: Desk) -> None:
    for row in range(3):
        desk.write(row)
    desk.writer._kept._flushes.popleft()
    desk.lose_what_was_not_saved()
    with pytest.raises(LeaseGone, match="GAP"):
        desk.write(3)
    assert desk.ended_rows() == []
    desk.writer.rejoined(desk.held())
    desk.writer.flush([])
    assert sorted(desk.ended_rows()) == [1, 2, 3], "row 0 is open: whoever holds the range computes it again"


@pytest.mark.redis
def test_a_claim_that_was_lost_and_given_to_another_is_not_written_under(desk: Desk) -> None:
    """The lost tail held the claim itself; the same range goes to somebody else, and the first owner stays out."""
    other = JobLog(desk.server, desk.job.keys, "b", patience_s=10)
    desk.process.client().hset(desk.job.keys.claims, desk.claimed.id, f"{desk.claimed.claim}|b|")
    other.join("b", "t", INFO)
    desk.write(0)
    assert desk.verdicts == [(0, "STALE")]
    assert desk.ended_rows() == []


@pytest.mark.redis
def test_a_job_that_the_server_has_lost_as_a_whole_is_told_with_the_remedy(desk: Desk) -> None:
    desk.process.client().flushall()
    with pytest.raises(RunnerError, match="appendfsync always") as caught:
        desk.write(0)
    assert (caught.value.code, caught.value.exit_code) == ("job_gone", ExitCode.STOPPED)


@pytest.mark.redis
def test_a_stolen_lease_ends_the_worker_in_words(desk: Desk) -> None:
    desk.log.join("w", "another token", INFO)
    with pytest.raises(RunnerError, match="writes nothing more") as caught:
        desk.write(0)
    assert caught.value.code == "lease_fenced"


@pytest.mark.redis
def test_an_outage_is_a_notice_in_the_log(desk: Desk) -> None:
    client = desk.process.client()
    client.config_set("maxmemory", "1")
    desk.log._on_wait = lambda _: client.config_set("maxmemory", "0")
    desk.write(0)
    desk.write(1)
    [notice] = [one for one in read_log(client, desk.job.keys) if one.type == "notice"]
    assert notice.data["code"] == "log_outage"
    assert "out of memory" in notice.data["message"]


def test_only_the_last_seconds_are_kept() -> None:
    now = [0.0]
    kept = KeptFlushes(10.0, lambda: now[0])
    for n in range(1, 5):
        now[0] = n * 4.0
        kept.add(Flush(n, b"", "", [], []))
    assert [one.n for one in kept.after(0)] == [2, 3, 4]
    assert [one.n for one in kept.after(3)] == [4]


def test_no_more_is_kept_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrunner.runner.kept.MAX_BYTES", 100)
    kept = KeptFlushes(10.0)
    payload = Terminal(0, "1-0", 1, "request.completed", {}, b"x" * 60, 0, 0)
    for n in range(1, 4):
        kept.add(Flush(n, b"", "", [], [payload]))
    assert [one.n for one in kept.after(0)] == [3]
    kept.add(Flush(4, b"y" * 200, "", [], []))
    assert kept.after(0) == []


def test_nothing_is_kept_for_a_server_that_loses_nothing() -> None:
    kept = KeptFlushes(0.0)
    kept.add(Flush(1, b"x", "", [], []))
    assert kept.after(0) == []

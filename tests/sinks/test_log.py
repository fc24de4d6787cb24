from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.sinks.errors import LogUnreachable
from streamrunner.sinks.events import validate_event
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import ClaimedRange, Flush, JobLog, Terminal, WorkerLease, claimed_range
from streamrunner.sinks.reader import read_log, read_payloads, read_steps
from streamrunner.sinks.wire import LogEntry, StepDelta, encode_deltas

if TYPE_CHECKING:
    from streamrunner.sinks.server import LogServer

WORKER_INFO = {"host": "here", "pid": 1, "fingerprint": {"isa": "avx2"}}
_ids = itertools.count()


class Job:
    """One submitted job of `num_ranges` ranges with two rows each, and what a test needs to write to it."""

    def __init__(self, server: LogServer, num_ranges: int = 2) -> None:
        self.server = server
        self.keys = JobKeys(f"job_{next(_ids)}")
        self.client = server.client()
        self.log = JobLog(server, self.keys, "test", patience_s=5.0)
        self.rows = 2 * num_ranges
        data = {
            "name": "t",
            "rows": self.rows,
            "ranges": num_ranges,
            "seed": 1,
            "spec": {},
            "identity": {},
            "base": "/",
            "invalid": 0,
        }
        ranges = [{"first": 2 * i, "count": 2} for i in range(num_ranges)]
        assert self.log.submit(data, self.rows, ranges)
        self.submission = data

    def join(self, worker: str) -> WorkerLease:
        reply = self.log.join(worker, "token-" + worker, WORKER_INFO)
        assert reply["s"] == "OK"
        return WorkerLease(worker, reply["epoch"], "token-" + worker)

    def claim(self, lease: WorkerLease, *known: str) -> ClaimedRange:
        return claimed_range(self.log.claim(lease, known))

    def entries(self) -> list[LogEntry]:
        return list(read_log(self.client, self.keys))

    def types(self) -> list[str]:
        return [entry.type for entry in self.entries()]


def completed(row: int, claimed: ClaimedRange) -> Terminal:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    data = {
        "row": row, "custom_id": f"r{row}", "attempt": 1, "range": claimed.id, "claim": claimed.claim,
        "finish_reasons": ["stop"], "usage": usage,
    }  # fmt: skip
    return Terminal(row, claimed.id, claimed.claim, "request.completed", data, b'{"choices":[]}', 3, 4)


def flush(n: int, *terminals: Terminal, steps: bytes = b"", events: Any = ()) -> Flush:
    return Flush(n, steps, "", events, terminals)


@pytest.fixture
def job(log_server: LogServer) -> Job:
    return Job(log_server)


def test_submitting_twice_makes_one_log(job: Job) -> None:
    assert not job.log.submit(job.submission, job.rows, [])
    assert job.types() == ["job.submitted"]


def test_seqs_are_contiguous_from_one_and_every_event_fits_the_contract(job: Job) -> None:
    lease = job.join("a")
    first, second = job.claim(lease), job.claim(lease, "1-0")
    job.log.flush(
        lease, flush(1, completed(0, first), completed(1, first), events=[("notice", {"code": "c", "message": "m"})])
    )
    job.log.control("cmd", "pause")
    job.log.control("cmd2", "resume")
    job.log.flush(lease, flush(2, completed(2, second), completed(3, second)))
    job.log.end("completed")
    entries = job.entries()
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    for entry in entries:
        validate_event(entry.type, entry.data)
    assert entries[-1].data["counts"] == {"rows": 4, "completed": 4, "failed": 0, "cancelled": 0, "expired": 0}


def test_a_payload_stands_under_the_id_of_its_terminal_event(job: Job) -> None:
    lease = job.join("a")
    claimed = job.claim(lease)
    job.log.flush(lease, flush(1, completed(0, claimed)))
    [terminal] = [entry for entry in job.entries() if entry.type == "request.completed"]
    assert read_payloads(job.client, job.keys, [terminal]) == {terminal.id: b'{"choices":[]}'}


def test_a_resent_flush_changes_nothing_and_gets_its_first_answer(job: Job) -> None:
    lease = job.join("a")
    claimed = job.claim(lease)
    steps = encode_deltas([StepDelta(0, claimed.claim, 0, 0, [5], "x")])
    sent = flush(1, completed(0, claimed), steps=steps)
    first, again = job.log.flush(lease, sent), job.log.flush(lease, sent)
    assert (first["s"], again["s"]) == ("OK", "DUP")
    assert first["t"] == again["t"]
    assert job.types().count("request.completed") == 1
    assert len(list(read_steps(job.client, job.keys, "a"))) == 1


def test_a_skipped_flush_number_is_named(job: Job) -> None:
    lease = job.join("a")
    reply = job.log.flush(lease, flush(3))
    assert (reply["s"], reply["last"]) == ("GAP", 0)


def test_a_row_ends_once_whoever_tries(job: Job) -> None:
    lease = job.join("a")
    claimed = job.claim(lease)
    reply = job.log.flush(lease, flush(1, completed(0, claimed), completed(0, claimed)))
    assert reply["t"][1] == "CLOSED"
    reply = job.log.flush(lease, flush(2, completed(0, claimed), completed(1, claimed)))
    assert reply["t"][0] == "CLOSED"
    assert isinstance(reply["t"][1], int)


def test_two_workers_never_hold_one_range(job: Job) -> None:
    a, b = job.join("a"), job.join("b")
    assert {job.claim(a).id, job.claim(b).id} == {"1-0", "2-0"}
    assert job.log.claim(a, ["1-0"])["s"] == "BUSY"


def test_a_claim_whose_reply_was_lost_is_found_again(job: Job) -> None:
    lease = job.join("a")
    lost, again = job.claim(lease), job.claim(lease)
    assert again == lost
    assert job.types().count("range.claimed") == 1


def test_a_dead_workers_range_is_taken_over_and_its_late_writes_are_refused(job: Job) -> None:
    a = job.join("a")
    mine = job.claim(a)
    job.log.flush(a, flush(1, completed(0, mine)))
    assert job.log.lost("a", "lock free")["s"] == "OK"
    b = job.join("b")
    taken = job.claim(b)
    assert (taken.id, [one.worker for one in taken.previous], taken.done) == (mine.id, ["a"], "10")
    assert taken.claim > mine.claim
    assert job.log.flush(a, flush(2, completed(1, mine)))["s"] == "EXPIRED"
    assert job.log.beat(a)["s"] == "EXPIRED"
    assert job.types().count("worker.lost") == 1


def test_a_zombie_that_joins_anew_learns_what_it_lost_and_what_it_kept(job: Job) -> None:
    a = job.join("a")
    first, second = job.claim(a), job.claim(a, "1-0")
    job.log.lost("a", "stopped")
    b = job.join("b")
    assert job.claim(b).id == first.id
    again = job.log.join("a", "new token", WORKER_INFO)
    held = [claimed_range(one) for one in again["held"]]
    assert [(one.id, one.claim) for one in held] == [(second.id, second.claim)]
    lease = WorkerLease("a", again["epoch"], "new token")
    reply = job.log.flush(lease, flush(1, completed(0, first), completed(2, second)))
    assert reply["t"][0] == "STALE"
    assert isinstance(reply["t"][1], int)


def test_only_the_newest_acquisition_of_a_worker_may_write(job: Job) -> None:
    old = job.join("a")
    job.log.join("a", "other", WORKER_INFO)
    assert job.log.flush(old, flush(1))["s"] == "FENCED"
    assert job.log.beat(old)["s"] == "FENCED"


def test_an_ended_worker_leaves_its_ranges_to_others_at_once(job: Job) -> None:
    a, b = job.join("a"), None
    mine = job.claim(a)
    job.log.leave(a, "SIGTERM")
    b = job.join("b")
    assert job.claim(b).id == mine.id
    assert "worker.preempted" in job.types()
    assert "worker.lost" not in job.types()


def test_a_job_is_not_completed_while_rows_are_open(job: Job) -> None:
    job.join("a")
    reply = job.log.end("completed")
    assert (reply["s"], reply["open"]) == ("OPEN", 4)


def test_a_job_ends_once_and_open_rows_share_its_ending(job: Job) -> None:
    lease = job.join("a")
    claimed = job.claim(lease)
    job.log.flush(lease, flush(1, completed(0, claimed)))
    assert job.log.control("c1", "cancel")["status"] == "cancelling"
    assert job.log.end("cancelled", "by request")["s"] == "OK"
    assert job.log.end("cancelled", "by request")["s"] == "ENDED"
    [ended] = [entry for entry in job.entries() if entry.type == "job.ended"]
    assert ended.data["counts"] == {"rows": 4, "completed": 1, "failed": 0, "cancelled": 3, "expired": 0}
    assert ended.data["reason"] == "by request"
    assert job.log.flush(lease, flush(2, completed(1, claimed)))["t"] == ["ENDED"]
    assert job.log.join("b", "t", WORKER_INFO)["s"] == "ENDED"


def test_the_same_command_twice_is_one_event(job: Job) -> None:
    job.join("a")
    first, again = job.log.control("c1", "cancel"), job.log.control("c1", "cancel")
    assert first["seq"] == again["seq"]
    job.log.control("c2", "cancel")
    assert job.types().count("job.cancel_requested") == 1


def test_a_running_worker_learns_of_a_command_from_its_next_reply(job: Job) -> None:
    lease = job.join("a")
    job.log.control("c1", "pause")
    assert job.log.flush(lease, flush(1))["paused"]
    assert job.log.beat(lease)["paused"]
    assert job.log.claim(lease, [])["s"] == "PAUSED"
    job.log.control("c2", "resume")
    assert not job.log.beat(lease)["paused"]


@pytest.mark.parametrize(
    "bad",
    [
        {"row": 99},
        {"row": -1},
        {"type": "request.vanished"},
        {"payload": b"not json"},
        {"payload": b"[]"},
        {"claim": 1.5},
    ],
)
def test_a_bad_terminal_is_refused_before_anything_is_written(job: Job, bad: dict[str, Any]) -> None:
    from redis.exceptions import ResponseError

    lease = job.join("a")
    claimed = job.claim(lease)
    before = job.entries()
    good = completed(0, claimed)
    with pytest.raises(ResponseError, match="sr_v1"):
        job.log.flush(lease, flush(1, good, completed(1, claimed)._replace(**bad)))
    assert job.entries() == before
    assert job.client.getbit(job.keys.done, 0) == 0
    assert job.log.flush(lease, flush(1, good))["s"] == "OK"


def test_a_worker_may_not_append_events_of_others(job: Job) -> None:
    from redis.exceptions import ResponseError

    lease = job.join("a")
    with pytest.raises(ResponseError, match="may not append"):
        job.log.flush(lease, flush(1, events=[("job.ended", {})]))


def test_a_full_range_is_acknowledged_and_never_handed_out_again(job: Job) -> None:
    lease = job.join("a")
    claimed = job.claim(lease)
    job.log.flush(lease, flush(1, completed(0, claimed), completed(1, claimed)))
    pending: Any = job.client.xpending(job.keys.work, "workers")
    assert pending["pending"] == 0
    assert job.claim(lease).id == "2-0"
    assert job.log.claim(lease, ["2-0"])["s"] == "NONE"


def test_gen_rises_when_another_run_of_the_server_is_met(job: Job) -> None:
    lease = job.join("a")
    job.client.hset(job.keys.meta, "run_id", "0" * 40)
    job.log.control("c1", "pause")
    entries = job.entries()
    assert [entry.gen for entry in entries] == [0, 0, 0, 1]
    assert [entry.seq for entry in entries] == [1, 2, 3, 4]
    assert job.log.beat(lease)["s"] == "OK"


def test_many_racing_claimers_share_the_ranges_without_overlap(log_server: LogServer) -> None:
    job = Job(log_server, num_ranges=24)
    leases = [job.join(f"w{i}") for i in range(4)]
    won: list[str] = []

    def race(lease: WorkerLease) -> None:
        log, known = JobLog(log_server, job.keys, "race"), []
        while (reply := log.claim(lease, known))["s"] == "OK":
            known.append(reply["range"])
        won.extend(known)

    threads = [threading.Thread(target=race, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == sorted(f"{i}-0" for i in range(1, 25))


def test_a_lost_reply_is_answered_by_sending_again(job: Job) -> None:
    """The server executed the flush and the connection broke before the reply: redis-py's retry would double it."""
    lease = job.join("a")
    claimed = job.claim(lease)
    client: Any = job.log._client
    real, broken = client.fcall, iter([True])

    def lossy(*args: Any) -> Any:
        reply = real(*args)
        if next(broken, False):
            raise ConnectionResetError("reply lost")
        return reply

    client.fcall = lossy
    reply = job.log.flush(lease, flush(1, completed(0, claimed)))
    assert reply["s"] == "DUP"
    assert isinstance(reply["t"][0], int)
    assert job.types().count("request.completed") == 1


def test_a_library_lost_by_the_server_is_loaded_again(job: Job) -> None:
    lease = job.join("a")
    job.client.execute_command("FUNCTION", "DELETE", "sr_v1")
    assert job.log.flush(lease, flush(1))["s"] == "OK"


def test_a_log_that_stays_away_is_reported_after_the_patience(job: Job) -> None:
    class Gone:
        address = "redis://gone"

        def revive(self) -> None:
            raise LogUnreachable("no server")

        def client(self, *, blocking: bool = False) -> Any:
            raise AssertionError("not reached")

    waits: list[str] = []
    log = JobLog(Gone(), job.keys, "t", patience_s=0.3, on_wait=waits.append)  # type: ignore[arg-type]
    with pytest.raises(LogUnreachable, match="redis://gone"):
        log.end("completed")
    assert waits


def test_tokens_of_an_ended_job_can_be_let_go(job: Job) -> None:
    lease = job.join("a")
    claimed = job.claim(lease)
    job.log.flush(lease, flush(1, steps=encode_deltas([StepDelta(0, claimed.claim, 0, 0, [5], "x")])))
    job.log.expire_steps(60_000)
    client: Any = job.client
    assert 0 < client.pttl(job.keys.steps("a")) <= 60_000
    assert client.pttl(job.keys.log) == -1

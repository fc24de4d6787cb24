"""Jobs that were damaged on purpose: every fault is named, and what comes from the log is rebuilt from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from raw_job import RawJob

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.fsck import Report, examine, repair
from streamrunner.runner.log_proof import Findings, LogProof
from streamrunner.sinks.log import JobLog, RetriedCounts, RetriedRange
from streamrunner.sinks.reader import read_log
from streamrunner.sinks.wire import parse_log_entry

if TYPE_CHECKING:
    from streamrunner.sinks.server import LogServer
    from streamrunner.sinks.wire import LogEntry

GOLDEN = Path(__file__).with_name("golden") / "v1-killed-and-resumed.jsonl"


@pytest.fixture
def job(log_server: LogServer) -> RawJob:
    """Two rows done, two open, the worker gone."""
    made = RawJob(log_server)
    made.join()
    made.token(0, 0, done=0)
    made.flush(done=1)
    made.flush()
    made.leave()
    return made


def entries(job: RawJob) -> list[LogEntry]:
    return list(read_log(job.raw, job.keys))


def codes(job: RawJob) -> set[str]:
    return {one.code for one in examine(job.raw, job.keys).findings}


def repaired(job: RawJob) -> Report:
    repair(JobLog(job.server, job.keys, "fsck", patience_s=5.0), examine(job.raw, job.keys))
    return examine(job.raw, job.keys)


def derived(job: RawJob) -> tuple[dict[bytes, bytes], bytes]:
    return job.raw.hgetall(job.keys.meta), job.raw.get(job.keys.done)


def test_a_job_is_sound_at_every_moment_of_its_life(log_server: LogServer) -> None:
    job = RawJob(log_server)
    assert codes(job) == set()
    job.join()
    assert codes(job) == set()
    job.token(0, 0, done=0)
    assert codes(job) == set()
    job.log.control("p", "pause")
    assert codes(job) == set()
    job.log.control("r", "resume")
    job.leave()
    job.join("other")
    job.flush("other", done=1)
    assert codes(job) == set()
    job.cancel()
    report = examine(job.raw, job.keys)
    assert report.findings == []
    assert (report.num_payloads, report.proof.state.cancelled) == (2, 2)


@pytest.mark.parametrize("lost", ["meta", "done", "both", "counters"])
def test_what_is_derived_is_rebuilt_as_it_was(job: RawJob, lost: str) -> None:
    before, bits = derived(job)
    if lost in ("meta", "both"):
        job.raw.delete(job.keys.meta)
    if lost in ("done", "both"):
        job.raw.delete(job.keys.done)
    if lost == "counters":
        job.raw.hset(job.keys.meta, mapping={"completed": 7, "status": "completed", "epoch": 0})
    assert codes(job) == {"meta": {"meta"}, "done": {"done"}, "both": {"meta", "done"}, "counters": {"meta"}}[lost]
    assert repaired(job).is_sound
    after, bits_after = derived(job)
    assert bits_after == bits
    kept = {
        "status",
        "rows",
        "completed",
        "failed",
        "prompt_tokens",
        "completion_tokens",
        "epoch",
        "claim",
        "ctl",
        "w:w",
    }
    assert {name: after[name.encode()] for name in kept} == {name: before[name.encode()] for name in kept}


def test_a_rebuilt_job_goes_on_to_its_end(job: RawJob) -> None:
    job.raw.delete(job.keys.meta, job.keys.done)
    assert repaired(job).is_sound
    job.join("next")
    claims = [entry.data["claim"] for entry in entries(job) if entry.type == "range.claimed"]
    assert claims == sorted(set(claims))
    job.flush("next", done=2)
    job.flush("next", done=3)
    assert job.log.end("completed")["s"] == "OK"
    assert examine(job.raw, job.keys).is_sound


def test_an_ended_job_is_rebuilt_with_the_rows_that_share_its_end(job: RawJob) -> None:
    job.cancel()
    job.raw.delete(job.keys.meta, job.keys.done)
    report = repaired(job)
    assert report.is_sound
    meta = {name.decode(): value.decode() for name, value in job.raw.hgetall(job.keys.meta).items()}
    assert (meta["status"], meta["cancelled"], meta["reason"]) == ("cancelled", "2", "by request")


def test_nothing_is_rewritten_under_a_living_worker(job: RawJob) -> None:
    job.join("alive")
    job.raw.hset(job.keys.meta, "completed", 9)
    with pytest.raises(RunnerError, match="alive") as caught:
        repaired(job)
    assert caught.value.code == "job_running"
    assert job.raw.hget(job.keys.meta, "completed") == b"9"


def test_a_repair_of_an_older_log_is_refused(job: RawJob) -> None:
    report = examine(job.raw, job.keys)
    job.log.control("c", "pause")
    with pytest.raises(RunnerError) as caught:
        repair(JobLog(job.server, job.keys, "fsck"), report)
    assert caught.value.code == "job_moved"


def test_every_break_of_the_contract_has_its_own_name(job: RawJob) -> None:
    ended = [entry for entry in entries(job) if entry.type == "request.completed"]
    job.raw.xdel(job.keys.res, ended[0].id)
    assert codes(job) == {"result_missing"}
    job.raw.xdel(job.keys.log, ended[1].id)
    assert codes(job) == {"gap", "result_missing", "result_stray", "meta", "done"}
    report = examine(job.raw, job.keys)
    assert [one.repairable for one in report.findings if one.code == "gap"] == [False]


@pytest.mark.parametrize(
    ("change", "code"),
    [({}, "doubled"), ({"row": 9}, "row"), ({"row": 2, "claim": 7}, "claim"), ({"row": 2, "range": "9-0"}, "claim")],
)
def test_an_ending_that_nobody_may_write_is_found(job: RawJob, change: dict[str, Any], code: str) -> None:
    """Somebody with write access added an event behind the library's back."""
    real = next(entry for entry in entries(job) if entry.type == "request.completed")
    fields = {"type": real.type, "v": 1, "time": real.time, "by": real.by, "data": json.dumps({**real.data, **change})}
    forged = f"{entries(job)[-1].seq + 1}-0"
    job.raw.xadd(job.keys.log, fields, id=forged)
    job.raw.xadd(job.keys.res, {"v": 1, "p": "{}"}, id=forged)
    assert code in codes(job)


def test_claims_that_the_log_does_not_know_are_found(job: RawJob) -> None:
    job.raw.hset(job.keys.claims, "9-0", "1|x|||0-0")
    job.raw.hset(job.keys.claims, job.range, "1|somebody|||0-0")
    report = examine(job.raw, job.keys)
    assert [(one.code, one.count, one.repairable) for one in report.findings] == [("claims", 2, False)]


def test_only_the_first_faults_of_a_kind_are_kept_in_words() -> None:
    found = Findings()
    for number in range(1000):
        found.add("gap", str(number))
    [one] = found.all()
    assert (one.count, one.examples) == (1000, ["0", "1", "2"])


def test_the_log_of_a_real_run_is_sound() -> None:
    found = Findings()
    proof = LogProof(found)
    for line in GOLDEN.read_text("utf-8").splitlines():
        fields = {key.encode(): value.encode() for key, value in json.loads(line).items()}
        proof.apply(parse_log_entry(fields.pop(b"id"), fields))
    proof.finish()
    assert found.all() == []
    assert proof.state.ended


def test_a_job_without_a_log_has_nothing_to_prove(job: RawJob) -> None:
    from streamrunner.sinks.keys import JobKeys

    with pytest.raises(RunnerError) as caught:
        examine(job.raw, JobKeys("job_none"))
    assert caught.value.code == "job_not_found"


def test_the_command_proves_repairs_and_says_so(bench: Any) -> None:
    from streamrunner.sinks.directory import JobDirectory
    from streamrunner.sinks.embedded.server import EmbeddedServer

    with EmbeddedServer(bench.data_dir) as server:
        job = RawJob(server)
        JobDirectory(job.raw, "sr").announce(job.id, "t")
        job.run_through()
        job.leave()
        sound = bench.run("fsck", "t")
        assert (sound.returncode, sound.stdout.splitlines()[-1]) == (0, "sound"), sound.stderr
        job.raw.hset(job.keys.meta, "completed", 9)
        broken = bench.run("fsck", "t", "--json")
        assert broken.returncode == 4
        assert [one["code"] for one in json.loads(broken.stdout)["found"]] == ["meta"]
        mended = bench.run("fsck", "t", "--repair")
        assert mended.returncode == 0, mended.stdout
        assert "completed = 9, the log says 2" in mended.stdout
        job.raw.xdel(job.keys.log, "2-0")
        lost = bench.run("fsck", "t", "--repair")
        assert lost.returncode == 4
        assert "[gap]" in lost.stdout


def test_retried_rows_of_a_reopened_job_are_rebuilt_with_their_attempts(job: RawJob) -> None:
    job.cancel()
    last = entries(job)[-1].seq
    again = {"row": 2, "custom_id": "r2", "attempt": 2, "was": "cancelled", "code": None}
    spec = {"first": 2, "count": 1, "attempts": {"2": 2}}
    assert job.log.retry("cmd", last, [RetriedRange(spec, [again])], RetriedCounts(0, 1, 0))["s"] == "OK"
    assert codes(job) == set()
    before = derived(job)
    job.raw.delete(job.keys.meta, job.keys.done, job.keys.attempts)
    assert codes(job) == {"meta", "done", "attempts"}
    assert repaired(job).is_sound
    assert (derived(job)[1], job.raw.hgetall(job.keys.attempts)) == (before[1], {b"2": b"2"})
    job.join("next")
    assert codes(job) == set()

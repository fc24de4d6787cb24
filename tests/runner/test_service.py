"""`runner worker` as a user meets it: several processes on one job, killed, stopped, idle."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Bench = Any  # tests/runner/conftest.py, which is no module to import

# Three ranges of rows, four at a time: enough for a second worker to find some left.
NUM_ROWS = 160
NARROW = {"max_model_len": 512, "max_num_seqs": 4}


@pytest.fixture
def job(any_bench: Bench, chat_row: Callable[..., str]) -> Bench:
    any_bench.write_rows([chat_row(i) for i in range(NUM_ROWS)])
    any_bench.write_job(engine=NARROW)
    return any_bench


def claimers(bench: Bench) -> list[str]:
    """Who took each range, in the order of the log."""
    return [event["data"]["worker"] for event in bench.events() if event["type"] == "range.claimed"]


def wait_for_claims(bench: Bench, at_least: int) -> None:
    """Return once that many ranges were taken."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        shown = bench.run("events", "last", "--json", "--type", "range.claimed")
        if shown.stdout.count("\n") >= at_least:
            return
    raise AssertionError(f"{at_least} ranges were not claimed within 60 s")


@pytest.mark.parametrize("any_bench", ["debian"], indirect=True)
def test_a_worker_shares_a_running_job_and_its_kill_loses_nothing(job: Bench) -> None:
    alone = job.submit()
    assert alone.returncode == 0, alone.stderr
    undisturbed = job.texts()

    submitter = job.start("submit", "job.yaml", "--new")
    wait_for_claims(job, 1)
    helper = job.start("worker", "last")
    _, said = submitter.communicate(timeout=90)
    assert submitter.returncode == 0, said
    _, said = helper.communicate(timeout=30)
    assert helper.returncode == 0, said
    assert "working on it" in said
    assert job.texts() == undisturbed
    joined = {event["data"]["worker"] for event in job.events() if event["type"] == "worker.joined"}
    assert len(joined) == 2
    assert set(claimers(job)) == joined, "each took some of the rows"

    submitter = job.start("submit", "job.yaml", "--new")
    wait_for_claims(job, 1)
    submitter.send_signal(signal.SIGKILL)
    submitter.wait()
    taken_over = job.run("worker", "last")
    assert taken_over.returncode == 0, taken_over.stderr
    exported = job.submit()
    assert exported.returncode == 0, exported.stderr
    assert f"already done: {NUM_ROWS} completed, 0 failed" in exported.stdout
    assert job.texts() == undisturbed


@pytest.mark.parametrize("any_bench", ["debian"], indirect=True)
def test_a_worker_that_was_stopped_beyond_its_lease_writes_nothing_for_what_others_took(
    any_bench: Bench, chat_row: Callable[..., str], eventually: Callable[..., None]
) -> None:
    import redis

    any_bench.write_rows([chat_row(i) for i in range(64)])
    sampling = {"temperature": 0.8, "seed": 7, "max_tokens": 200, "ignore_eos": True}
    any_bench.write_job(sampling=sampling)
    assert any_bench.submit().returncode == 0
    undisturbed, before = any_bench.texts(), set(claimers(any_bench))
    any_bench.write_job(sampling=sampling, engine={"max_model_len": 512, "max_num_seqs": 2})
    zombie = any_bench.start("submit", "job.yaml", "--new")
    eventually(lambda: set(claimers(any_bench)) - before, seconds=60)
    zombie.send_signal(signal.SIGSTOP)
    [stopped] = set(claimers(any_bench))
    client: Any = redis.from_url(any_bench.redis_url)
    [lease] = client.scan_iter(f"sr:*:lease:{stopped}")
    client.delete(lease)  # fifteen seconds later
    heir = any_bench.start("worker", "last")
    eventually(lambda: f'"from":"{stopped}"' in log_of(client, lease), seconds=60)
    zombie.send_signal(signal.SIGCONT)
    _, said = zombie.communicate(timeout=60)
    assert zombie.returncode == 0, said
    assert "rows went to another worker while this one was away" in said
    assert heir.wait(timeout=60) == 0
    assert any_bench.texts() == undisturbed
    owners: dict[str, str] = {}
    for event in any_bench.events():
        if event["type"] == "range.claimed":
            owners[event["data"]["range"]] = event["by"]
        elif event["type"] == "request.completed":
            assert event["by"] == owners[event["data"]["range"]]


def log_of(client: Any, lease: bytes) -> str:
    """Data of all entries of a lease's job, one after the other."""
    entries = client.xrange(lease.split(b":lease:")[0] + b":log")
    return b"".join(fields[b"data"] for _, fields in entries).decode()


@pytest.mark.parametrize("any_bench", ["embedded"], indirect=True)
def test_a_worker_without_jobs_waits_or_ends_as_asked(any_bench: Bench) -> None:
    ended = any_bench.run("worker", "--exit-when-idle")
    assert (ended.returncode, ended.stdout) == (0, "")
    missing = any_bench.run("worker", "nosuch")
    assert missing.returncode == 4
    assert "[job_not_found]" in missing.stderr

    waiting = any_bench.start("worker")
    assert waiting.stderr is not None
    assert "no job to work on: waiting for one" in waiting.stderr.readline()
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(timeout=10) == 75


@pytest.mark.parametrize("any_bench", ["embedded"], indirect=True)
def test_a_job_that_cannot_run_here_is_left_to_others(job: Bench) -> None:
    process = job.start("submit", "job.yaml")
    wait_for_claims(job, 1)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=12)
    (job.folder / "rows.jsonl").rename(job.folder / "elsewhere.jsonl")
    left = job.run("worker", "--exit-when-idle")
    assert left.returncode == 0, left.stderr
    assert "cannot run here and is left to others" in left.stderr
    named = job.run("worker", "last")
    assert named.returncode == 4
    assert named.stderr.count("error: ") == 1

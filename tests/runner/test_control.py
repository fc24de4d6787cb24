"""Control as a user meets it: real processes that are paused, killed, cancelled and limited at bad moments."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    Bench = Any  # tests/runner/conftest.py, which is no module to import

LONG = {"temperature": 0.8, "seed": 7, "max_tokens": 250, "ignore_eos": True}
NARROW = {"max_model_len": 512, "max_num_seqs": 2}
NUM_ROWS = 8


@pytest.fixture
def job(bench: Bench, chat_row: Callable[..., str]) -> Bench:
    """Eight rows that take a while, two at a time; none has run yet."""
    bench.write_rows([chat_row(i) for i in range(NUM_ROWS)])
    bench.write_job(sampling=LONG, engine=NARROW)
    return bench


def wait_for(bench: Bench, kind: str, process: subprocess.Popen[str], job: str = "last") -> None:
    """Return once a job that has not ended has an event of this type."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        shown = bench.run("events", job, "--json", "--type", kind, "--type", "job.ended").stdout
        types = {json.loads(line)["type"] for line in shown.splitlines()}
        if types == {kind}:
            return
        assert process.poll() is None, process.communicate()
    raise AssertionError(f"no {kind} within 60 s")


def status(bench: Bench, job: str = "last") -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(bench.run("status", job, "--json").stdout)
    return shown


def test_a_pause_during_the_load_is_heard_at_once_and_the_same_command_goes_on(job: Bench) -> None:
    process = job.start("submit", "job.yaml")
    wait_for(job, "job.started", process)
    assert job.run("pause", "last").returncode == 0
    out, err = process.communicate(timeout=20)
    assert (process.returncode, "paused" in out) == (75, True), err
    assert status(job)["paused"]
    assert job.run("priority", "last", "4").returncode == 0
    assert job.submit().returncode == 0
    assert not any("priority" in one["data"].get("changes", {}) for one in job.events() if one["type"] == "job.resumed")
    assert len(job.lines()) == NUM_ROWS


def test_a_paused_and_killed_job_goes_on_and_nothing_is_lost(job: Bench) -> None:
    assert job.submit().returncode == 0
    undisturbed = job.texts()
    process = job.start("submit", "job.yaml", "--new")
    wait_for(job, "tokens", process)
    assert job.run("pause", "last").returncode == 0
    process.kill()
    process.wait()
    again = job.submit()
    assert again.returncode == 0, again.stderr
    assert job.texts() == undisturbed


def test_an_attached_submit_waits_through_a_pause_and_takes_the_job_when_it_is_lifted(job: Bench) -> None:
    first = job.start("submit", "job.yaml")
    wait_for(job, "tokens", first)
    second = job.start("submit", "job.yaml")
    assert second.stderr is not None
    assert any("attached" in second.stderr.readline() for _ in range(3))
    assert job.run("pause", "last").returncode == 0
    assert first.wait(timeout=20) == 75
    assert job.run("resume", "last").returncode == 0
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert "8 completed" in out
    assert len(job.lines()) == NUM_ROWS


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_job_is_cancelled_though_its_worker_is_gone_or_hangs(job: Bench, number: signal.Signals) -> None:
    process = job.start("submit", "job.yaml")
    wait_for(job, "tokens", process)
    process.send_signal(number)
    said = job.run("cancel", "last")
    assert (said.returncode, said.stdout.split()[-1]) == (0, "cancelled"), "its lease still lives, it cannot object"
    again = job.run("cancel", "last")
    assert (again.returncode, again.stdout.split()[-1]) == (0, "cancelled")
    if number is signal.SIGSTOP:
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=20)
        assert (process.returncode, "cancelled" in out) == (5, True)
    assert job.submit().returncode == 5
    counts = status(job)["request_counts"]
    assert counts["completed"] + counts["cancelled"] == NUM_ROWS == len(job.lines())
    refused = job.run("pause", "last")
    assert (refused.returncode, "[job_ended]" in refused.stderr) == (4, True)


def test_a_row_is_cancelled_by_its_number_and_has_a_line_that_says_so(job: Bench) -> None:
    process = job.start("submit", "job.yaml")
    wait_for(job, "tokens", process)
    said = job.run("cancel", "last", "--row", "7", "--row", "6")
    assert (said.returncode, said.stdout.count("cancelled")) == (0, 2), said.stderr
    missing = job.run("cancel", "last", "--row", "8")
    assert (missing.returncode, "the job's rows are 0-7" in missing.stderr) == (4, True)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "6 completed, 0 failed, 2 cancelled" in out
    errors = {line["custom_id"]: line["error"] and line["error"]["code"] for line in job.lines()}
    assert errors == {f"n{i}": "request_cancelled" if i > 5 else None for i in range(NUM_ROWS)}


def test_a_deadline_ends_a_job_whose_worker_is_gone_and_expired_rows_can_be_retried(job: Bench) -> None:
    job.write_job(sampling=LONG, engine=NARROW, limits={"deadline": "6s"})
    process = job.start("submit", "job.yaml")
    wait_for(job, "job.started", process)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while status(job)["status"] != "expired":
        assert time.monotonic() < deadline
    ended = job.submit()
    assert ended.returncode == 6, ended.stderr
    assert "the deadline 6s has passed" in ended.stdout
    lines = job.lines()
    assert len(lines) == NUM_ROWS
    assert {line["error"]["code"] for line in lines if line["error"]} == {"batch_expired"}

    job.write_job(sampling=LONG, engine=NARROW, limits={"max_output_tokens": "1M"})
    assert "rows are open again" in job.run("retry", "last").stdout
    done = job.submit()
    assert done.returncode == 0, done.stderr
    assert f"{NUM_ROWS} completed" in done.stdout


def test_a_rule_on_outputs_pauses_a_job_until_somebody_has_looked(job: Bench) -> None:
    rule = {"finish_reason": "length", "share": 0.5, "window": 4, "min_rows": 2}
    short = {"max_tokens": 60, "ignore_eos": True}
    job.write_job(sampling=short, engine=NARROW, stop_when=[rule])
    stopped = job.submit()
    assert stopped.returncode == 75, stopped.stderr
    assert "stop_when (finish_reason length, share 0.5): 2 of the last 2 rows look so" in stopped.stdout
    assert "finish_reason length" in status(job)["reason"]
    [notice] = [one["data"] for one in job.events() if one["type"] == "notice" and one["data"]["code"] == "stop_when"]
    assert len(notice["rows"]) == 2

    assert job.run("resume", "last").returncode == 0
    assert status(job)["reason"] is None
    assert job.submit().returncode == 75, "the rule is armed again"
    job.write_job(sampling=short, engine=NARROW, stop_when=[{**rule, "finish_reason": "stop"}])
    done = job.submit()
    assert done.returncode == 0, done.stderr


def test_workers_go_where_priority_says_and_leave_a_job_at_the_end_of_a_range(
    job: Bench, chat_row: Callable[..., str]
) -> None:
    job.write_rows([chat_row(i, max_tokens=60) for i in range(60)])
    for name, urgency in (("late", 0), ("urgent", 7)):
        job.write_job(name=name, sampling=LONG, engine=NARROW, priority=urgency)
        process = job.start("submit", "job.yaml")
        wait_for(job, "job.started", process, name)
        assert job.run("pause", name).returncode == 0
        assert process.wait(timeout=20) == 75
    assert job.run("resume", "late").returncode == 0
    worker = job.start("worker", "--exit-when-idle")
    deadline = time.monotonic() + 60
    while status(job, "late")["request_counts"]["completed"] < 2:
        assert time.monotonic() < deadline, worker.communicate()
    assert job.run("resume", "urgent").returncode == 0
    out, err = worker.communicate(timeout=90)
    assert worker.returncode == 0, (out, err)
    assert "late: left for a more urgent job" in err
    ends = [status(job, name)["ended_at"] for name in ("urgent", "late")]
    assert ends == sorted(ends)
    assert job.run("priority", "late", "-3").returncode == 4, "it has ended"

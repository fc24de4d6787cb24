"""Which rows a retry means, and that outputs and counts follow; on the real command, with the smallest of jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Bench = Any  # tests/runner/conftest.py, which is no module to import

TOO_LONG = "x" * 600
NUM_ROWS = 70  # two ranges


@pytest.fixture
def job(bench: Bench, chat_row: Callable[..., str]) -> Bench:
    """A job of which rows 3, 5 and 68 failed: they are too long for its model length."""
    long = json.loads(chat_row(0))
    rows = [json.loads(chat_row(i, max_tokens=2)) for i in range(NUM_ROWS)]
    for row in (3, 5, 68):
        rows[row]["body"]["messages"] = [{**long["body"]["messages"][0], "content": TOO_LONG}]
    bench.write_rows([json.dumps(row) for row in rows])
    bench.write_job()
    failed = bench.submit()
    assert failed.returncode == 3, failed.stderr
    assert "67 completed, 3 failed" in failed.stdout
    return bench


def attempts(bench: Bench) -> dict[str, str]:
    """custom_id → attempt, as the lines of the output say; each row once."""
    lines = bench.lines()
    found = {line["custom_id"]: line["id"].rpartition("_")[2] for line in lines}
    assert len(found) == len(lines) == NUM_ROWS
    return found


def test_failed_rows_are_run_again_and_take_their_old_place(job: Bench) -> None:
    before = job.output.read_bytes().splitlines()
    retried = job.run("retry", "last", "--rows", "3,60-69", "--codes", "context_length_exceeded", "--json")
    assert retried.returncode == 4, "some of the named rows are completed"
    assert "row 60 is completed" in retried.stderr
    retried = job.run("retry", "last", "--rows", "3,68")
    assert retried.returncode == 0, retried.stderr
    assert "2 rows are open again" in retried.stdout
    status = json.loads(job.run("status", "last", "--json").stdout)
    assert (status["status"], status["request_counts"]["failed"]) == ("in_progress", 1)

    job.write_job(engine={"max_model_len": 1024})
    again = job.submit()
    assert again.returncode == 3, again.stderr
    assert "69 completed, 1 failed" in again.stdout
    found = attempts(job)
    assert [found[f"n{row}"] for row in (3, 5, 68)] == ["1" if row == 5 else "2" for row in (3, 5, 68)]
    untouched = [line for line in before if b"n3" not in line and b"n68" not in line]
    assert set(untouched) <= set(job.output.read_bytes().splitlines())
    printed = [json.loads(line) for line in job.run("results", "last").stdout.splitlines()]
    assert len(printed) == NUM_ROWS

    assert job.run("retry", "last", "--codes", "nan_logits").stdout.endswith("nothing to retry\n")
    assert job.run("retry", "last").returncode == 0
    assert "70 completed, 0 failed" in job.submit().stdout
    assert set(attempts(job).values()) == {"1", "2"}
    assert "nothing to retry" in job.run("retry", "last").stdout


def test_a_retry_is_refused_in_words(job: Bench) -> None:
    for arguments, said in [
        (("--rows", "99"), "there is no row 99: the job's rows are 0-69"),
        (("--rows", "0"), "row 0 is completed"),
    ]:
        refused = job.run("retry", "last", *arguments)
        assert refused.returncode == 4
        assert said in refused.stderr
        assert "[row_not_retriable]" in refused.stderr
    usage = job.run("retry", "last", "--rows", "a-b")
    assert usage.returncode == 2
    assert "such as 1,5-9" in usage.stderr


def test_rows_of_a_cancelled_job_are_retried_without_the_rest(bench: Bench, chat_row: Callable[..., str]) -> None:
    bench.write_rows([chat_row(i) for i in range(NUM_ROWS)])
    bench.write_job(sampling={"max_tokens": 400, "ignore_eos": True}, engine={"max_model_len": 512, "max_num_seqs": 2})
    process = bench.start("submit", "job.yaml")
    while "in_progress" not in bench.run("status", "last").stdout:
        assert process.poll() is None, process.communicate()
    assert bench.run("cancel", "last").returncode == 0
    process.wait(timeout=20)
    cancelled = json.loads(bench.run("status", "last", "--json").stdout)["request_counts"]["cancelled"]
    assert bench.run("retry", "last", "--rows", "66").returncode == 0
    bench.run("worker", "last")
    done = bench.submit()
    assert done.returncode == 3, done.stderr
    status = json.loads(bench.run("status", "last", "--json").stdout)
    assert (status["status"], status["request_counts"]["cancelled"]) == ("completed", cancelled - 1)
    errors = {line["custom_id"]: line["error"] for line in bench.lines()}
    assert len(errors) == NUM_ROWS
    assert errors["n66"] is None
    assert errors["n65"] == {"code": "batch_cancelled", "message": "cancelled by request"}

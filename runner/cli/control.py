"""`runner cancel`, `runner pause`, `runner resume`, `runner priority`: each an event, the same one twice is one."""

from __future__ import annotations

import time
from typing import Any

import click

from streamrunner.runner.cli.common import FoundJob, Where, found_job, has_live_worker, where_options
from streamrunner.runner.errors import ExitCode, RunnerError

# How long a worker may take to flush what is finished and end the job; then the job is ended over its head.
_GRACE_S = 0.8
_LOOK_S = 0.05


@click.command()
@click.argument("job")
@click.option("--row", "rows", type=click.IntRange(min=0), multiple=True, help="Only this row (numbered from 0).")
@where_options
def cancel(where: Where, job: str, rows: tuple[int, ...]) -> None:
    """Stop a job for good, or some rows of it. Finished rows are kept; open rows end as cancelled.

    Cancelling what is cancelled already is no error; a job that has ended otherwise cannot be cancelled any more.

    \b
    runner cancel last
    runner cancel last --row 17
    """
    with found_job(where, job) as found:
        if rows:
            _cancel_rows(found, rows)
            return
        status = _command(found, "cancel")["status"]
        if status != "cancelled":
            status = _end_cancelled(found)
        click.echo(f"{found.pointer.job_id} {status}")


@click.command()
@click.argument("job")
@where_options
def pause(where: Where, job: str) -> None:
    """Stop a job for now: its runner keeps all tokens and exits with 75.

    \b
    runner pause last
    """
    with found_job(where, job) as found:
        _command(found, "pause")
        click.echo(f"{found.pointer.job_id} paused: `runner submit` the same file, or `runner resume`, goes on with it")


@click.command()
@click.argument("job")
@where_options
def resume(where: Where, job: str) -> None:
    """Lift a pause; a runner that is attached goes on at once.

    \b
    runner resume last
    """
    with found_job(where, job) as found:
        _command(found, "resume")
        click.echo(f"{found.pointer.job_id} resumed: a runner that `submit`s the same file goes on with it")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("job")
@click.argument("number", type=int)
@where_options
def priority(where: Where, job: str, number: int) -> None:
    """Let `runner worker` prefer a job: a higher number goes first, then the older job. A job begins with 0.

    A worker that runs another job finishes the rows it has taken, and then comes over.

    \b
    runner priority last 10
    runner priority last -5
    """
    with found_job(where, job) as found:
        _command(found, "change", {"changes": {"priority": number}})
        click.echo(f"{found.pointer.job_id} has priority {number}")


def _log(found: FoundJob) -> Any:
    from streamrunner.sinks.log import JobLog

    return JobLog(found.server, found.keys, "cli", patience_s=10.0)


def _command(found: FoundJob, kind: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
    from streamrunner.runner.ids import new_ulid

    reply: dict[str, Any] = _log(found).control(new_ulid(), kind, data)
    if reply["s"] == "ENDED" and not (kind == "cancel" and reply["status"] == "cancelled"):
        raise _job_ended(found, reply["status"], kind)
    return reply


def _job_ended(found: FoundJob, status: str, kind: str) -> RunnerError:
    what = "whose priority to change" if kind == "change" else f"to {kind}"
    return RunnerError("job_ended", f"{found.pointer.job_id} has ended ({status}): nothing {what}", ExitCode.INVALID)


def _end_cancelled(found: FoundJob) -> str:
    """Wait for the worker to end the job; a worker that is gone, loads or hangs does not hold that up."""
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline and has_live_worker(found):
        meta = found.directory.meta(found.pointer.job_id)
        if "ended" in meta:
            return meta["status"]
        time.sleep(_LOOK_S)
    return str(_log(found).end("cancelled", "cancelled by request")["status"])


def _cancel_rows(found: FoundJob, rows: tuple[int, ...]) -> None:
    from streamrunner.runner.row_cancel import RowCanceller
    from streamrunner.runner.submission import find_job

    job = find_job(found.server.client(), found.pointer.job_id)
    canceller = RowCanceller(found.server.client(), found.keys, _log(found))
    num_rows = int(found.directory.meta(found.pointer.job_id)["rows"])
    for row in rows:
        reply = canceller.cancel(row, num_rows, job.spec)
        if reply["s"] == "ENDED":
            raise _job_ended(found, reply["status"], "cancel")
        if reply.get("open") == 0 and not has_live_worker(found):
            # It was the last one, and nobody is there to notice.
            _log(found).end("completed")
        how = "cancelled" if reply["s"] == "OK" else "has its ending already"
        click.echo(f"{found.pointer.job_id} row {row} {how}")

"""`runner cancel`, `runner pause`, `runner resume`: each an event, the same one twice is one."""

from __future__ import annotations

from typing import Any

import click

from streamrunner.runner.cli.common import FoundJob, Where, found_job, where_options
from streamrunner.runner.errors import ExitCode, RunnerError

_ENDED = ("completed", "failed", "cancelled", "expired")


@click.command()
@click.argument("job")
@where_options
def cancel(where: Where, job: str) -> None:
    """Stop a job for good. Finished rows are kept; open rows end as cancelled.

    \b
    runner cancel last
    """
    with found_job(where, job) as found:
        reply = _command(found, "cancel")
        if not _has_live_worker(found):
            # Nobody runs it, so nobody would honour the request: end it here.
            reply = _log(found).end("cancelled", "cancelled by request")
        click.echo(f"{found.pointer.job_id} {reply['status']}")


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


def _log(found: FoundJob) -> Any:
    from streamrunner.sinks.log import JobLog

    return JobLog(found.server, found.keys, "cli", patience_s=10.0)


def _command(found: FoundJob, kind: str) -> dict[str, Any]:
    from streamrunner.runner.ids import new_ulid

    reply: dict[str, Any] = _log(found).control(new_ulid(), kind)
    if reply["s"] == "ENDED":
        status = reply["status"]
        if kind == "cancel" and status == "cancelled":
            return reply
        raise RunnerError(
            "job_ended", f"{found.pointer.job_id} has ended ({status}); there is nothing to {kind}", ExitCode.INVALID
        )
    return reply


def _has_live_worker(found: FoundJob) -> bool:
    meta = found.directory.meta(found.pointer.job_id)
    names = [name[2:] for name, value in meta.items() if name.startswith("w:") and value == "joined"]
    return any(found.reader.exists(found.keys.lease(name)) for name in names)

"""`runner purge`."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import click

from streamrunner.runner.cli.common import Where, opened, where_options
from streamrunner.runner.errors import ExitCode
from streamrunner.runner.place import PREFIX
from streamrunner.runner.terminal import clean

if TYPE_CHECKING:
    from streamrunner.sinks.directory import JobDirectory

_WHOLE_ID = re.compile(r"job_[0-9A-Za-z]{26}")


def _seconds(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    from streamrunner.runner.units import parse_seconds

    try:
        return None if value is None else parse_seconds(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.argument("jobs", metavar="[JOB]...", nargs=-1)
@click.option("--all-ended", is_flag=True, help="Every job that has ended.")
@click.option(
    "--older-than", callback=_seconds, metavar="AGE", help="With --all-ended: only those that ended so long ago (7d)."
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@where_options
def purge(where: Where, jobs: tuple[str, ...], all_ended: bool, older_than: float | None, yes: bool) -> int:
    """Delete ended jobs from the server: history, results, tokens. Output files stay.

    A job that has not ended is refused: `runner cancel` it first. A submit of the same file runs it afresh.

    \b
    runner purge capitals
    runner purge --all-ended --older-than 7d --yes
    """
    from streamrunner.runner.purge import Purger
    from streamrunner.sinks.directory import JobDirectory

    if bool(jobs) == all_ended or (older_than is not None and not all_ended):
        raise click.UsageError("name jobs, or give --all-ended, with --older-than AGE if you like")
    with opened(where) as server:
        client = server.client()
        directory = JobDirectory(client, PREFIX)
        purger = Purger(server, directory, PREFIX)
        wanted = _ended(directory, older_than or 0.0) if all_ended else _named(directory, jobs)
        if wanted and not (yes or _confirmed(wanted)):
            return ExitCode.STOPPED
        for job_id in wanted:
            gone = purger.purge(job_id)
            click.echo(f"{job_id} purged" if gone else f"{job_id} is not here (any more)")
        if all_ended:
            purger.sweep()
            click.echo(f"{len(wanted)} job(s) purged")
    return ExitCode.OK


def _ended(directory: JobDirectory, older_than_s: float) -> dict[str, str]:
    from streamrunner.runner.purge import ended_jobs

    return {
        one.pointer.job_id: f"{clean(one.pointer.name)}  {one.status}" for one in ended_jobs(directory, older_than_s)
    }


def _named(directory: JobDirectory, jobs: tuple[str, ...]) -> dict[str, str]:
    """A whole id needs no pointer: what a killed purge has left can still be named."""
    from streamrunner.sinks.errors import SinkError

    found: dict[str, str] = {}
    for wanted in jobs:
        try:
            pointer = directory.find(wanted)
            found[pointer.job_id] = clean(pointer.name)
        except SinkError as error:
            if error.code != "job_not_found" or not _WHOLE_ID.fullmatch(wanted):
                raise
            found[wanted] = ""
    return found


def _confirmed(wanted: dict[str, str]) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("nobody is here to ask whether to delete: add --yes")
    for job_id, what in wanted.items():
        click.echo(f"{job_id}  {what}", err=True)
    return click.confirm(f"Delete the history and the results of {len(wanted)} job(s)?", err=True)

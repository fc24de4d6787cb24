"""`runner watch`."""

from __future__ import annotations

import click

from streamrunner.runner.cli.common import Where, found_job, where_options
from streamrunner.runner.errors import ExitCode

_POLL_MS = 250


@click.command()
@click.argument("job", default="last")
@where_options
def watch(where: Where, job: str) -> int:
    """Follow a job's progress until it ends; watching never slows it.

    \b
    runner watch last
    """
    from streamrunner.runner.display import Display
    from streamrunner.runner.watcher import Watcher

    with found_job(where, job) as found, Display() as display:
        watcher = Watcher(found.server, found.keys)
        while watcher.poll(None):
            pass
        while not watcher.state.ended:
            if not watcher.poll(_POLL_MS) and watcher.abandoned():
                display.say("no worker has held this job for 20 s: `runner submit` the same file goes on with it")
                return ExitCode.STOPPED
            display.update(watcher.state)
        state = watcher.state
    click.echo(f"{found.pointer.job_id} {state.status}: {state.completed} completed, {state.failed} failed")
    return ExitCode.OK

"""`runner watch`."""

from __future__ import annotations

import json

import click

from streamrunner.runner.cli.common import Where, found_job, where_options
from streamrunner.runner.errors import ExitCode
from streamrunner.runner.summary import state_as_json

_POLL_MS = 250


@click.command()
@click.argument("job", default="last")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for every change, on stdout.")
@where_options
def watch(where: Where, job: str, as_json: bool) -> int:
    """Follow a job's progress until it ends; watching never slows it.

    \b
    runner watch last
    runner watch last --json | jq .request_counts.completed
    """
    from streamrunner.runner.display import Display
    from streamrunner.runner.watcher import Watcher

    with found_job(where, job) as found, Display(quiet=as_json) as display:
        watcher = Watcher(found.server, found.keys)
        shown = 0
        while watcher.poll(None):
            pass
        while not watcher.state.ended:
            if not watcher.poll(_POLL_MS) and watcher.abandoned():
                display.say("no worker has held this job for 20 s: `runner submit` the same file goes on with it")
                return ExitCode.STOPPED
            display.update(watcher.state)
            if as_json and watcher.state.last_seq > shown:
                shown = watcher.state.last_seq
                click.echo(json.dumps(state_as_json(found.pointer.job_id, watcher.state)))
        state = watcher.state
    if as_json:
        click.echo(json.dumps(state_as_json(found.pointer.job_id, state)))
        return ExitCode.OK
    click.echo(f"{found.pointer.job_id} {state.status}: {state.completed} completed, {state.failed} failed")
    return ExitCode.OK

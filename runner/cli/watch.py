"""`runner watch`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from streamrunner.runner.cli.common import Where, found_job, where_options
from streamrunner.runner.cli.events import ABANDONED
from streamrunner.runner.errors import ExitCode
from streamrunner.runner.summary import state_as_json

if TYPE_CHECKING:
    from streamrunner.runner.event_stream import Watch


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
    from streamrunner.runner.event_stream import Source, Watch, WatchOptions
    from streamrunner.runner.view import View

    with found_job(where, job, reads=True) as found:
        source = Source.of(found.server, found.pointer.job_id)
        shown = Watch(source, View(tokens=False, payloads=False), WatchOptions(snapshot=True))
        return _show(shown, found.pointer.job_id, as_json)


def _show(watch: Watch, job_id: str, as_json: bool) -> int:
    from streamrunner.runner.display import Display

    with Display(quiet=as_json) as display:
        for _ in watch.pages():
            display.update(watch.state)
            if as_json and watch.end is None:
                click.echo(json.dumps(state_as_json(job_id, watch.state), ensure_ascii=False))
        display.finish(watch.state)
    state = watch.state
    if as_json:
        click.echo(json.dumps(state_as_json(job_id, state), ensure_ascii=False))
    if watch.end is not None and watch.end.abandoned:
        click.echo(ABANDONED, err=True)
        return ExitCode.STOPPED
    if not as_json:
        click.echo(f"{job_id} {state.status}: {state.completed} completed, {state.failed} failed")
    return ExitCode.OK

"""`runner list`."""

from __future__ import annotations

import json

import click

from streamrunner.runner.cli.common import Where, opened, where_options
from streamrunner.runner.place import PREFIX
from streamrunner.runner.terminal import clean


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@where_options
def list_jobs(where: Where, as_json: bool) -> None:
    """Show the jobs of this log, newest last.

    \b
    runner list
    runner list --json | jq .status
    """
    from streamrunner.runner.control import Controller
    from streamrunner.runner.summary import summarize
    from streamrunner.sinks.archive import Archives
    from streamrunner.sinks.directory import JobDirectory, JobPointer
    from streamrunner.sinks.keys import JobKeys

    with opened(where) as server:
        directory = JobDirectory(server.reader(), PREFIX)
        summaries = [
            summarize(one, Controller(server, JobKeys(one.job_id, PREFIX), "cli").settle()) for one in directory.jobs()
        ]
    known = {one["id"] for one in summaries}
    archived = [each.manifest for each in Archives(where.data_dir).all() if each.manifest.job not in known]
    for gone in archived:
        pointer = JobPointer(gone.job, gone.name, gone.announced_ms)
        summaries.append(summarize(pointer, gone.meta) | {"archived": True})
    summaries.sort(key=lambda summary: summary["created_at"] or 0)
    if as_json:
        for summary in summaries:
            click.echo(json.dumps(summary, ensure_ascii=False))
        return
    if not summaries:
        click.echo("no jobs yet: start one with `runner submit job.yaml`")
    for one in summaries:
        counts = one["request_counts"]
        where_from = "  (archived)" if one.get("archived") else ""
        done = f"{counts['completed'] + counts['failed']}/{counts['total']}"
        click.echo(
            f"{one['id']}  {one['status']:<11}  {done:>9}  {counts['failed']} failed  {clean(one['name'])}{where_from}"
        )

"""`runner status`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from streamrunner.runner.cli.common import Where, found_job, where_options
from streamrunner.runner.terminal import clean
from streamrunner.runner.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping


@click.command()
@click.argument("job", default="last")
@click.option("--json", "as_json", is_flag=True, help="The whole state as one JSON object.")
@where_options
def status(where: Where, job: str, as_json: bool) -> None:
    """Show where a job is: rows, tokens, rate, time left.

    \b
    Examples:
      runner status last
      runner status capitals --json | jq '.eta_s, .workers[].output_tokens_per_s'
    """
    from streamrunner.runner.job_status import read_status

    with found_job(where, job, reads=True) as found:
        summary = read_status(found.reader, found.keys, found.pointer.name).raw
    if as_json:
        click.echo(json.dumps(dict(summary), ensure_ascii=False))
        return
    _show(summary)


def _show(one: Mapping[str, Any]) -> None:
    counts = one["request_counts"]
    state = f"{one['status']} (paused)" if one["paused"] else one["status"]
    state += f": {clean(one['reason'])}" if one["reason"] else ""
    click.echo(f"{one['id']}  {clean(one['name'])}  {state}")
    ended = {name: counts[name] for name in ("completed", "failed", "cancelled", "expired")}
    shown = ", ".join(f"{count} {name}" for name, count in ended.items() if count or name in ("completed", "failed"))
    click.echo(f"rows    {shown} of {counts['total']}")
    usage, in_flight = one["usage"], one["in_flight"]
    more = f", {in_flight['tokens']} out so far for {in_flight['rows']} rows in flight" if in_flight["rows"] else ""
    click.echo(f"tokens  {usage['input_tokens']} in, {usage['output_tokens']} out (completed rows){more}")
    if one["status"] == "in_progress":
        _show_now(one)


def _show_now(one: Mapping[str, Any]) -> None:
    eta = "unknown yet" if one["eta_s"] is None else f"~{format_seconds(one['eta_s'])}"
    rates = f"{one['rows_per_s']:.3g} rows/s, {one['output_tokens_per_s']:.4g} tok/s"
    workers = one["workers"]
    doing = one["phase"] or "nobody works on it: `runner submit` the same file goes on with it"
    click.echo(
        f"now     {doing}" if one["phase"] != "running" else f"now     {one['running']} running, {rates}, left {eta}"
    )
    for worker in workers if len(workers) > 1 else ():
        rate = worker["output_tokens_per_s"]
        click.echo(
            f"  {worker['id']}  {worker['phase'] or 'starting'}" + ("" if rate is None else f"  {rate:.4g} tok/s")
        )

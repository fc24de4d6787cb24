"""`runner status`."""

from __future__ import annotations

import json
from typing import Any

import click

from streamrunner.runner.cli.common import FoundJob, Where, found_job, where_options
from streamrunner.runner.terminal import clean

# The newest progress event of each worker lies within this many entries of the log's end, or is too old to matter.
_TAIL = 64


@click.command()
@click.argument("job", default="last")
@click.option("--json", "as_json", is_flag=True, help="The whole state as one JSON object.")
@where_options
def status(where: Where, job: str, as_json: bool) -> None:
    """Show where a job is: rows, tokens, rate, time left.

    \b
    runner status last
    runner status capitals --json
    """
    from streamrunner.runner.summary import summarize

    with found_job(where, job) as found:
        meta = found.directory.meta(found.pointer.job_id)
        progress = _newest_progress(found) if meta.get("status") == "in_progress" else []
        summary = summarize(found.pointer, meta, progress)
        summary["workers"] = _living(found, meta)
    if as_json:
        click.echo(json.dumps(summary, ensure_ascii=False))
        return
    _show(summary)


def _show(one: dict[str, Any]) -> None:
    counts = one["request_counts"]
    state = f"{one['status']} (paused)" if one["paused"] else one["status"]
    state += f": {clean(one['reason'])}" if one["reason"] else ""
    click.echo(f"{one['id']}  {clean(one['name'])}  {state}")
    ended = {name: counts[name] for name in ("completed", "failed", "cancelled", "expired")}
    shown = ", ".join(f"{count} {name}" for name, count in ended.items() if count or name in ("completed", "failed"))
    click.echo(f"rows    {shown} of {counts['total']}")
    usage = one["usage"]
    click.echo(f"tokens  {usage['input_tokens']} in, {usage['output_tokens']} out (completed rows)")
    if one["status"] == "in_progress":
        eta = "unknown yet" if one["eta_s"] is None else f"{one['eta_s']:.0f} s"
        rate = one["output_tokens_per_s"]
        click.echo(f"now     {one['workers']} worker(s), {one['running']} running, {rate} tok/s, left {eta}")


def _living(found: FoundJob, meta: dict[str, str]) -> int:
    names = [name[2:] for name, value in meta.items() if name.startswith("w:") and value == "joined"]
    return sum(found.reader.exists(found.keys.lease(name)) for name in names)


def _newest_progress(found: FoundJob) -> list[dict[str, Any]]:
    from streamrunner.sinks.wire import parse_log_entry

    newest: dict[str, dict[str, Any]] = {}
    for raw_id, fields in found.reader.xrevrange(found.keys.log, count=_TAIL):
        entry = parse_log_entry(raw_id, fields)
        if entry.type == "progress":
            newest.setdefault(entry.by, entry.data)
    return [data for worker, data in newest.items() if found.reader.exists(found.keys.lease(worker))]

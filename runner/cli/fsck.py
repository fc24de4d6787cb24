"""`runner fsck`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from streamrunner.runner.cli.common import FoundJob, Where, found_job, where_options
from streamrunner.runner.errors import ExitCode
from streamrunner.runner.terminal import clean

if TYPE_CHECKING:
    from streamrunner.runner.fsck import Report


@click.command()
@click.argument("job", default="last")
@click.option("--repair", "wants_repair", is_flag=True, help="Rewrite `meta` and the bitmap where they are wrong.")
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object.")
@where_options
def fsck(where: Where, job: str, wants_repair: bool, as_json: bool) -> int:
    """Prove a job from its log: no entry missing, one ending a row, and all that is derived agrees with it.

    Reads only, also while the job runs. Status, counters and bitmap can be rebuilt with --repair, once no worker holds
    the job. Exit codes: 0 sound or repaired, 4 faults are left.

    \b
    runner fsck last
    runner fsck capitals --repair
    runner fsck last --json
    """
    from streamrunner.runner.fsck import examine

    with found_job(where, job, reads=True) as found:
        client = found.server.client()
        report = examine(client, found.keys)
        is_repaired = wants_repair and report.is_repairable
        if is_repaired:
            _repair(found, report)
        left = examine(client, found.keys) if is_repaired else report
    if as_json:
        click.echo(json.dumps(_as_json(found.pointer.job_id, report, left), ensure_ascii=False))
    else:
        _show(found, report, left)
    return ExitCode.OK if left.is_sound else ExitCode.INVALID


def _repair(found: FoundJob, report: Report) -> None:
    from streamrunner.runner.fsck import repair
    from streamrunner.sinks.log import JobLog

    repair(JobLog(found.server, found.keys, "fsck", patience_s=10.0), report)


def _as_json(job_id: str, report: Report, left: Report) -> dict[str, Any]:
    state = left.proof.state
    return {
        "id": job_id,
        "status": state.status,
        "sound": left.is_sound,
        "repaired": left is not report,
        "entries": left.proof.num_entries,
        "rows": state.num_rows,
        "finished_rows": state.finished_rows,
        "results": left.num_payloads,
        "found": [asdict(one) for one in report.findings],
        "left": [asdict(one) for one in left.findings],
    }


def _show(found: FoundJob, report: Report, left: Report) -> None:
    state = left.proof.state
    click.echo(f"{found.pointer.job_id}  {clean(found.pointer.name)}  {state.status}")
    click.echo(
        f"read    {left.proof.num_entries} entries, {left.num_payloads} results, "
        f"{state.finished_rows} of {state.num_rows} rows ended"
    )
    still = {one.code for one in left.findings}
    for one in report.findings:
        fate = "" if one.code in still else "repaired: "
        for message in one.examples:
            click.echo(f"fault   {fate}{clean(message)} [{one.code}]")
        if one.count > len(one.examples):
            click.echo(f"        … and {one.count - len(one.examples)} more [{one.code}]")
    click.echo(_verdict(report, left))


def _verdict(report: Report, left: Report) -> str:
    if left.is_sound:
        return "sound" if left is report else "sound again: rebuilt from the log"
    if left.is_repairable:
        return "not sound: --repair rebuilds what comes from the log"
    return (
        "not sound, and the log cannot say more: restore the server's files from a copy, or run the job again (--new)"
    )

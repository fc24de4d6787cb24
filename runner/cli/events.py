"""`runner events`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from streamrunner.runner.cli.common import Where, found_job, where_options
from streamrunner.runner.errors import ExitCode
from streamrunner.runner.terminal import clean

if TYPE_CHECKING:
    from streamrunner.runner.event_stream import Watch

ABANDONED = "no worker has held this job for 20 s: `runner submit` the same file goes on with it"


@click.command()
@click.argument("job", default="last")
@click.option("--follow", "-f", is_flag=True, help="Stay until the job ends.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with a cursor to go on from.")
@click.option("--since", metavar="CURSOR", help="Begin behind the line that had this cursor.")
@click.option("--snapshot", is_flag=True, help="Begin with the job so far, in one event, and go on with what is new.")
@click.option(
    "--type", "types", multiple=True, metavar="TYPE", help="Only these types (repeatable), e.g. tokens or 'request.*'."
)
@click.option(
    "--row", "rows", multiple=True, type=click.IntRange(min=0), metavar="ROW",
    help="Of what concerns rows, only these (repeatable; lines of the input from 0).",
)  # fmt: skip
@where_options
def events(
    where: Where,
    job: str,
    follow: bool,
    as_json: bool,
    since: str | None,
    snapshot: bool,
    types: tuple[str, ...],
    rows: tuple[int, ...],
) -> int:
    """Print a job's events, token by token, from any point on.

    \b
    runner events last --follow
    runner events last --follow --json --type tokens --row 0
    runner events last --json --type 'request.*'
    runner events last --json --since "$CURSOR"
    """
    from streamrunner.runner.event_stream import Source, Watch, WatchOptions
    from streamrunner.runner.view import View

    if since and snapshot:
        raise click.UsageError(
            "--snapshot begins with the whole job so far, --since behind one event: give one of them"
        )
    with found_job(where, job, reads=True) as found:
        source = Source.of(found.server, found.pointer.job_id)
        view = View(types or None, rows or None)
        return _print(Watch(source, view, WatchOptions(since or None, snapshot, follow)), as_json)


def _print(watch: Watch, as_json: bool) -> int:
    for page in watch.pages():
        for event in page:
            # The end needs no line of its own: job.ended is one, and whoever waits is told below.
            if event.type != "ended":
                _write(event.to_json(), as_json)
        sys.stdout.flush()
    if watch.end is not None and watch.end.abandoned:
        click.echo(ABANDONED, err=True)
        return ExitCode.STOPPED
    return ExitCode.OK


def _write(line: dict[str, Any], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
    else:
        sys.stdout.write(clean(_human(line)) + "\n")


def _human(line: dict[str, Any]) -> str:
    if line["type"] == "tokens":
        texts = (f"{one['row']}.{one['choice']}: {one['text']!r}" for one in line["data"]["deltas"])
        return f"tokens {line['step']}  " + "  ".join(texts)
    shown = {name: value for name, value in line["data"].items() if name not in ("spec", "identity", "choices")}
    return f"{line.get('seq', ''):>6} {line['type']}  {json.dumps(shown, ensure_ascii=False)}"

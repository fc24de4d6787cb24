"""`runner results`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamrunner.runner.cli.common import FoundJob, Where, found_job, where_options
from streamrunner.runner.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrunner.runner.selection import Selection
    from streamrunner.sinks.outputs.record import ResultRecord

_POLL_MS = 500


@click.command()
@click.argument("job", default="last")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False),
    help="Write to this file instead, as its suffix says: .jsonl, .csv, .parquet, the first two also with .gz or .zst.",
)  # fmt: skip
@click.option(
    "--order", type=click.Choice(["completion", "input"]), default="completion", show_default=True,
    help="Rows as they ended, or as they stand in the input.",
)  # fmt: skip
@click.option(
    "--rows", type=click.Choice(["all", "completed", "failed"]), default="all", show_default=True,
    help="All rows, those with a result, or those without (failed, cancelled, expired).",
)  # fmt: skip
@click.option("--follow", "-f", is_flag=True, help="Go on with new results until the job has ended.")
@where_options
def results(where: Where, job: str, output: Path | None, order: str, rows: str, follow: bool) -> None:
    """Print or save a job's result lines (OpenAI's batch output), at any time, also while it runs.

    Rows that are still open have no line until the job ends. With --follow in the input's order, a row waits for
    those before it.

    \b
    runner results last > results.jsonl
    runner results last -o results.jsonl --order input
    runner results last -o table.parquet --rows completed
    runner results last --rows failed
    runner results last --follow | head -5
    """
    from streamrunner.runner.selection import Selection

    if follow and output is not None:
        raise click.UsageError("--follow prints: without -o, or with `> FILE`")
    selection = Selection(rows, order)  # type: ignore[arg-type]
    with found_job(where, job, reads=True) as found:
        if follow:
            _follow(found, selection)
        elif output is None:
            _print(_records(found, selection), _owner(found).encode())
        else:
            count = _save(_records(found, selection), _owner(found).encode(), output)
            click.echo(f"{count} rows in {output}")


def _records(found: FoundJob, selection: Selection) -> Iterator[ResultRecord]:
    from streamrunner.runner.result_feed import ResultFeed

    feed = ResultFeed(found.server.client(), found.keys)
    return feed.results.records(selection.ended_rows(feed.index).tolist())


def _follow(found: FoundJob, selection: Selection) -> None:
    """Print lines as they come, until the job has ended or nobody works on it any more."""
    from streamrunner.runner.export_file import FileExport
    from streamrunner.runner.result_feed import ResultFeed
    from streamrunner.runner.watcher import Watcher
    from streamrunner.sinks.outputs.line_stream import LineStream

    feed, watcher = ResultFeed(found.server.client(blocking=True), found.keys), Watcher(found.server, found.keys)
    export = FileExport(LineStream(sys.stdout.buffer, _owner(found)), selection, feed)
    export.settle()
    while not (feed.ended or watcher.abandoned()):
        if applied := feed.poll(_POLL_MS):
            export.advance(applied)


def _owner(found: FoundJob) -> str:
    return found.pointer.job_id.removeprefix("job_")


def _print(records: Iterator[ResultRecord], owner: bytes) -> None:
    from streamrunner.sinks.outputs.formats import jsonl_line

    write = sys.stdout.buffer.write
    for record in records:
        write(jsonl_line(owner, record) + b"\n")
    sys.stdout.buffer.flush()


def _save(records: Iterator[ResultRecord], owner: bytes, output: Path) -> int:
    """Write beside the target and rename, so that a reader never meets half a file."""
    from streamrunner.runner.outputs import part_format, type_of

    part = output.with_name(output.name + ".part")
    form = part_format(type_of(output.name), output.name)
    try:
        with part.open("wb") as file:
            count = form.write(file, owner, records)
        part.replace(output)
    except OSError as error:
        raise RunnerError(
            "output_unwritable", f"{output} cannot be written: {error.strerror}", ExitCode.INVALID
        ) from error
    return count

"""`runner results`."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamrunner.runner.cli.common import FoundJob, Where, found_job, where_options
from streamrunner.runner.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAGE = 256


@click.command()
@click.argument("job", default="last")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file instead.")
@where_options
def results(where: Where, job: str, output: Path | None) -> None:
    """Print or save a job's result lines (OpenAI's batch output), at any time.

    Rows that are still open have no line until the job ends.

    \b
    runner results last > results.jsonl
    runner results last -o results.jsonl
    """
    with found_job(where, job) as found:
        lines = _lines(found)
        if output is None:
            _print(lines)
        else:
            click.echo(f"{_save(lines, output)} lines in {output}")


def _lines(found: FoundJob) -> Iterator[bytes]:
    from streamrunner.runner.fold import JobState
    from streamrunner.runner.results import open_row_lines, result_lines
    from streamrunner.runner.spec import JobSpec
    from streamrunner.sinks.reader import read_log

    state, job_id = JobState(), found.pointer.job_id
    client = found.server.client()
    entries = read_log(client, found.keys)
    while page := list(islice(entries, _PAGE)):
        for entry in page:
            state.apply(entry)
        yield from (one.line for one in result_lines(client, found.keys, job_id, page))
    if state.ended:
        spec = JobSpec.model_validate(state.spec)
        yield from (one.line for one in open_row_lines(client, found.keys, job_id, state, spec))


def _print(lines: Iterator[bytes]) -> None:
    for line in lines:
        sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _save(lines: Iterator[bytes], output: Path) -> int:
    """Write beside the target and rename, so that a reader never meets half a file."""
    part = output.with_name(output.name + ".part")
    count = 0
    try:
        with part.open("wb") as file:
            for count, line in enumerate(lines, 1):  # noqa: B007 - the last index is the count
                file.write(line + b"\n")
        part.replace(output)
    except OSError as error:
        raise RunnerError(
            "output_unwritable", f"{output} cannot be written: {error.strerror}", ExitCode.INVALID
        ) from error
    return count

"""`runner validate`."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamrunner.runner.cli.common import Where, where_options
from streamrunner.runner.errors import RunnerError
from streamrunner.runner.terminal import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrunner.runner.inputs import InputScan
    from streamrunner.runner.rows import RowError
    from streamrunner.runner.spec import JobSpec

_SHOWN_ERRORS = 20


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Counts and errors as one JSON object, whatever the exit code.")
@click.option("--dry-run", is_flag=True, help="Count the tokens of every row too, and predict time and memory.")
@click.option(
    "--speed", type=click.Choice(["auto", "last", "measure", "none"]), default="auto", show_default=True,
    help="With --dry-run, time from the last job of this model, or from a short measurement; auto: the first there is.",
)  # fmt: skip
@where_options
def validate(where: Where, spec: Path, as_json: bool, dry_run: bool, speed: str) -> None:
    """Check a job file and every row of its input, without running anything.

    A file that could not be submitted exits with 4; rows that would fail alone are listed. Input may be JSON lines,
    text, CSV, TSV or Parquet, packed with gzip or zstd, in files, globs, URLs or `-`.

    \b
    runner validate job.yaml
    runner validate job.yaml --json
    runner validate job.yaml --dry-run
    runner validate job.yaml --dry-run --speed measure --json
    """
    try:
        with _scanned(spec, where) as (job, scan):
            dry = _dry_run(job, scan, spec.parent, where, speed) if dry_run else None
    except RunnerError as error:
        if as_json:
            click.echo(json.dumps(_refusal(error), ensure_ascii=False))
        raise
    if as_json:
        told = _as_json(scan) if dry is None else {**_as_json(scan), "dry_run": dry}
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        _show(spec, scan)
        if dry is not None:
            from streamrunner.runner.cli.dry_run import show_dry_run

            show_dry_run(dry)


@contextmanager
def _scanned(spec: Path, where: Where) -> Iterator[tuple[JobSpec, InputScan]]:
    """The job and its input, readable until the end of the block."""
    from streamrunner.runner.inputs import scan_input
    from streamrunner.runner.spec import load_spec
    from streamrunner.runner.spool import passing_data_dir

    with passing_data_dir(where.data_dir) as folder:
        job = load_spec(spec)
        yield job, scan_input(job, spec.parent, folder)


def _dry_run(job: JobSpec, scan: InputScan, base: Path, where: Where, speed: str) -> dict[str, Any]:
    from streamrunner.runner.cli.dry_run import run_dry

    return run_dry(job, scan, base, where, speed)


def _show(spec: Path, scan: InputScan) -> None:
    for notice in scan.notices:
        click.echo(f"note: {clean(notice)}")
    for error in scan.errors[:_SHOWN_ERRORS]:
        click.echo(f"{clean(error.where)}: {clean(error.message)} [{error.code}]")
    if scan.num_errors > _SHOWN_ERRORS:
        click.echo(f"… and {scan.num_errors - _SHOWN_ERRORS} more")
    failing = f", {scan.num_errors} of them will fail" if scan.num_errors else ", all can run"
    files = f" in {len(scan.files)} files" if scan.files else ""
    click.echo(f"{clean(str(spec))}: {scan.rows} rows{files}{failing}")


def _as_json(scan: InputScan) -> dict[str, object]:
    return {
        "rows": scan.rows,
        "invalid": scan.num_errors,
        "notices": scan.notices,
        "errors": {"object": "list", "data": [_row_error(error) for error in scan.errors]},
    }


def _refusal(error: RunnerError) -> dict[str, object]:
    """A job that cannot be submitted, in the shape of a batch that failed its validation."""
    from streamrunner.runner.inputs import InvalidInput

    rows = [_row_error(one) for one in error.errors] if isinstance(error, InvalidInput) else []
    whole = {"code": error.code, "line": None, "message": error.message, "param": None}
    return {"errors": {"object": "list", "data": rows or [whole]}}


def _row_error(error: RowError) -> dict[str, object]:
    return {name: value for name, value in asdict(error).items() if name != "file" or value is not None}

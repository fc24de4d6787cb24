"""`runner validate`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamrunner.runner.cli.common import Where, where_options
from streamrunner.runner.terminal import clean

if TYPE_CHECKING:
    from streamrunner.runner.inputs import InputScan

_SHOWN_ERRORS = 20


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Counts and errors as one JSON object.")
@where_options
def validate(where: Where, spec: Path, as_json: bool) -> None:
    """Check a job file and every row of its input, without running anything.

    A file that could not be submitted exits with 4; rows that would fail alone are listed.

    \b
    runner validate job.yaml
    runner validate job.yaml --json
    """
    from streamrunner.runner.inputs import scan_input
    from streamrunner.runner.spec import load_spec

    scan = scan_input(load_spec(spec), spec.parent, where.data_dir)
    if as_json:
        click.echo(json.dumps(_as_json(scan), ensure_ascii=False))
    else:
        _show(spec, scan)


def _show(spec: Path, scan: InputScan) -> None:
    for error in scan.errors[:_SHOWN_ERRORS]:
        click.echo(f"line {error.line}: {clean(error.message)} [{error.code}]")
    if scan.num_errors > _SHOWN_ERRORS:
        click.echo(f"… and {scan.num_errors - _SHOWN_ERRORS} more")
    failing = f", {scan.num_errors} of them will fail" if scan.num_errors else ", all can run"
    click.echo(f"{clean(str(spec))}: {scan.rows} rows{failing}")


def _as_json(scan: InputScan) -> dict[str, object]:
    data = [asdict(error) for error in scan.errors]
    return {"rows": scan.rows, "invalid": scan.num_errors, "errors": {"object": "list", "data": data}}

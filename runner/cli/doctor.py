"""`runner doctor`."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click

from streamrunner.runner.cli.common import Where, where_options
from streamrunner.runner.terminal import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrunner.runner.doctor import Finding

_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="All findings as one JSON object.")
@click.option("--gpu", is_flag=True, help="Import torch and ask it about the GPU, which takes seconds.")
@where_options
def doctor(where: Where, as_json: bool, gpu: bool) -> int:
    """Check this machine, the data dir and the log's server, and say what to do.

    `warn` costs speed or safety, `fail` keeps jobs from running: then the exit code is 69 where it is the log, else 4.
    Nothing is started and nothing is changed.

    \b
    runner doctor
    runner doctor --redis-url redis://127.0.0.1:6379/0
    runner doctor --json | jq '.checks[] | select(.status != "ok")'
    """
    from streamrunner.runner.doctor import examine, exit_code
    from streamrunner.runner.doctor_log import log_checks
    from streamrunner.runner.doctor_machine import machine_checks

    checks = [("settings", lambda: _settings(where)), *machine_checks(gpu=gpu)]
    found = []
    for finding in examine([*checks, *log_checks(where.redis_url, where.data_dir)]):
        found.append(finding)
        if not as_json:
            _show(finding)
    code = exit_code(found)
    if as_json:
        click.echo(json.dumps({"ok": code == 0, "checks": [one.to_json() for one in found]}, ensure_ascii=False))
    return code


def _show(finding: Finding) -> None:
    colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    status = click.style(f"{finding.status:<4}", fg=_COLORS[finding.status]) if colored else f"{finding.status:<4}"
    click.echo(f"{status}  {finding.name:<15} {clean(finding.message)}")
    if finding.remedy:
        click.echo(f"{'':23}{clean(finding.remedy)}")


def _settings(where: Where) -> Iterator[Finding]:
    """Where the log is and who said so; addresses without credentials."""
    from streamrunner.runner.cli.config import config_path, read_config, sources
    from streamrunner.runner.doctor import Finding
    from streamrunner.sinks.address import mask_url

    path = config_path()
    config = read_config(path)
    told = sources(config)
    log = f"redis_url {mask_url(where.redis_url)}" if where.redis_url else f"data_dir {where.data_dir}"
    named = [f"{name} from {source}" for name, source in told.items() if source != "default"]
    yield Finding("settings", "ok", "; ".join([log, *named]) + f" ({path}{'' if path.is_file() else ', not there'})")
    if "redis_url" in config and "@" in config["redis_url"] and path.stat().st_mode & 0o077:
        yield Finding("settings", "warn", f"{path} holds credentials and others may read it", f"chmod 600 {path}")

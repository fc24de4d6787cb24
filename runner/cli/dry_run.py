"""`runner validate --dry-run`: counting every row, with its progress, and what is shown of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streamrunner.runner.cli.finish import running_reader
from streamrunner.runner.display import Counting
from streamrunner.runner.errors import RunnerError
from streamrunner.runner.terminal import clean
from streamrunner.runner.units import format_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.runner.cli.common import Where
    from streamrunner.runner.dry_run import TokenCounts
    from streamrunner.runner.inputs import InputScan
    from streamrunner.runner.spec import JobSpec

_MIB = 1 << 20


def run_dry(job: JobSpec, scan: InputScan, base: Path, where: Where, speed: str) -> dict[str, Any]:
    """Count, predict and report. Raises RunnerError, also where the model cannot be had."""
    from streamrunner.engine.errors import EngineError

    try:
        return _run(job, scan, base, where, speed)
    except EngineError as error:
        raise RunnerError(error.code, error.message) from error


def _run(job: JobSpec, scan: InputScan, base: Path, where: Where, speed: str) -> dict[str, Any]:
    from streamrunner.engine.convert import resolve_model
    from streamrunner.engine.tokenizer import Tokenizer
    from streamrunner.runner.dry_run import context_limit, count_tokens, predict_memory, report

    folder = resolve_model(job.model, where.data_dir / "cache", base).path
    with Counting("counting tokens", scan.rows) as counting:
        limit = context_limit(folder, job.engine.max_model_len)
        counts = count_tokens(job, scan, Tokenizer.load(folder), limit, counting.add)
    time = _predict_time(job, counts, folder, base, where, speed) if counts.prompts else None
    return report(counts, predict_memory(job, counts, folder), time)


def _predict_time(
    job: JobSpec, counts: TokenCounts, folder: Path, base: Path, where: Where, speed: str
) -> dict[str, Any] | None:
    from streamrunner.runner.speed import last_job, measure

    if speed in ("auto", "last"):
        reader = running_reader(where)
        found = None if reader is None else last_job(reader, job.model)
        if found is not None:
            return found.predict(counts)
    if speed in ("auto", "measure"):
        click.echo("measuring this machine with a few of the rows \u2026", err=True)
        return measure(job, folder, base, counts.samples).predict(counts)
    return None


def show_dry_run(dry: dict[str, Any]) -> None:
    """For people."""
    prompt = dry["prompt_tokens"]
    click.echo(
        f"tokens  {prompt['total']} of prompts: half have up to {prompt['p50']}, 95 % up to {prompt['p95']}, "
        f"the longest {prompt['max']}; output at most {dry['output_tokens']['at_most']}"
    )
    for code, rows in dry["failing"].items():
        click.echo(f"fails   {rows} rows with {clean(code)}")
    click.echo(f"time    {_time(dry['time'])}")
    memory = {name: f"{max(round(size / _MIB), 1)} MiB" for name, size in dry["memory_bytes"].items()}
    click.echo(
        f"memory  weights {memory['weights']}, cache up to {memory['cache']} (engine.kv_cache_memory); "
        f"on the log's server at most about {memory['log']}"
    )


def _time(time: dict[str, Any] | None) -> str:
    if time is None:
        return "unknown: no finished job of this model, and nothing measured"
    most = f"at most ~{format_seconds(max(time['at_most_s'], 1))} if every answer uses its max_tokens"
    if time["source"] == "measured":
        return f"{most}, and loading (measured here: {time['output_tokens_per_s']:.0f} tok/s)"
    expected = f"~{format_seconds(max(time['expected_s'], 1))} if it goes as in {time['job']}"
    return f"{expected} ({time['output_tokens_per_s']:.0f} tok/s with its start), {most}"

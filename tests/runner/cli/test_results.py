"""`runner results`: of any job, at any time, in any format."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import pytest

from streamrunner.runner.cli.fail import guarded
from streamrunner.runner.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Callable

RUNNER = Path(sys.executable).with_name("runner")


@pytest.fixture
def job(log_job: Callable[[int], Any]) -> Any:
    return log_job(5)


@pytest.fixture
def results(job: Any, data_dir: Path) -> Callable[..., int]:
    """Runs the verb in this process."""
    arguments = ("--data-dir", str(data_dir))
    return lambda *more: guarded(lambda: cli(["results", "last", *arguments, *more], standalone_mode=False))


def names(content: bytes) -> list[str]:
    return [json.loads(line)["custom_id"] for line in content.splitlines()]


def test_what_a_running_job_has_is_printed_in_either_order(
    job: Any, results: Callable[..., int], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    job.finish(3, 0)
    assert results() == 0
    assert names(capsysbinary.readouterr().out) == ["c3", "c0"]
    assert results("--order", "input") == 0
    assert names(capsysbinary.readouterr().out) == ["c0", "c3"]


def test_failures_can_be_had_alone(
    job: Any, results: Callable[..., int], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    job.finish(0, 1)
    job.finish(2, failed=True)
    assert results("--rows", "failed") == 0
    assert names(capsysbinary.readouterr().out) == ["c2"]
    assert results("--rows", "completed") == 0
    assert names(capsysbinary.readouterr().out) == ["c0", "c1"]


def test_a_file_is_what_its_name_says(
    job: Any, results: Callable[..., int], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    job.finish(1, 0)
    job.cancel()
    expected = ["c0", "c1", "c2", "c3", "row-4"]
    for name in ("out.jsonl", "out.csv", "out.parquet", "out.jsonl.gz"):
        assert results("--order", "input", "-o", str(job.folder / name)) == 0
        assert capsysbinary.readouterr().out == f"5 rows in {job.folder / name}\n".encode()
    assert names((job.folder / "out.jsonl").read_bytes()) == expected
    assert gzip.decompress((job.folder / "out.jsonl.gz").read_bytes()) == (job.folder / "out.jsonl").read_bytes()
    with (job.folder / "out.csv").open(newline="") as file:
        assert [row["custom_id"] for row in csv.DictReader(file)] == expected
    assert pyarrow.parquet.read_table(job.folder / "out.parquet").column("custom_id").to_pylist() == expected


def test_a_place_that_cannot_be_written_is_named(job: Any, results: Callable[..., int], capsys: Any) -> None:
    assert results("-o", str(job.folder / "nowhere" / "out.jsonl")) == 4
    assert "[output_unwritable]" in capsys.readouterr().err


def test_following_ends_with_the_job_and_prints_every_row_once(job: Any, data_dir: Path) -> None:
    command = [str(RUNNER), "results", "last", "--follow", "--order", "input", "--data-dir", str(data_dir)]
    job.finish(2, 0)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert names(process.stdout.readline()) == ["c0"]
        job.finish(1)
        assert names(process.stdout.readline() + process.stdout.readline()) == ["c1", "c2"]
        job.cancel()
        assert names(process.stdout.read()) == ["c3", "row-4"]
    assert process.returncode == 0


def test_following_and_saving_do_not_go_together(results: Callable[..., int], capsys: Any) -> None:
    assert results("--follow", "-o", "x.jsonl") == 2
    assert "--follow prints" in capsys.readouterr().err

"""Outputs that follow a real log."""

from __future__ import annotations

import csv
import errno
import gzip
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.exporter import Exporter
from streamrunner.runner.spec import OutputSpec
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.outputs.append_file import AppendFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUM_ROWS = 5


@pytest.fixture
def job(log_job: Callable[[int], Any]) -> Any:
    return log_job(NUM_ROWS)


def exporter(job: Any, path: str = "out/results.jsonl", **options: Any) -> Exporter:
    return Exporter(job.context, job.server, OutputSpec(path=path, **options))


def export(job: Any, path: str = "out/results.jsonl", **options: Any) -> None:
    started = exporter(job, path, **options)
    started.start()
    started.finish()


def text(job: Any, path: str = "out/results.jsonl") -> str:
    raw = (job.folder / path).read_bytes()
    return (gzip.decompress(raw) if path.endswith(".gz") else raw).decode()


def names(job: Any, path: str = "out/results.jsonl") -> list[str]:
    if ".csv" in path:
        return [row["custom_id"] for row in csv.DictReader(text(job, path).splitlines())]
    return [json.loads(line)["custom_id"] for line in text(job, path).splitlines()]


def test_a_row_is_in_the_file_as_soon_as_it_has_ended(job: Any, eventually: Any) -> None:
    running = exporter(job)
    running.start()
    job.finish(0)
    eventually(lambda: (job.folder / "out/results.jsonl").exists() and names(job) == ["c0"])
    job.finish(1)
    eventually(lambda: names(job) == ["c0", "c1"])
    running.finish()


def test_in_the_order_of_the_input_a_row_waits_for_those_before_it(job: Any, eventually: Any) -> None:
    running = exporter(job, order="input")
    running.start()
    job.finish(2, 0)
    eventually(lambda: (job.folder / "out/results.jsonl").exists() and names(job) == ["c0"])
    job.finish(1)
    eventually(lambda: names(job) == ["c0", "c1", "c2"])
    running.finish()


@pytest.mark.parametrize("order", ["completion", "input"])
@pytest.mark.parametrize("path", ["results.jsonl", "results.csv", "results.jsonl.gz"])
def test_an_export_after_an_export_adds_only_what_is_new(job: Any, path: str, order: str) -> None:
    job.finish(1, 0)
    export(job, path, order=order)
    job.finish(2)
    job.finish(4, 3)
    export(job, path, order=order)
    assert names(job, path) == ["c0", "c1", "c2", "c3", "c4"] if order == "input" else ["c1", "c0", "c2", "c4", "c3"]


def test_results_and_failures_have_a_file_each(job: Any) -> None:
    job.finish(0)
    job.finish(1, failed=True)
    job.cancel()
    export(job, "ok.jsonl", rows="completed")
    export(job, "errors.jsonl", rows="failed")
    assert names(job, "ok.jsonl") == ["c0"]
    assert names(job, "errors.jsonl") == ["c1", "c2", "c3", "row-4"]


def test_a_file_that_lost_a_line_gets_it_again(job: Any) -> None:
    job.finish(0)
    job.finish(1)
    export(job)
    first, second = text(job).splitlines(keepends=True)
    (job.folder / "out/results.jsonl").write_text(first + second[:20])
    export(job)
    assert text(job) == first + second


@pytest.mark.parametrize("order", ["completion", "input"])
def test_a_file_edited_between_two_runs_never_has_a_row_twice(job: Any, order: str) -> None:
    job.finish(0, 1, 2)
    export(job, order=order)
    first, second, third = text(job).splitlines(keepends=True)
    for edited in (first + first + third, third + second + first, second, ""):
        (job.folder / "out/results.jsonl").write_text(edited)
        export(job, order=order)
        assert sorted(names(job)) == ["c0", "c1", "c2"]
        if order == "input":
            assert text(job) == first + second + third


def test_a_deleted_file_is_written_again(job: Any) -> None:
    job.finish(0, 1)
    export(job)
    before = text(job)
    (job.folder / "out/results.jsonl").unlink()
    export(job)
    assert text(job) == before


def test_a_file_that_is_deleted_while_the_job_runs_is_written_again(job: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("streamrunner.runner.exporter._DISK_RETRY_S", 0.01)
    job.finish(0)
    running = exporter(job)
    running.start()
    (job.folder / "out/results.jsonl").unlink()
    job.finish(1)
    running.finish()
    assert names(job) == ["c0", "c1"]


@pytest.mark.parametrize("order", ["completion", "input"])
def test_every_row_of_a_cancelled_job_has_one_line(job: Any, order: str) -> None:
    job.finish(3)
    export(job, order=order)
    job.cancel()
    export(job, order=order)
    assert names(job) == (["c0", "c1", "c2", "c3", "row-4"] if order == "input" else ["c3", "c0", "c1", "c2", "row-4"])
    export(job, order=order)
    assert len(names(job)) == NUM_ROWS


def test_two_exporters_at_once_write_every_row_once(job: Any) -> None:
    job.finish(0, 1)
    exporters = [exporter(job) for _ in range(2)]
    refused = []
    for one in exporters:
        try:
            one.start()
        except SinkError as error:
            refused.append(error.code)
    job.finish(2)
    exporters[0].finish()
    assert refused == ["output_locked"]
    assert names(job) == ["c0", "c1", "c2"]


def test_a_full_disk_is_waited_for_and_nothing_is_doubled(job: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("streamrunner.runner.exporter._DISK_RETRY_S", 0.01)
    full, tried = threading.Event(), threading.Event()
    full.set()
    write = AppendFile._write

    def half_write(file: AppendFile, content: bytes) -> None:
        if full.is_set():
            write(file, content[: len(content) * 3 // 4])
            tried.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, content)

    monkeypatch.setattr(AppendFile, "_write", half_write)
    job.finish(0, 1)
    running = exporter(job)
    running.start()
    assert tried.wait(5)
    full.clear()
    job.finish(2)
    running.finish()
    assert names(job) == ["c0", "c1", "c2"]


def test_a_disk_that_stays_full_is_told_and_the_next_run_completes_the_file(job: Any, monkeypatch: Any) -> None:
    def refuse(_file: AppendFile, _record: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    job.finish(0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(AppendFile, "_write", refuse)
        with pytest.raises(SinkError, match=r"No space left on device.*run the same command again") as caught:
            export(job)
    assert caught.value.code == "output_disk_full"
    export(job)
    assert names(job) == ["c0", "c1"]


def test_an_input_that_went_away_is_told_and_not_lost_in_a_thread(job: Any) -> None:
    job.finish(0)
    (job.folder / "rows.jsonl").unlink()
    job.cancel()
    with pytest.raises(RunnerError, match=r"rows\.jsonl"):
        export(job)
    assert names(job) == ["c0"]


def test_a_file_of_somebody_else_is_refused_at_once(job: Any) -> None:
    path: Path = job.folder / "out" / "results.jsonl"
    path.parent.mkdir()
    path.write_text("notes\n")
    with pytest.raises(SinkError) as caught:
        exporter(job).start()
    assert caught.value.code == "output_exists"

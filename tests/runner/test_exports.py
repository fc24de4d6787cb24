"""Several outputs of one job: each is written whatever happens to the others."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.runner.exports import Exports
from streamrunner.runner.spec import JobSpec
from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def job(log_job: Callable[[int], Any]) -> Any:
    return log_job(5)


def exports(job: Any, *outputs: dict[str, Any]) -> Exports:
    spec = JobSpec.model_validate({"name": "t", "model": "m", "input": {"path": "rows.jsonl"}, "outputs": outputs})
    return Exports(dataclasses.replace(job.context, spec=spec), job.server)


def names(job: Any, path: str) -> list[str]:
    return [json.loads(line)["custom_id"] for line in (job.folder / path).read_text().splitlines()]


def test_all_outputs_are_written_at_once(job: Any) -> None:
    group = exports(job, {"path": "a.jsonl"}, {"path": "b.jsonl", "order": "input"}, {"path": "c.parquet"})
    group.start()
    job.finish(2, 0)
    job.cancel()
    group.finish()
    assert names(job, "a.jsonl") == ["c2", "c0", "c1", "c3", "row-4"]
    assert names(job, "b.jsonl") == ["c0", "c1", "c2", "c3", "row-4"]
    assert (job.folder / "c.parquet" / "part-00000.parquet").exists()


def test_an_output_that_fails_is_told_once_the_others_are_complete(job: Any) -> None:
    group = exports(job, {"path": "a.jsonl"}, {"path": "b.jsonl"})
    group.start()
    (job.folder / "a.jsonl").write_text("notes\n")
    job.finish(0, 1)
    with pytest.raises(SinkError, match=r"a\.jsonl") as caught:
        group.finish()
    assert caught.value.code == "output_exists"
    assert names(job, "b.jsonl") == ["c0", "c1"]


def test_one_that_cannot_be_had_stops_all_before_anything_runs(job: Any) -> None:
    (job.folder / "b.jsonl").write_text("notes\n")
    with pytest.raises(SinkError, match=r"b\.jsonl"):
        exports(job, {"path": "a.jsonl"}, {"path": "b.jsonl"}).start()
    again = exports(job, {"path": "a.jsonl"})
    again.start()
    again.finish()


def test_outputs_that_another_process_writes_are_left_to_it(job: Any) -> None:
    job.finish(0)
    first = exports(job, {"path": "a.jsonl"})
    first.start()
    second = exports(job, {"path": "a.jsonl"}, {"path": "b.jsonl"})
    second.start_free()
    second.finish()
    first.finish()
    assert names(job, "a.jsonl") == names(job, "b.jsonl") == ["c0"]


def test_who_has_to_go_does_not_wait_for_ever(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrunner.runner.exporter.Exporter.running", True)
    group = exports(job, {"path": "a.jsonl"})
    group.start()
    with pytest.raises(SinkError) as caught:
        group.finish(lambda: 0.05)
    assert caught.value.code == "output_unfinished"

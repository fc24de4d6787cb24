"""Results as any reader makes them of a real log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.result_feed import ResultFeed
from streamrunner.runner.results import spans_of
from streamrunner.runner.row_index import pack_id
from streamrunner.runner.selection import Selection
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.outputs.formats import jsonl_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUM_ROWS = 70  # two ranges


@pytest.fixture
def job(log_job: Callable[[int], Any]) -> Any:
    return log_job(NUM_ROWS)


def lines(job: Any, *selection: Any) -> list[dict[str, Any]]:
    feed = ResultFeed(job.client, job.context.keys)
    rows = Selection(*selection).ended_rows(feed.index).tolist()
    return [json.loads(jsonl_line(b"J", record)) for record in feed.results.records(rows)]


def names(job: Any, *selection: Any) -> list[str]:
    return [line["custom_id"] for line in lines(job, *selection)]


def test_rows_come_in_the_order_of_their_endings_with_their_bodies(job: Any) -> None:
    job.finish(2)
    job.finish(0, failed=True)
    job.finish(1)
    found = lines(job)
    assert [line["custom_id"] for line in found] == ["c2", "c0", "c1"]
    assert [line["response"]["status_code"] for line in found] == [200, 400, 200]
    assert found[2]["response"]["body"]["choices"][0]["text"] == "text of 1"
    assert found[1]["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_rows_come_in_the_order_of_the_input_where_that_is_wanted(job: Any) -> None:
    job.finish(66, 2, 0, 1)
    assert names(job, "all", "input") == ["c0", "c1", "c2", "c66"]


def test_results_and_failures_can_be_had_apart(job: Any) -> None:
    job.finish(0)
    job.finish(1, failed=True)
    job.cancel()
    assert names(job, "completed") == ["c0"]
    assert names(job, "failed")[:2] == ["c1", "c2"]
    assert len(names(job, "failed")) == NUM_ROWS - 1


def test_a_log_without_endings_has_no_results(job: Any) -> None:
    assert lines(job) == []


@pytest.mark.parametrize("order", ["completion", "input"])
def test_open_rows_of_a_cancelled_job_say_so_under_their_own_names(job: Any, order: str) -> None:
    job.finish(3)
    job.cancel()
    found = lines(job, "all", order)
    expected = [f"c{i}" for i in range(NUM_ROWS - 1)] + [f"row-{NUM_ROWS - 1}"]
    if order == "completion":
        expected.insert(0, expected.pop(3))
    assert [line["custom_id"] for line in found] == expected
    shared = [line for line in found if line["custom_id"] != "c3"]
    assert all(line["response"] is None and line["error"]["code"] == "batch_cancelled" for line in shared)
    assert len({line["id"] for line in found}) == NUM_ROWS


def test_the_reason_of_a_failed_job_is_the_error_of_its_open_rows(job: Any) -> None:
    job.log.end("failed", "the model is broken")
    errors = [line["error"] for line in lines(job)]
    assert errors == [{"code": "batch_failed", "message": "the model is broken"}] * NUM_ROWS


def test_the_input_is_needed_only_for_ranges_with_open_rows(job: Any, tmp_path: Path) -> None:
    job.finish(*range(64))
    (tmp_path / "rows.jsonl").unlink()
    job.cancel()
    assert len(lines(job, "completed")) == 64
    with pytest.raises(RunnerError) as caught:
        lines(job)
    assert caught.value.code == "input_missing"


def test_a_payload_that_the_log_has_lost_is_named(job: Any) -> None:
    job.finish(0, 1)
    job.client.delete(job.context.keys.res)
    with pytest.raises(SinkError) as caught:
        lines(job)
    assert caught.value.code == "results_missing"


def test_neighbours_are_read_as_one_page_and_far_entries_alone() -> None:
    packed = [pack_id(seq, 0) for seq in (5, 6, 9, 1000)] + [pack_id(1001, 1)]
    assert [tuple(span) for span in spans_of(packed)] == [("5-0", "9-0"), ("1000-0", "1001-1")]
    assert list(spans_of([])) == []

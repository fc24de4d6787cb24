from __future__ import annotations

from typing import Any

import pytest

from streamrunner.runner.fold import JobState, WorkerState
from streamrunner.runner.summary import eta_s, phase_of, state_as_json, summarize
from streamrunner.sinks.directory import JobPointer

POINTER = JobPointer("job_1", "capitals", 5000)
META = {
    "status": "in_progress", "rows": "10", "completed": "4", "failed": "1", "cancelled": "0", "expired": "0",
    "prompt_tokens": "30", "completion_tokens": "40", "created": "1700000000123", "started": "1700000001999",
    "w:a": "joined", "w:b": "lost",
}  # fmt: skip


RUNNING = {
    "phase": "running", "running": 3, "waiting": 1, "rows": 5, "in_flight_rows": 4, "in_flight_tokens": 70,
    "prompt_tokens": 30, "output_tokens": 110, "rows_per_s": 0.25, "prompt_tokens_per_s": 3.0,
    "output_tokens_per_s": 10.04, "kv_cache_usage": 0.5, "queue_wait_ms": 0.0, "eta_s": 60.0, "drain_s": 10.0,
}  # fmt: skip


def test_the_summary_is_openais_batch_object_with_rates_beside_it() -> None:
    one = summarize(POINTER, META, {"a": RUNNING})
    assert one["object"] == "batch"
    assert one["request_counts"] == {"total": 10, "completed": 4, "failed": 1, "cancelled": 0, "expired": 0}
    assert one["usage"] == {"input_tokens": 30, "output_tokens": 40, "total_tokens": 70}
    assert (one["created_at"], one["in_progress_at"], one["ended_at"]) == (1700000000, 1700000001, None)
    assert (one["running"], one["output_tokens_per_s"], one["eta_s"]) == (3, 10.0, 60.0)
    assert one["in_flight"] == {"rows": 4, "tokens": 70}


def test_each_worker_has_its_own_rates() -> None:
    workers = summarize(POINTER, META, {"b": {}, "a": RUNNING})["workers"]
    assert [one["id"] for one in workers] == ["a", "b"]
    assert (workers[0]["rows_per_s"], workers[0]["output_tokens_per_s"], workers[0]["phase"]) == (
        0.25,
        10.04,
        "running",
    )
    assert workers[1]["output_tokens_per_s"] is None


def test_a_job_that_nobody_has_begun_is_validating_and_promises_nothing() -> None:
    one = summarize(POINTER, {})
    assert (one["status"], one["request_counts"]["total"], one["eta_s"]) == ("validating", 0, None)


def test_a_job_that_has_ended_has_no_time_left() -> None:
    one = summarize(POINTER, META | {"status": "cancelled"}, {"a": RUNNING})
    assert (one["eta_s"], one["phase"], one["workers"], one["running"]) == (0.0, None, [], 0)


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        ([], None),
        ([{}, {"phase": "loading"}], None),
        ([{"eta_s": 60.0, "drain_s": 10.0}], 60.0),
        ([{"eta_s": 60.0, "drain_s": 10.0}, {"eta_s": 60.0, "drain_s": 10.0}], 35.0),  # only 50 s are shared
        ([{"eta_s": 110.0, "drain_s": 10.0}, {"eta_s": 30.0, "drain_s": 5.0}], 30.0),  # 1 / (1/100 + 1/25) + 10
        ([{"eta_s": 0.0, "drain_s": 0.0}], 0.0),
        ([{"eta_s": 5.0, "drain_s": 5.0}, {"eta_s": 50.0, "drain_s": 10.0}], 10.0),
    ],
)
def test_workers_share_all_but_the_end(progress: list[dict[str, Any]], expected: float | None) -> None:
    assert eta_s(progress) == expected


def test_a_phase_is_told_until_one_worker_runs() -> None:
    assert phase_of([]) is None
    assert phase_of([{}]) == "starting"
    assert phase_of([{"phase": "loading the model"}]) == "loading the model"
    assert phase_of([{"phase": "loading the model"}, RUNNING]) == "running"


def test_a_watcher_is_told_the_same_as_who_asks_for_the_status() -> None:
    state = JobState(
        name="t", status="in_progress", num_rows=10, workers={"a": WorkerState(1, "h", 1, progress=RUNNING)}
    )
    told, asked = state_as_json("job_1", state), summarize(POINTER, META, {"a": RUNNING})
    same = ("phase", "running", "in_flight", "rows_per_s", "output_tokens_per_s", "eta_s", "workers")
    assert {name: told[name] for name in same} == {name: asked[name] for name in same}

from __future__ import annotations

import pytest

from streamrunner.runner.summary import estimate_s, summarize
from streamrunner.sinks.directory import JobPointer

POINTER = JobPointer("job_1", "capitals", 5000)
META = {
    "status": "in_progress", "rows": "10", "completed": "4", "failed": "1", "cancelled": "0", "expired": "0",
    "prompt_tokens": "30", "completion_tokens": "40", "created": "1700000000123", "started": "1700000001999",
    "w:a": "joined", "w:b": "lost",
}  # fmt: skip


def test_the_summary_is_openais_batch_object_with_rates_beside_it() -> None:
    one = summarize(POINTER, META, [{"output_tokens_per_s": 10.04, "running": 3}])
    assert one["object"] == "batch"
    assert one["request_counts"] == {"total": 10, "completed": 4, "failed": 1, "cancelled": 0, "expired": 0}
    assert one["usage"] == {"input_tokens": 30, "output_tokens": 40, "total_tokens": 70}
    assert (one["created_at"], one["in_progress_at"], one["ended_at"]) == (1700000000, 1700000001, None)
    assert (one["workers"], one["running"], one["output_tokens_per_s"]) == (1, 3, 10.0)
    assert one["eta_s"] == 5.0


def test_a_job_that_nobody_has_begun_is_validating() -> None:
    one = summarize(POINTER, {})
    assert (one["status"], one["request_counts"]["total"], one["eta_s"]) == ("validating", 0, 0.0)


@pytest.mark.parametrize(
    ("open_rows", "completed", "tokens", "rate", "expected"),
    [(0, 5, 100, 0.0, 0.0), (5, 0, 0, 50.0, None), (5, 5, 100, 0.0, None), (6, 3, 300, 50.0, 12.0)],
)
def test_the_estimate_is_from_remaining_work_or_unknown(
    open_rows: int, completed: int, tokens: int, rate: float, expected: float | None
) -> None:
    assert estimate_s(open_rows, completed, tokens, rate) == expected

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from streamrunner.runner.limits import Breach, Tally, find_breach
from streamrunner.runner.settle import find_due_end
from streamrunner.runner.spec_control import LimitsSpec

NOW = 1_800_000_000_000
HOUR = 3_600_000


def limits(**values: Any) -> LimitsSpec:
    return LimitsSpec.model_validate(values)


def tally(completed: int = 0, failed: int = 0, tokens: int = 0, now_ms: int = NOW) -> Tally:
    return Tally(completed, failed, tokens, now_ms, NOW - HOUR)


@pytest.mark.parametrize(
    ("limit", "value", "below", "reached"),
    [
        ("deadline", "2h", tally(), tally(now_ms=NOW + HOUR)),
        ("deadline", "2027-01-15T08:00:00Z", tally(now_ms=NOW - 1), tally()),
        ("max_output_tokens", "5k", tally(tokens=4999), tally(tokens=5000)),
        ("max_failed", 3, tally(failed=3), tally(failed=4)),
        ("max_failed", 0, tally(completed=9), tally(failed=1)),
        ("max_error_rate", 0.2, tally(16, 4), tally(15, 5)),
        ("max_error_rate", 0.2, tally(0, 19), tally(0, 20)),
    ],
)
def test_a_limit_ends_the_job_when_it_is_reached_and_not_before(
    limit: str, value: Any, below: Tally, reached: Tally
) -> None:
    assert find_breach(limits(**{limit: value}), below) is None
    found = find_breach(limits(**{limit: value}), reached)
    assert found is not None
    assert (found.limit, found.status) == (limit, "expired" if limit == "deadline" else "cancelled")
    assert found.reason


def test_no_limits_never_end_a_job_and_no_deadline_runs_before_it_starts() -> None:
    assert find_breach(limits(), tally(1, 99, 10**12)) is None
    assert find_breach(limits(deadline="1s"), Tally(0, 0, 0, NOW, 0)) is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"deadline": "soon"}, "a duration with its unit"),
        ({"deadline": "0s"}, "longer than nothing"),
        ({"deadline": "2026-12-02T08:00:00"}, "time zone"),
        ({"max_output_tokens": "many"}, "5000, 200k or 5M"),
        ({"max_error_rate": 1.0}, "less than 1"),
        ({"max_failed": -1}, "greater than or equal to 0"),
    ],
)
def test_a_limit_that_cannot_be_meant_is_refused_in_words(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        LimitsSpec.model_validate(values)


META = {"status": "in_progress", "clock": str(NOW - HOUR), "limits": '{"deadline":"30m","max_failed":2}'}


@pytest.mark.parametrize(
    ("changed", "now_ms", "alive", "due"),
    [
        ({}, NOW, False, "deadline"),
        ({}, NOW - 1 - HOUR // 2, False, None),
        ({}, NOW - HOUR // 2 + 1000, True, None),
        ({}, NOW - HOUR // 2 + 3000, True, "deadline"),
        ({"paused": "1"}, NOW, False, "deadline"),
        ({"failed": "3"}, NOW - HOUR, False, "max_failed"),
        ({"failed": "3"}, NOW - HOUR, True, None),
        ({"status": "cancelling"}, NOW, False, ""),
        ({"status": "cancelling"}, NOW, True, None),
        ({"status": "completed"}, NOW, False, None),
        ({"limits": "{}"}, NOW, False, None),
        ({"rows": "3", "failed": "3"}, NOW, False, ""),
        ({"rows": "3", "failed": "3"}, NOW, True, None),
    ],
)
def test_whoever_looks_ends_what_no_living_worker_will(
    changed: dict[str, str], now_ms: int, alive: bool, due: str | None
) -> None:
    found: Breach | None = find_due_end({**META, **changed}, now_ms, lambda: alive)
    assert (found.limit if found else None) == due

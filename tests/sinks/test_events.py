from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from streamrunner.sinks.events import EVENT_MODELS, validate_event

ROW = {"row": 3, "custom_id": "c", "attempt": 1, "range": "1-0", "claim": 2}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
EXAMPLES: dict[str, dict[str, Any]] = {
    "request.completed": {**ROW, "finish_reasons": ["stop", "length"], "usage": USAGE},
    "request.failed": {**ROW, "error": {"code": "context_length_exceeded", "message": "too long", "param": None}},
    "range.claimed": {"range": "1-0", "claim": 1, "worker": "a", "epoch": 1, "first": 0, "count": 64, "from": None},
    "job.resumed": {"changes": {"engine": {"max_num_seqs": 8}}},
    "job.started": {},
}


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
def test_events_as_they_are_written_are_valid(kind: str) -> None:
    assert isinstance(validate_event(kind, EXAMPLES[kind]), EVENT_MODELS[kind])


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
def test_an_unknown_field_is_out_of_contract(kind: str) -> None:
    with pytest.raises(ValidationError):
        validate_event(kind, {**EXAMPLES[kind], "surprise": 1})


def test_a_missing_field_is_named() -> None:
    without = {name: value for name, value in EXAMPLES["request.failed"].items() if name != "error"}
    with pytest.raises(ValidationError, match="error"):
        validate_event("request.failed", without)


def test_an_unknown_type_is_no_event() -> None:
    with pytest.raises(KeyError):
        validate_event("request.glorified", {})


def test_events_cannot_be_changed_after_the_fact() -> None:
    event = validate_event("job.started", {})
    with pytest.raises(ValidationError):
        event.anything = 1  # type: ignore[attr-defined]

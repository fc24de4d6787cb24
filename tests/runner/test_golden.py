"""Logs that earlier releases wrote must fold for ever: each file here was written by a real run and is never edited."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamrunner.runner.fold import fold
from streamrunner.sinks.events import validate_event
from streamrunner.sinks.wire import LogEntry, parse_log_entry

GOLDEN = Path(__file__).with_name("golden")


def entries(name: str) -> list[LogEntry]:
    found = []
    for line in (GOLDEN / name).read_text("utf-8").split("\n")[:-1]:
        fields = json.loads(line)
        raw_id = fields.pop("id").encode()
        found.append(parse_log_entry(raw_id, {key.encode(): value.encode() for key, value in fields.items()}))
    return found


def test_a_job_that_was_killed_and_resumed() -> None:
    state = fold(entries("v1-killed-and-resumed.jsonl"))
    state.check()
    assert (state.name, state.status) == ("quickstart", "completed")
    assert (state.completed, state.failed, state.open_rows) == (24, 0, 0)
    assert (state.prompt_tokens, state.completion_tokens) == (1166, 1154)
    assert len(state.workers) == 2
    assert not any(worker.alive for worker in state.workers.values())


def test_a_job_that_was_paused_cancelled_and_retried() -> None:
    state = fold(entries("v1-controlled.jsonl"))
    state.check()
    assert (state.status, state.spec["priority"], state.limit) == ("completed", 0, None)
    assert (state.completed, state.failed, state.cancelled, state.open_rows) == (16, 1, 7, 0)
    assert state.attempts == {1: 2, 20: 2, 21: 2, 22: 2}
    assert state.spec["limits"] == {"max_output_tokens": 1_000_000}
    assert not any(worker.alive for worker in state.workers.values())


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.jsonl")))
def test_old_events_still_fit_the_vocabulary(name: str) -> None:
    found = entries(name)
    assert [entry.seq for entry in found] == list(range(1, len(found) + 1))
    for entry in found:
        validate_event(entry.type, entry.data)

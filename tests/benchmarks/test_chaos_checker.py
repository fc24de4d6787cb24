"""The checker must find every fault it promises to find: each test breaks one thing in a sound job."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from chaos_kit.checker import Recomputed, check_job, count_recomputed, overlay, parse_admission, texts_of
from chaos_kit.streams import Delta, Event, Streams

TEXTS = {"a": ["Hello world"], "b": ["one", "two"]}
ROWS = {"a": 0, "b": 1}


def event(seq: int, kind: str, time: int, **data: Any) -> Event:
    return Event(seq, 0, kind, time, data)


def delta(row: int, claim: int, choice: int, at: int, text: str, *, time: int = 150, worker: str = "w") -> Delta:
    """One token per word."""
    return Delta(time, worker, row, claim, choice, at, tuple(range(len(text.split()))), text)


def line(custom_id: str, texts: list[str]) -> dict[str, Any]:
    choices = [{"index": index, "message": {"content": text}} for index, text in enumerate(texts)]
    body = {"choices": choices[::-1]}
    return {"id": f"batch_req_{custom_id}", "custom_id": custom_id, "response": {"body": body}, "error": None}


@pytest.fixture
def streams() -> Streams:
    events = [
        event(1, "job.submitted", 100, rows=2),
        event(2, "request.completed", 200, row=0, custom_id="a"),
        event(3, "request.completed", 300, row=1, custom_id="b"),
        event(4, "job.ended", 400),
    ]
    deltas = [
        delta(0, 1, 0, 0, "Hello"),
        delta(0, 2, 0, 0, "Hello", time=180),
        delta(0, 2, 0, 1, " world", time=190),
        delta(1, 1, 0, 0, "one"),
        delta(1, 1, 1, 0, "two"),
    ]
    return Streams(events, {"2-0": {}, "3-0": {}}, deltas)


@pytest.fixture
def lines() -> list[dict[str, Any]]:
    return [line(name, texts) for name, texts in TEXTS.items()]


def admission(row: int = 0, claim: int = 1, resumed: int = 0, not_before: int = 110) -> Any:
    return parse_admission(f"job_1 {row} 0 1 {claim} {resumed} 77", not_before)


def broken(streams: Streams, lines: list[dict[str, Any]], admissions: list[Any] | None = None) -> dict[str, list[str]]:
    checks = check_job(streams, lines, admissions or [], TEXTS)
    return {check.name: check.offenders for check in checks if check.offenders}


def test_a_sound_job_passes(streams: Streams, lines: list[dict[str, Any]]) -> None:
    assert broken(streams, lines, [admission(), admission(row=1), admission(claim=2, resumed=1)]) == {}


def test_a_row_without_an_output_line_is_lost(streams: Streams, lines: list[dict[str, Any]]) -> None:
    found = broken(streams, lines[:1])
    assert found["rows without a result"] == ["b"]
    assert found["output lines too many, or with an id twice"] == ["1 lines for 2 rows"]


def test_a_row_without_a_terminal_event_is_lost(streams: Streams, lines: list[dict[str, Any]]) -> None:
    del streams.events[2]
    found = broken(streams, lines)
    assert found["rows without a result"] == ["b"]
    assert found["rows with other than one terminal event"] == ["row 1: 0"]
    assert found["seqs missing from the log"] == ["seq 3 is 4"]


def test_two_terminal_events_of_a_row_are_found(streams: Streams, lines: list[dict[str, Any]]) -> None:
    streams.events.append(event(5, "request.failed", 500, row=0, custom_id="a"))
    assert broken(streams, lines)["rows with other than one terminal event"] == ["row 0: 2"]


def test_a_terminal_event_without_its_payload_is_found(streams: Streams, lines: list[dict[str, Any]]) -> None:
    del streams.payloads["3-0"]
    assert broken(streams, lines) == {"terminal events without a payload": ["3-0"]}


def test_a_line_written_twice_is_found(streams: Streams, lines: list[dict[str, Any]]) -> None:
    found = broken(streams, [*lines, lines[0]])
    assert found["output lines too many, or with an id twice"] == [
        "custom_id a",
        "id batch_req_a",
        "3 lines for 2 rows",
    ]


def test_a_text_that_differs_in_one_choice_is_found(streams: Streams, lines: list[dict[str, Any]]) -> None:
    lines[1] = line("b", ["one", "Two"])
    found = broken(streams, lines)
    assert found["texts that differ from the undisturbed run"] == ["b"]
    assert found["streamed texts that differ from the result"] == ["row 1 choice 1"]


def test_an_admission_after_the_terminal_event_is_found(streams: Streams, lines: list[dict[str, Any]]) -> None:
    found = broken(streams, lines, [admission(not_before=201)])
    assert found == {"finished rows admitted again": ["row 0 choice 0 by pid 77"]}


def test_an_admission_of_unknown_time_before_the_terminal_event_is_none(
    streams: Streams, lines: list[dict[str, Any]]
) -> None:
    assert broken(streams, lines, [admission(not_before=200)]) == {}


def test_two_admissions_under_one_claim_are_found(streams: Streams, lines: list[dict[str, Any]]) -> None:
    found = broken(streams, lines, [admission(), admission()])
    assert found == {"finished rows admitted again": ["row 0 choice 0 twice under claim 1"]}


def test_a_failed_row_has_no_text() -> None:
    failed = {"custom_id": "a", "response": {"status_code": 400, "body": {"error": {}}}, "error": None}
    cancelled = {"custom_id": "b", "response": None, "error": {"code": "batch_cancelled"}}
    assert texts_of([failed, cancelled]) == {"a": [], "b": []}


def test_overlay_keeps_the_highest_claim_and_drops_repeats() -> None:
    deltas = [
        delta(0, 1, 0, 0, "stale words here"),
        delta(0, 2, 0, 0, "Hello"),
        delta(0, 2, 0, 1, " big world"),
        delta(0, 2, 0, 1, " big world"),
        delta(0, 2, 0, 0, "Hello big world"),
        delta(0, 2, 0, 3, " again"),
    ]
    assert overlay(deltas) == "Hello big world again"


def test_overlay_knows_what_it_has_not_seen() -> None:
    assert overlay([delta(0, 2, 0, 4, "tail")]) is None


def test_recomputed_tokens_are_counted_by_kind(streams: Streams) -> None:
    taken_over = count_recomputed(streams, [admission(claim=2, resumed=1)], [])
    assert taken_over == Recomputed(prefilled=1, decoded_twice=0, unwritten=0)
    begun_anew = count_recomputed(streams, [admission(claim=2, resumed=0)], [])
    assert begun_anew == Recomputed(prefilled=0, decoded_twice=1, unwritten=0)


def test_unwritten_tokens_are_estimated_from_the_rate_before_the_kill(streams: Streams) -> None:
    steady = [delta(0, 2, 0, 1, "one two", time=1000 + 100 * step) for step in range(10)]
    busy = dataclasses.replace(streams, deltas=steady)
    # Twenty tokens in that second, and 100 ms since the last of them.
    assert count_recomputed(busy, [], [2000]).unwritten == 2
    assert count_recomputed(busy, [], [9000]).unwritten == 0

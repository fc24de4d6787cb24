from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamrunner.runner.fold import CANCELLED, COMPLETED, FAILED, OPEN, JobState, fold
from streamrunner.sinks.wire import LogEntry

USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def history(*events: tuple[str, dict[str, Any]]) -> list[LogEntry]:
    return [LogEntry(i + 1, 0, kind, 1, 1000 * (i + 1), "w1", data) for i, (kind, data) in enumerate(events)]


def row(kind: str, number: int) -> tuple[str, dict[str, Any]]:
    usage = {"usage": USAGE} if kind == "completed" else {}
    return f"request.{kind}", {"row": number, "custom_id": "c", "attempt": 1, **usage}


SUBMITTED = ("job.submitted", {"name": "capitals", "rows": 4, "spec": {"model": "m", "outputs": []}})
JOINED = ("worker.joined", {"worker": "w1", "epoch": 1, "host": "h", "pid": 7})
LIFE = history(
    SUBMITTED,
    ("job.started", {}),
    JOINED,
    row("completed", 2),
    row("failed", 0),
    ("job.paused", {}),
    ("job.resumed", {"changes": {"outputs": [{"path": "x"}]}}),
    ("progress", {"running": 2}),
    ("notice", {"code": "c", "message": "m"}),
    ("worker.lost", {"worker": "w1", "reason": "r"}),
    ("job.cancel_requested", {}),
    ("job.ended", {
        "status": "cancelled", "reason": "by request",
        "counts": {"rows": 4, "completed": 1, "failed": 1, "cancelled": 2, "expired": 0}, "usage": USAGE,
    }),
)  # fmt: skip


def test_a_whole_life_gives_the_state_a_user_is_shown() -> None:
    state = fold(LIFE)
    state.check()
    assert (state.status, state.reason, state.ended) == ("cancelled", "by request", True)
    assert (state.completed, state.failed, state.cancelled, state.open_rows) == (1, 1, 2, 0)
    assert list(state.rows) == [FAILED, OPEN, COMPLETED, OPEN]
    assert (state.prompt_tokens, state.completion_tokens) == (3, 4)
    assert state.notices == [{"code": "c", "message": "m"}]
    assert (state.submitted_ms, state.started_ms, state.ended_ms) == (1000, 2000, 12000)


@given(st.integers(0, len(LIFE)), st.integers(0, 3))
def test_any_prefix_and_the_rest_give_the_same_state_even_with_repeats(cut: int, repeat: int) -> None:
    state = fold(LIFE[:cut])
    for entry in LIFE[max(cut - repeat, 0) :]:
        state.apply(entry)
    assert state == fold(LIFE)


def test_a_row_counts_once_even_if_a_log_names_it_twice() -> None:
    state = fold(history(SUBMITTED, row("completed", 1), row("completed", 1), row("failed", 1)))
    assert (state.completed, state.failed, state.open_rows) == (1, 0, 3)
    state.check()


def test_workers_come_and_go() -> None:
    state = fold(LIFE[:8])
    assert state.workers["w1"].alive
    assert state.workers["w1"].progress == {"running": 2}
    assert not fold(LIFE[:10]).workers["w1"].alive


def test_a_pause_is_lifted_by_resume_and_changes_are_kept() -> None:
    assert fold(LIFE[:6]).paused
    resumed = fold(LIFE[:7])
    assert not resumed.paused
    assert resumed.spec == {"model": "m", "outputs": [{"path": "x"}]}


def test_unknown_types_of_a_later_release_are_passed_over() -> None:
    state = fold(history(SUBMITTED, ("request.glorified", {"row": 1}), row("completed", 1)))
    assert (state.completed, state.last_seq) == (1, 3)


def test_nothing_is_a_state_too() -> None:
    assert fold([]) == JobState()


def ended(status: str, **counts: int) -> tuple[str, dict[str, Any]]:
    whole = {"rows": 4, "completed": 0, "failed": 0, "cancelled": 0, "expired": 0, **counts}
    return "job.ended", {"status": status, "reason": "enough", "counts": whole, "usage": USAGE}


def retried(number: int, attempt: int) -> tuple[str, dict[str, Any]]:
    return "request.retried", {"row": number, "custom_id": "c", "attempt": attempt, "range": "2-0"}


RETRIED = history(
    SUBMITTED,
    ("job.started", {}),
    row("completed", 2),
    row("failed", 0),
    ended("cancelled", completed=1, failed=1, cancelled=2),
    ("job.reopened", {"rows": 2}),
    retried(0, 2),
    retried(3, 2),
)


def test_a_reopened_job_has_only_its_retried_rows_open() -> None:
    state = fold(RETRIED)
    state.check()
    assert (state.status, state.ended, state.reason, state.ended_ms) == ("in_progress", False, None, 0)
    assert list(state.rows) == [OPEN, CANCELLED, COMPLETED, OPEN]
    assert (state.completed, state.failed, state.cancelled, state.open_rows) == (1, 0, 1, 2)
    assert state.attempts == {0: 2, 3: 2}
    assert state.shared_reasons == {CANCELLED: "enough"}
    assert (state.started_ms, state.running_since_ms) == (2000, 6000)


def test_the_latest_attempt_of_a_row_counts() -> None:
    state = fold(RETRIED)
    for entry in history(*[("notice", {})] * 8, row("completed", 0), row("failed", 3))[8:]:
        state.apply(entry)
    state.check()
    assert (state.completed, state.failed, state.cancelled, state.open_rows) == (2, 1, 1, 0)


def test_settings_that_changed_are_the_jobs_and_leave_a_pause_alone() -> None:
    state = fold(
        history(SUBMITTED, ("job.paused", {"reason": "a rule"}), ("job.changed", {"changes": {"priority": 5}}))
    )
    assert (state.spec["priority"], state.paused, state.pause_reason) == (5, True, "a rule")


def test_a_limit_that_ended_the_job_is_named() -> None:
    kind, data = ended("cancelled", cancelled=4)
    assert fold(history(SUBMITTED, (kind, {**data, "limit": "max_failed"}))).limit == "max_failed"


def flight(tokens: int) -> tuple[str, dict[str, Any]]:
    return "progress", {"phase": "running", "running": 1, "in_flight_tokens": tokens}


def test_tokens_shown_never_go_back_through_ends_deaths_and_takeovers() -> None:
    life = history(
        SUBMITTED, JOINED, flight(2), flight(6), row("completed", 0), flight(3), row("completed", 1),
        ("worker.lost", {"worker": "w1", "reason": "r"}), JOINED, flight(0), flight(9), row("failed", 2), flight(4),
    )  # fmt: skip
    state, shown = fold([]), []
    for entry in life:
        state.apply(entry)
        shown.append(state.output_tokens)
    assert shown == [0, 0, 2, 6, 6, 7, 8, 8, 8, 8, 17, 17, 17]
    assert shown == sorted(shown)

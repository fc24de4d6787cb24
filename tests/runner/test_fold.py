from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamrunner.runner.fold import COMPLETED, FAILED, OPEN, JobState, fold
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

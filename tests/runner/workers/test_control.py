"""What somebody asks of a job while its worker runs: rows cancelled and retried, limits, rules, a more urgent job."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.engine.errors import EngineError
from streamrunner.engine.step import RequestStep
from streamrunner.runner.fold import JobState, fold
from streamrunner.runner.retry import Retrier, Wanted
from streamrunner.runner.row_cancel import RowCanceller
from streamrunner.runner.worker import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    Rig = Any  # tests/runner/workers/conftest.py, which is no module to import

ENDINGS = ("request.completed", "request.failed", "request.cancelled")


def give(rig: Rig, **sections: Any) -> None:
    """Let the job have these sections in its file."""
    rig.log("submit").control("given", "change", {"changes": sections})


def cancel_row(rig: Rig, row: int) -> str:
    reply = RowCanceller(rig.client, rig.job.keys, rig.log("cli")).cancel(row, 70, rig.job.spec)
    return str(reply["s"])


def checked(rig: Rig) -> JobState:
    """The state; every row has at most one ending for each of its attempts."""
    entries = rig.entries()
    endings = Counter((e.data["row"], e.data["attempt"]) for e in entries if e.type in ENDINGS)
    assert not [row for row, count in endings.items() if count > 1]
    state = fold(entries)
    state.check()
    return state


def test_a_running_row_is_cancelled_and_leaves_the_engine(rig: Rig, eventually: Callable[..., None]) -> None:
    worker, joined, loop = rig.worker("a")
    thread, outcome = rig.start(worker, joined)
    eventually(lambda: rig.has_tokens("a"))
    loop.go.clear()
    assert cancel_row(rig, 5) == "OK"
    assert cancel_row(rig, 5) == "CLOSED"
    eventually(lambda: not any(one.startswith("5.") for one in loop._live))
    loop.go.set()
    thread.join(30)
    assert outcome == [Outcome.ENDED]
    state = checked(rig)
    assert (state.status, state.completed, state.cancelled) == ("completed", 69, 1)


def test_a_row_that_waits_its_turn_is_cancelled_before_it_costs_anything(
    make_rig: Callable[..., Rig], rows: list[dict[str, Any]], eventually: Callable[..., None]
) -> None:
    rig = make_rig(rows, max_num_seqs=2)
    worker, joined, loop = rig.worker("a")
    thread, outcome = rig.start(worker, joined)
    eventually(lambda: rig.has_tokens("a"))
    assert [cancel_row(rig, row) for row in (60, 69)] == ["OK", "OK"]
    thread.join(60)
    assert outcome == [Outcome.ENDED]
    assert not [one for one in loop.admitted if one.request_id.startswith(("60.", "69."))]
    assert checked(rig).cancelled == 2


def test_rows_cancelled_as_they_finish_have_one_ending_each(
    make_rig: Callable[..., Rig], rows: list[dict[str, Any]]
) -> None:
    rig = make_rig(rows, max_num_seqs=8)
    worker, joined, _ = rig.worker("a")
    thread, outcome = rig.start(worker, joined)
    said = Counter(cancel_row(rig, row) for row in range(69))
    thread.join(60)
    assert outcome == [Outcome.ENDED]
    state = checked(rig)
    assert state.completed + state.cancelled == 70
    assert said["OK"] == state.cancelled


def test_a_job_whose_rows_are_all_cancelled_one_by_one_is_done(rig: Rig, eventually: Callable[..., None]) -> None:
    worker, joined, loop = rig.worker("a")
    loop.go.clear()
    thread, outcome = rig.start(worker, joined)
    eventually(lambda: len(loop.admitted) == 94)
    assert {cancel_row(rig, row) for row in range(70)} == {"OK"}
    thread.join(10)
    assert outcome == [Outcome.ENDED]
    assert (checked(rig).status, checked(rig).cancelled) == ("completed", 70)


def test_a_pause_is_heard_while_the_engine_makes_a_long_step(rig: Rig, eventually: Callable[..., None]) -> None:
    worker, joined, loop = rig.worker("a")
    thread, outcome = rig.start(worker, joined)
    eventually(lambda: rig.has_tokens("a"))
    loop.go.clear()
    eventually(lambda: loop.outputs.empty())
    rig.log("cli").control("p", "pause")
    thread.join(5)
    assert outcome == [Outcome.PAUSED]


def test_a_failed_row_is_retried_while_its_job_runs(
    make_rig: Callable[..., Rig], rows: list[dict[str, Any]], eventually: Callable[..., None]
) -> None:
    rig = make_rig(rows, max_num_seqs=4)
    healthy, broken = rig.advance, threading.Event()
    broken.set()

    def advance(request: Any, made: int) -> RequestStep:
        if broken.is_set() and request.request_id.startswith("2."):
            return RequestStep(request.request_id, (), None, "error", None, EngineError("nan_logits", "overflow"))
        return healthy(request, made)

    rig.advance = advance
    worker, joined, loop = rig.worker("a")
    thread, outcome = rig.start(worker, joined)
    eventually(lambda: "request.failed" in rig.types())
    broken.clear()
    retrier = Retrier(rig.client, rig.job.keys, rig.log("cli"))
    assert retrier.retry(Wanted(frozenset({"nan_logits"}))) == 1
    assert retrier.retry(Wanted()) == 0
    thread.join(60)
    assert outcome == [Outcome.ENDED]
    state = checked(rig)
    assert (state.completed, state.failed, state.attempts) == (70, 0, {2: 2})
    again = [one for one in loop.admitted if one.request_id.startswith("2.")]
    assert [one.generated for one in again] == [(), ()], "the new attempt begins at its first token"


@pytest.mark.parametrize(
    ("limits", "status"),
    [({"max_output_tokens": 100}, "cancelled"), ({"deadline": "1ms"}, "expired"), ({"max_failed": 0}, "cancelled")],
)
def test_a_limit_ends_the_job_with_its_reason(rig: Rig, limits: dict[str, Any], status: str) -> None:
    give(rig, limits=limits)
    healthy = rig.advance

    def advance(request: Any, made: int) -> RequestStep:
        if request.request_id.startswith("1.") and "max_failed" in limits:
            return RequestStep(request.request_id, (), None, "error", None, EngineError("nan_logits", "overflow"))
        return healthy(request, made)

    rig.advance = advance
    worker, joined, _ = rig.worker("a")
    assert worker.run(joined) is Outcome.ENDED
    state = checked(rig)
    assert (state.status, state.limit) == (status, next(iter(limits)))
    assert state.open_rows == 0
    assert state.reason is not None
    assert state.limit in state.reason


def test_limits_that_are_changed_while_a_job_runs_count_from_then_on(rig: Rig, eventually: Callable[..., None]) -> None:
    worker, joined, loop = rig.worker("a")
    thread, outcome = rig.start(worker, joined)
    eventually(lambda: rig.has_tokens("a"))
    loop.go.clear()
    rig.log("cli").control("c", "resume", {"changes": {"limits": {"max_output_tokens": 1}}})
    thread.join(10)
    assert outcome == [Outcome.ENDED]
    assert checked(rig).limit == "max_output_tokens"


def test_a_rule_on_outputs_pauses_the_job_and_is_armed_again_when_it_goes_on(
    make_rig: Callable[..., Rig], rows: list[dict[str, Any]]
) -> None:
    rig = make_rig(rows, max_num_seqs=4)
    give(rig, stop_when=[{"finish_reason": "length", "share": 0.5, "window": 20, "min_rows": 10}])
    finished = [0]
    for name in ("a", "b"):
        worker, joined, _ = rig.worker(name)
        assert worker.run(joined) is Outcome.PAUSED
        worker.stop("paused")
        state = checked(rig)
        assert state.paused
        assert state.pause_reason is not None
        assert "finish_reason length, share 0.5" in state.pause_reason
        assert state.notices[-1]["code"] == "stop_when"
        rows_shown = state.notices[-1]["rows"]
        assert len(rows_shown) == 5
        assert all(state.rows[row] for row in rows_shown), "the rows to look at have their results"
        finished.append(state.completed)
        rig.log("cli").control(f"r{name}", "resume")
    assert finished[1] - finished[0] >= 10
    assert finished[2] - finished[1] >= 10
    rig.log("cli").control("off", "change", {"changes": {"stop_when": []}})
    worker, joined, _ = rig.worker("c")
    assert worker.run(joined) is Outcome.ENDED
    assert checked(rig).completed == 70


def test_a_worker_that_is_wanted_elsewhere_finishes_the_rows_it_has_taken(
    make_rig: Callable[..., Rig], rows: list[dict[str, Any]], eventually: Callable[..., None]
) -> None:
    rig = make_rig(rows, max_num_seqs=4)
    worker, joined, _ = rig.worker("a")
    thread, outcome = rig.start(worker, joined)
    eventually(lambda: rig.has_tokens("a"))
    worker.leave_early()
    thread.join(60)
    assert outcome == [Outcome.YIELDED]
    worker.stop("a more urgent job")
    taken = sum(entry.data["count"] for entry in rig.entries() if entry.type == "range.claimed")
    assert checked(rig).completed == taken < 70, "the ranges that it had, and no other"
    heir, heirs, _ = rig.worker("b")
    assert heir.run(heirs) is Outcome.ENDED
    assert checked(rig).completed == 70

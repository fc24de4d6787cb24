"""Many workers, one job: the end is shared, nobody is held up by a slow, hung, blind or dead one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.worker import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrunner.sinks.wire import LogEntry

Rig = Any


def claims(rig: Rig) -> list[LogEntry]:
    return [entry for entry in rig.entries() if entry.type == "range.claimed"]


def ended_rows(rig: Rig) -> list[LogEntry]:
    return [entry for entry in rig.entries() if entry.type.startswith("request.")]


def notices(rig: Rig) -> list[str]:
    return [entry.data["code"] for entry in rig.entries() if entry.type == "notice"]


def test_an_idle_worker_takes_rows_that_another_one_has_not_begun(
    make_rig: Callable[..., Rig], rows: list[dict[str, Any]], expected: dict[int, list[str]],
    eventually: Callable[..., None],
) -> None:  # fmt: skip
    rig = make_rig(rows, max_num_seqs=8)
    slow, joined, engine = rig.worker("a", step_s=0.03)
    thread, outcome = rig.start(slow, joined)
    eventually(lambda: rig.has_tokens("a") and engine.admitted)
    helper, second, other = rig.worker("b")
    assert helper.run(second) is Outcome.ENDED
    thread.join(30)
    assert outcome == [Outcome.ENDED]
    assert rig.results() == expected
    splits = [entry for entry in claims(rig) if entry.data["from"] == "a"]
    assert splits
    assert {entry.by for entry in splits} == {"b"}
    assert "worker.lost" not in rig.types()
    assert not any(request.generated for request in other.admitted), "only rows that had not begun change hands"


def test_a_worker_that_stands_still_holds_back_only_what_it_has_begun(
    make_rig: Callable[..., Rig], rows: list[dict[str, Any]], expected: dict[int, list[str]],
    eventually: Callable[..., None],
) -> None:  # fmt: skip
    rig = make_rig(rows, max_num_seqs=8)
    slow, joined, engine = rig.worker("a")
    thread, _ = rig.start(slow, joined)
    eventually(lambda: rig.has_tokens("a"))
    engine.go.clear()
    helper, second, _ = rig.worker("b")
    other, outcome = rig.start(helper, second)
    eventually(lambda: len(ended_rows(rig)) >= 70 - 8, seconds=20)
    engine.go.set()
    thread.join(30)
    other.join(30)
    assert outcome == [Outcome.ENDED]
    assert rig.results() == expected


def test_three_workers_share_a_job_and_one_that_dies_loses_nothing(
    make_rig: Callable[..., Rig], rows: list[dict[str, Any]], expected: dict[int, list[str]], gate: Any,
    eventually: Callable[..., None],
) -> None:  # fmt: skip
    rig = make_rig(rows, max_num_seqs=8)
    dying, joined, _ = rig.worker("a", gate)
    rig.start(dying, joined)
    others = [rig.start(*rig.worker(name)[:2]) for name in ("b", "c")]
    eventually(lambda: len(ended_rows(rig)) > 5)
    gate.shut()
    rig.log("t").lost("a", "killed")
    for thread, outcome in others:
        thread.join(30)
        assert outcome == [Outcome.ENDED]
    assert rig.results() == expected
    assert len({entry.by for entry in ended_rows(rig)}) > 1
    gate.stop = True
    gate.open()


def test_the_rows_of_an_engine_that_hangs_go_to_others_while_its_heartbeat_lives(
    make_rig: Callable[..., Rig], rows: list[dict[str, Any]], expected: dict[int, list[str]],
    eventually: Callable[..., None],
) -> None:  # fmt: skip
    rig = make_rig(rows, step_timeout="2s")
    hung, joined, engine = rig.worker("a")
    thread, outcome = rig.start(hung, joined)
    eventually(lambda: rig.has_tokens("a"))
    engine.go.clear()
    eventually(lambda: "engine_stalled" in notices(rig), seconds=10)
    helper, second, other = rig.worker("b")
    assert helper.run(second) is Outcome.ENDED
    engine.go.set()
    thread.join(30)
    assert outcome == [Outcome.ENDED]
    assert rig.results() == expected
    assert any(request.generated for request in other.admitted), "they went on from their last token"
    stalled = next(entry.seq for entry in rig.entries() if entry.type == "notice")
    assert {entry.by for entry in ended_rows(rig) if entry.seq > stalled} == {"b"}


def test_an_engine_that_hung_for_a_while_goes_on_with_its_rows_if_nobody_took_them(
    make_rig: Callable[..., Rig], rows: list[dict[str, Any]], expected: dict[int, list[str]],
    eventually: Callable[..., None],
) -> None:  # fmt: skip
    rig = make_rig(rows, step_timeout="2s")
    hung, joined, engine = rig.worker("a")
    thread, outcome = rig.start(hung, joined)
    eventually(lambda: rig.has_tokens("a"))
    engine.go.clear()
    eventually(lambda: "engine_stalled" in notices(rig), seconds=10)
    engine.go.set()
    thread.join(30)
    assert outcome == [Outcome.ENDED]
    assert rig.results() == expected
    assert notices(rig) == ["engine_stalled", "engine_resumed"]


def test_an_engine_that_hangs_for_good_ends_its_worker(
    make_rig: Callable[..., Rig], rows: list[dict[str, Any]], eventually: Callable[..., None]
) -> None:
    rig = make_rig(rows, step_timeout="1s")
    hung, joined, engine = rig.worker("a")
    thread, outcome = rig.start(hung, joined)
    eventually(lambda: rig.has_tokens("a"))
    engine.go.clear()
    thread.join(30)
    assert [error.code for error in outcome] == ["engine_stalled"]
    assert hung.stalled


def test_a_worker_that_cannot_read_the_input_says_so_and_leaves_it_to_others(
    make_rig: Callable[..., Rig], rows: list[dict[str, Any]], expected: dict[int, list[str]]
) -> None:
    rig = make_rig(rows)
    file = rig.job.base / "rows.jsonl"
    content = file.read_bytes()
    file.unlink()
    blind, joined, _ = rig.worker("a")
    with pytest.raises(RunnerError) as caught:
        blind.run(joined)
    assert caught.value.code == "input_missing"
    num_ranges = len({entry.data["range"] for entry in claims(rig)})
    assert len(claims(rig)) == num_ranges, "no range is tried twice"
    assert notices(rig) == ["input_missing"] * num_ranges
    file.write_bytes(content)
    seeing, second, _ = rig.worker("b")
    assert seeing.run(second) is Outcome.ENDED
    assert rig.results() == expected


def test_a_blind_worker_waits_while_others_work_and_ends_with_the_job(
    make_rig: Callable[..., Rig], rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
) -> None:  # fmt: skip
    from streamrunner.runner import feed

    rig = make_rig(rows)
    read = feed.read_range
    blind = threading.local()

    def read_here(found: Any, *rest: Any) -> Any:
        if getattr(blind, "yes", False) and found.first == 0:
            raise RunnerError("input_changed", "rows 0-63 are not what was submitted")
        return read(found, *rest)

    monkeypatch.setattr(feed, "read_range", read_here)
    worker, joined, _ = rig.worker("a")
    run = worker.run

    def run_blind(reply: Any) -> Outcome:
        blind.yes = True
        return run(reply)

    worker.run = run_blind
    thread, outcome = rig.start(worker, joined)
    eventually(lambda: "input_changed" in notices(rig))
    seeing, second, _ = rig.worker("b")
    assert seeing.run(second) is Outcome.ENDED
    thread.join(30)
    assert outcome == [Outcome.ENDED]
    assert sorted(rig.results()) == list(range(70))
    assert notices(rig) == ["input_changed"]


def test_the_tokens_of_a_dead_worker_go_soon_after_its_rows_have_ended(
    rig: Rig, gate: Any, eventually: Callable[..., None]
) -> None:
    dying, joined, _ = rig.worker("a", gate)
    thread, _ = rig.start(dying, joined)
    eventually(lambda: rig.has_tokens("a"))
    gate.shut()
    rig.log("t").lost("a", "killed")
    heir, second, _ = rig.worker("b")
    assert heir.run(second) is Outcome.ENDED
    assert 0 < rig.client.pttl(rig.job.keys.steps("a")) <= 120_000
    assert rig.client.pttl(rig.job.keys.steps("b")) > 3_000_000
    gate.stop = True
    gate.open()
    thread.join(10)

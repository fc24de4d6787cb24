"""Kills are planned and judged from raw streams: plans reach every phase, a verdict is what a reader would say."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chaos_kit.phases import Hit, Kill, Plan, durable_tokens, has_come, judge_kill, make_plans, share_mid_row
from chaos_kit.streams import Delta, Event, Streams

PID = 41


def stream(*, joined: bool = True, decoded: bool = True, done: int = 0) -> Streams:
    """Four rows; all have a token of an earlier worker, some are done, ours may have joined and decoded."""
    events = [Event(1, 0, "job.submitted", 10, {"rows": 4})]
    deltas = [Delta(20, "old", row, 1, 0, 0, (1, 2), "x") for row in range(4)]
    if joined:
        events.append(Event(2, 0, "worker.joined", 100, {"worker": "new", "pid": PID}))
    if decoded:
        deltas += [Delta(150, "new", row, 2, 0, 2, (3,), "y") for row in range(4)]
    events += [Event(3 + row, 0, "request.completed", 160, {"row": row, "custom_id": str(row)}) for row in range(done)]
    return Streams(events, {}, deltas)


def kill(time: int = 200) -> Kill:
    return Kill(PID, 90, time, "decoding", server_too=False)


@pytest.mark.parametrize(
    ("streams", "phase"),
    [
        (stream(joined=False, decoded=False), "loading"),
        (stream(decoded=False), "prefill"),
        (stream(done=1), "decoding"),
        (stream(done=3), "draining"),
        (stream(done=4), "ending"),
    ],
)
def test_a_kill_is_judged_by_what_the_log_shows(streams: Streams, phase: str) -> None:
    assert judge_kill(kill(), streams).phase == phase


def test_only_what_was_there_at_the_kill_counts() -> None:
    assert judge_kill(kill(time=155), stream(done=4)) == Hit("decoding", rows_done=0, rows_mid=4)
    assert judge_kill(kill(time=160), stream(done=3)) == Hit("draining", rows_done=3, rows_mid=1)
    assert judge_kill(kill(time=15), stream(done=4)) == Hit("loading", rows_done=0, rows_mid=0)


def test_the_share_counts_kills_with_a_row_in_the_middle() -> None:
    assert share_mid_row([Hit("decoding", 0, 4), Hit("ending", 4, 0)]) == 0.5
    assert share_mid_row([]) == 0


def test_durable_tokens_count_a_position_once_whoever_wrote_it() -> None:
    assert durable_tokens(stream()) == 4 * 3


@pytest.mark.parametrize(
    ("plan", "streams", "age_s", "comes"),
    [
        (Plan("loading", 0.5, 1.0), Streams(), 1.1, True),
        (Plan("loading", 0.5, 1.0), Streams(), 0.9, False),
        (Plan("prefill", 0.5, 0.0), stream(decoded=False), 0, True),
        (Plan("prefill", 0.5, 0.0), stream(joined=False), 9, False),
        (Plan("decoding", 0.5, 0.0), stream(), 0, True),
        (Plan("decoding", 0.9, 0.0), stream(), 0, False),
        (Plan("decoding", 0.1, 0.0), stream(decoded=False), 9, False),
        (Plan("ending", 1.0, 0.0), stream(done=4), 0, True),
        (Plan("ending", 1.0, 0.0), stream(done=3), 0, False),
    ],
)
def test_a_planned_moment_comes_when_the_streams_say_so(plan: Plan, streams: Any, age_s: float, comes: bool) -> None:
    assert has_come(plan, streams, PID, age_s, total_tokens=20) is comes


def test_twenty_kills_aim_at_every_phase_and_mostly_at_decoding() -> None:
    rng = random.Random(1)
    plans = [plan for first in range(0, 20, 5) for plan in make_plans(5, first, rng)]
    aims = [plan.phase for plan in plans]
    assert set(aims) == {"loading", "prefill", "decoding", "draining", "ending"}
    assert (aims.count("decoding") + aims.count("draining")) / len(aims) >= 2 / 3


def test_the_plans_of_a_job_come_in_the_order_of_its_progress() -> None:
    shares = [plan.share for plan in make_plans(5, 0, random.Random(3))]
    assert shares == sorted(shares)

"""When to kill, and what a kill hit: both judged from the raw streams alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from chaos_kit.streams import choice_deltas

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from chaos_kit.streams import Streams

# Of this many kills in a row, so many are planned for rows that are being decoded, the others for the edges of a run.
_CYCLE = ("decoding", "decoding", "decoding", "edge", "draining")
_EDGES = ("loading", "prefill", "ending")


class Plan(NamedTuple):
    """A kill to come: the phase to aim at; how far the job must be (share of its tokens); a delay after that, in s."""

    phase: str
    share: float
    delay_s: float


class Kill(NamedTuple):
    """A kill that happened; time in Unix ms. `spawned` is when its process was started."""

    pid: int
    spawned: int
    time: int
    aimed_at: str
    server_too: bool


class Hit(NamedTuple):
    """What a kill interrupted, as the finished log shows it."""

    phase: str
    rows_done: int
    rows_mid: int


def make_plans(num_kills: int, first: int, rng: random.Random) -> list[Plan]:
    """Plans for one job, in an order in which they can happen. `first` numbers the kills over all jobs."""
    plans = [_make_plan(first + index, rng) for index in range(num_kills)]
    return sorted(plans, key=lambda plan: plan.share)


def _make_plan(number: int, rng: random.Random) -> Plan:
    phase = _CYCLE[number % len(_CYCLE)]
    if phase == "edge":
        phase = _EDGES[number // len(_CYCLE) % len(_EDGES)]
    share = {"decoding": rng.uniform(0.02, 0.85), "draining": rng.uniform(0.88, 0.96), "ending": 1.0}
    delay_s = {"loading": rng.uniform(0.2, 2.0)}
    # A loading or prefilling process of a job that already has tokens is the harder case.
    return Plan(phase, share.get(phase, rng.uniform(0.2, 0.8)), delay_s.get(phase, 0.0))


def has_come(plan: Plan, streams: Streams, pid: int, age_s: float, total_tokens: int) -> bool:
    """Whether the planned moment is now. Edges at the start depend on the process, the rest on the job's tokens."""
    if plan.phase == "loading":
        return age_s >= plan.delay_s
    if not any(event.data["pid"] == pid for event in streams.joins()):
        return False
    if plan.phase == "prefill":
        return True
    if plan.phase == "ending":
        return len(streams.terminals) == streams.num_rows
    workers = {event.data["worker"] for event in streams.joins() if event.data["pid"] == pid}
    decodes = any(delta.worker in workers and delta.at > 0 for delta in streams.deltas)
    return decodes and durable_tokens(streams) >= plan.share * total_tokens


def durable_tokens(streams: Streams) -> int:
    """Output tokens that are in the log, each position counted once."""
    return sum(max(delta.at + len(delta.token_ids) for delta in deltas) for deltas in choice_deltas(streams).values())


def judge_kill(kill: Kill, streams: Streams) -> Hit:
    """Say what the kill interrupted, from the whole log as it stands at the end of the job."""
    ended = {event.data["row"]: event.time for event in streams.terminals}
    begun: dict[int, int] = {}
    for delta in streams.deltas:
        begun[delta.row] = min(delta.time, begun.get(delta.row, delta.time))
    rows_done = sum(time <= kill.time for time in ended.values())
    rows_mid = sum(time <= kill.time < ended.get(row, kill.time + 1) for row, time in begun.items())
    return Hit(_phase(kill, streams, rows_done), rows_done, rows_mid)


def _phase(kill: Kill, streams: Streams, rows_done: int) -> str:
    joined = [event for event in streams.joins() if event.data["pid"] == kill.pid and event.time <= kill.time]
    if not joined:
        return "loading"
    if rows_done == streams.num_rows:
        return "ending"
    workers = {event.data["worker"] for event in joined}
    # Position 0 alone may be a dead worker's tokens, appended again; only later ones show that the engine decodes.
    decoded = any(delta.worker in workers and delta.at > 0 and delta.time <= kill.time for delta in streams.deltas)
    if not decoded:
        return "prefill"
    return "draining" if rows_done >= 0.75 * streams.num_rows else "decoding"


def share_mid_row(hits: Sequence[Hit]) -> float:
    """Share of kills that fell between some row's first token event and its terminal event."""
    return sum(hit.rows_mid > 0 for hit in hits) / len(hits) if hits else 0.0

"""End a job that nobody else would end: whoever looks at it does, without a lease.

cancelling, no living worker      ──▶ cancelled
a limit reached, no living worker ──▶ as the limit says
a deadline well past              ──▶ expired, whether or not its worker still moves
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrunner.runner.limits import Breach, Tally, find_breach
from streamrunner.sinks.directory import OPEN_STATUSES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamrunner.sinks.log import JobLog

# A living worker ends its job itself, and hands in first what it has finished.
_GRACE_MS = 2_000
_COUNTERS = ("completed", "failed", "cancelled", "expired")
_DONE = Breach("", "completed", "")
_BY_REQUEST = Breach("", "cancelled", "cancelled by request")


def may_be_due(meta: Mapping[str, str]) -> bool:
    """Whether the job's figures give a reason to look closer; most of the time they do not, which costs nothing."""
    if meta.get("status") not in OPEN_STATUSES:
        return False
    return meta["status"] == "cancelling" or meta.get("limits", "{}") != "{}" or _is_done(meta)


def _is_done(meta: Mapping[str, str]) -> bool:
    return sum(int(meta.get(name, 0)) for name in _COUNTERS) == int(meta.get("rows", -1))


def find_due_end(meta: Mapping[str, str], now_ms: int, is_alive: Callable[[], bool]) -> Breach | None:
    """How the job ought to have ended by now. meta: the job's derived figures. is_alive: whether a worker holds it."""
    status = meta.get("status", "")
    if status not in OPEN_STATUSES:
        return None
    if _is_done(meta):
        return None if is_alive() else _DONE
    if status == "cancelling":
        return None if is_alive() else _BY_REQUEST
    if meta.get("limits", "{}") == "{}":
        return None
    from streamrunner.runner.settings import read_limits

    completed, failed, tokens = (int(meta.get(name, 0)) for name in ("completed", "failed", "completion_tokens"))
    limits, clock_ms = read_limits(meta["limits"]), int(meta.get("clock", 0))
    breach = find_breach(limits, Tally(completed, failed, tokens, now_ms, clock_ms))
    if breach is None or not is_alive():
        return breach
    return find_breach(limits, Tally(0, 0, 0, now_ms - _GRACE_MS, clock_ms))


def settle(meta: Mapping[str, str], now_ms: int, is_alive: Callable[[], bool], make_log: Callable[[], JobLog]) -> bool:
    """End the job if it ought to have ended; whether it was."""
    due = find_due_end(meta, now_ms, is_alive)
    if due is None:
        return False
    reply: dict[str, Any] = make_log().end(due.status, due.reason, due.limit)
    return bool(reply["s"] == "OK")

"""Which of a job's events a watcher is given, and the typed event of a raw entry."""

from __future__ import annotations

from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeGuard

from streamrunner.runner.job_events import Event, GapEvent, LogEvent, TokenDelta, TokensEvent
from streamrunner.sinks.merge import LOG, Cursor, Entry, Gap
from streamrunner.sinks.wire import LogEntry, StepEntry, Unreadable, decode_json

if TYPE_CHECKING:
    from collections.abc import Collection

TOKENS = "tokens"
_HAS_PAYLOAD = frozenset({"request.completed", "request.failed"})


class View:
    """A filter that stays the same across reconnects.

    types: names, or patterns such as `request.*`; rows: only events about these rows, and what concerns no row at all.
    `gap`, `resync` and notices about the reading pass every filter: without them a filtered stream only looks whole.
    """

    def __init__(
        self,
        types: Collection[str] | None = None,
        rows: Collection[int] | None = None,
        *,
        tokens: bool = True,
        payloads: bool = True,
    ) -> None:
        self._patterns = None if types is None else ((types,) if isinstance(types, str) else tuple(types))
        self._rows = rows if rows is None or isinstance(rows, range) else frozenset(rows)
        self.payloads = payloads
        self._known: dict[str, bool] = {}
        self.tokens = tokens and self.wants(TOKENS)

    def wants(self, kind: str) -> bool:
        """Whether events of this type pass."""
        if self._patterns is None:
            return True
        if kind not in self._known:
            self._known[kind] = any(fnmatchcase(kind, pattern) for pattern in self._patterns)
        return self._known[kind]

    def wants_payload(self, entry: Entry) -> TypeGuard[LogEntry]:
        """Whether the event of this entry is to be given with its result."""
        return self.payloads and isinstance(entry, LogEntry) and entry.type in _HAS_PAYLOAD and self._passes_log(entry)

    def event(self, entry: Entry, cursor: Cursor, payload: bytes | None) -> Event | None:
        """The event of an entry, if it passes."""
        if isinstance(entry, LogEntry):
            return _log_event(entry, cursor, payload) if self._passes_log(entry) else None
        if isinstance(entry, StepEntry):
            return self._tokens_event(entry, cursor)
        return _gap_event(entry, cursor) if isinstance(entry, Gap) else _notice(entry, cursor)

    def _passes_log(self, entry: LogEntry) -> bool:
        if not self.wants(entry.type):
            return False
        row = entry.data.get("row") if self._rows is not None else None
        return row is None or self._rows is None or row in self._rows

    def _tokens_event(self, entry: StepEntry, cursor: Cursor) -> TokensEvent | None:
        wanted = [one for one in entry.deltas if self._rows is None or one.row in self._rows]
        if not wanted:
            return None
        return TokensEvent(
            type=TOKENS, time=entry.time, cursor=str(cursor), by=entry.worker, step=f"{entry.epoch}-{entry.n}",
            deltas=tuple(TokenDelta.of(delta) for delta in wanted),
        )  # fmt: skip


def _log_event(entry: LogEntry, cursor: Cursor, payload: bytes | None) -> LogEvent:
    data = entry.data
    choices = decode_json(payload).get("choices") if payload else None
    if choices is not None:
        data = {**data, "choices": choices}
    return LogEvent(
        type=entry.type, time=entry.time, cursor=str(cursor), data=MappingProxyType(data),
        seq=entry.seq, v=entry.v, by=entry.by,
    )  # fmt: skip


def _gap_event(gap: Gap, cursor: Cursor) -> GapEvent:
    if gap.worker == LOG:
        what = {"stream": "log", "first": gap.first, "last": gap.last}
        reason = f"the log has lost its entries {gap.first} to {gap.last}"
    else:
        what = {"stream": gap.worker}
        many = "all tokens" if gap.num_entries is None else f"{gap.num_entries} flushes of tokens"
        reason = f"{many} of {gap.worker} are gone: retention took them before they were read"
    data: dict[str, Any] = {**what, "num_entries": gap.num_entries, "reason": reason}
    return GapEvent(type="gap", time=gap.time, cursor=str(cursor), data=MappingProxyType(data))


def _notice(entry: Unreadable, cursor: Cursor) -> Event:
    data = {"code": "entry_unreadable", "message": f"{entry.reason}; such entries are left out from here on"}
    return Event(type="notice", time=entry.time, cursor=str(cursor), data=MappingProxyType(data))

"""Following one job, without a connection of its own: snapshot, page, follow, across lost connections and lost tails.

Written as generators that yield what is to be done (commands, `Pause`, `REOPEN`) and are sent, or thrown, how it went.
So the blocking and the asyncio watcher are one reader (`line` carries things out). Nothing is given twice: what was
taken from the merge and is not delivered yet waits in `_items`, all else is read again from the cursor.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from streamrunner.runner.fold import ENDED_STATUSES, OPEN, JobState
from streamrunner.runner.job_events import EndedEvent, Event, ResyncEvent, SnapshotEvent
from streamrunner.runner.summary import state_as_json
from streamrunner.sinks.errors import LogUnreachable, SinkError
from streamrunner.sinks.merge import LOG, PAGE, Cursor, Entry, Gap, Item, StreamMerge
from streamrunner.sinks.reader import (
    Asking,
    Command,
    Resync,
    ask_for_cursor,
    ask_for_entries,
    ask_for_late_workers,
    ask_for_payloads,
    ask_for_trimmed,
)
from streamrunner.sinks.wire import LogEntry, StepEntry, Unreadable

if TYPE_CHECKING:
    from streamrunner.runner.view import View
    from streamrunner.sinks.keys import JobKeys

T = TypeVar("T")

# A lease lives 15 s; whoever was killed has been replaced or is missed by then.
ABANDONED_S = 20.0
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 2.0
# Results may be large: this many are held at a time.
_PAYLOAD_PAGE = 16


class Pause(NamedTuple):
    """Wait before going on."""

    seconds: float


class Reopen(NamedTuple):
    """Make sure that the server answers, and connect anew."""


REOPEN: Final = Reopen()
Doing = Generator["list[Command] | Pause | Reopen", Any, T]


class Life(NamedTuple):
    """What the server says of a job besides its log."""

    status: str
    reason: str | None
    workers: list[str]


class Follower:
    """Where one reader of one job stands.

    `state` is folded from what was read; with a `cursor` it stays empty, since half a log is no state. `is_idle`:
    whether the last page was empty because there was nothing to read; the filter can leave nothing of a page, too.
    `at_end`: whether the last entry of the log that was read is `job.ended`. patience_s: how long an unreachable log is
    borne. should_stop is asked between tries; then a page is empty. any_version: leave out what this release cannot
    read, with a notice, instead of raising SinkError (`log_conflict`).
    """

    def __init__(
        self,
        keys: JobKeys,
        view: View,
        *,
        cursor: Cursor | None = None,
        snapshot: bool = False,
        any_version: bool = True,
        patience_s: float = 600.0,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.state = JobState()
        self.is_idle = False
        self.at_end = False
        self._keys = keys
        self._view = view
        self._any_version = any_version
        self._patience_s = patience_s
        self._should_stop = should_stop
        self._folds = cursor is None
        self._starts_with_snapshot = self._snapshot_due = snapshot
        self._cursor_unproven = cursor is not None
        self._items: list[Item] = []
        self._failures = 0
        self._told_unreadable = False
        self._merge = self._merge_from(cursor)

    @property
    def cursor(self) -> Cursor:
        """Continues behind the last event given."""
        return self._merge.cursor

    def next_page(self, block_ms: int | None) -> Doing[list[Event]]:
        """The next events; empty when there are none (within block_ms, if given) or the filter leaves none of them.

        Raises LogUnreachable, SinkError.
        """
        self.is_idle = False
        while True:
            try:
                events = yield from self._next_page(block_ms)
            except Exception as error:  # noqa: BLE001 - told apart below
                resync = yield from self._reconnect(error)
                if resync is not None:
                    return [self._start_over(resync)]
                if self._should_stop():
                    self.is_idle = True
                    return []
            else:
                self._failures = 0
                return events

    def life(self) -> Doing[Life]:
        """The job's status and the workers that hold it. Raises SinkError (`job_not_found`) once it is purged."""
        while True:
            try:
                life = yield from ask_for_life(self._keys)
                break
            except Exception as error:  # noqa: BLE001 - told apart below
                yield from self._reconnect(error)
                self._cursor_unproven = True
        if not life.status:
            raise SinkError(
                "job_not_found", f"{self._keys.job_id} is no longer on this server: it was purged or archived"
            )
        return life

    def _next_page(self, block_ms: int | None) -> Asking[list[Event]]:
        if self._cursor_unproven and (resync := (yield from self._prove_cursor())):
            return [self._start_over(resync)]
        if self._snapshot_due:
            return (yield from self._take_snapshot())
        if not self._items:
            limit = _PAYLOAD_PAGE if self._view.payloads else PAGE
            self._items = yield from ask_for_entries(self._keys, self._merge, block_ms, limit)
        wanted = [item.entry for item in self._items if self._view.wants_payload(item.entry)]
        payloads = (yield from self._payloads_of(wanted)) if wanted else {}
        items, self._items = self._items, []
        self.is_idle = not items
        return [event for item in items if (event := self._deliver(item, payloads))]

    def _payloads_of(self, entries: list[LogEntry]) -> Asking[dict[str, bytes]]:
        """The results of these entries; one that retention has let go is left out, and its event comes without it."""
        try:
            return (yield from ask_for_payloads(self._keys, entries))
        except SinkError:
            found: dict[str, bytes] = {}
        for entry in entries:
            with suppress(SinkError):
                found |= yield from ask_for_payloads(self._keys, [entry])
        return found

    # ── beginning ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _merge_from(self, cursor: Cursor | None) -> StreamMerge:
        tokens = self._view.tokens and not self._snapshot_due
        return StreamMerge(cursor, tokens=tokens, any_version=self._any_version)

    def _prove_cursor(self) -> Asking[Resync | None]:
        cursor = self._merge.cursor
        resync = yield from ask_for_cursor(self._keys, cursor)
        if resync is None and self._view.tokens:
            yield from ask_for_late_workers(self._keys, self._merge)
        self._cursor_unproven = resync is not None
        return resync

    def _take_snapshot(self) -> Asking[list[Event]]:
        """Fold the log to its present end; of tokens, go on with what retention kept of the rows that are open."""
        while items := (yield from ask_for_entries(self._keys, self._merge, None)):
            for item in items:
                self._fold(item.entry)
        merge = StreamMerge(Cursor(self._merge.cursor.log, ()), tokens=self._view.tokens, any_version=self._any_version)
        if self._view.tokens:
            for worker in self.state.workers:
                num_trimmed, _ = yield from ask_for_trimmed(self._keys, worker)
                merge.start_at(worker, num_trimmed)
        self._merge, self._snapshot_due, self.at_end = merge, False, self.state.ended
        data = state_as_json(self._keys.job_id, self.state)
        return [
            SnapshotEvent(
                type="snapshot", time=self.state.last_ms, cursor=str(merge.cursor), data=MappingProxyType(data),
                seq=self.state.last_seq,
            )
        ]  # fmt: skip

    def _start_over(self, resync: Resync) -> ResyncEvent:
        self.state = JobState()
        self._folds, self._cursor_unproven, self._items = True, False, []
        self._snapshot_due = self._starts_with_snapshot
        self._merge = self._merge_from(None)
        data = MappingProxyType({"reason": resync.reason})
        return ResyncEvent(type="resync", time=int(time.time() * 1000), cursor=str(self._merge.cursor), data=data)

    # ── delivering ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _deliver(self, item: Item, payloads: dict[str, bytes]) -> Event | None:
        entry = item.entry
        if isinstance(entry, Unreadable):
            if self._told_unreadable:
                return None
            self._told_unreadable = True
        elif isinstance(entry, StepEntry) and self._starts_with_snapshot:
            # The snapshot counts rows that had ended by then; their tokens are no news.
            entry = entry._replace(deltas=[one for one in entry.deltas if self._is_open(one.row)])
        if isinstance(entry, LogEntry):
            self.at_end = entry.type == "job.ended"
        self._fold(entry)
        payload = payloads.get(entry.id) if isinstance(entry, LogEntry) else None
        return self._view.event(entry, item.cursor, payload)

    def _fold(self, entry: Entry) -> None:
        if isinstance(entry, Gap) and entry.worker == LOG:
            self._folds, self.state = False, JobState()
        elif self._folds and isinstance(entry, LogEntry):
            self.state.apply(entry)

    def _is_open(self, row: int) -> bool:
        return row >= len(self.state.rows) or self.state.rows[row] == OPEN

    # ── reconnecting ────────────────────────────────────────────────────────────────────────────────────────────────

    def _reconnect(self, error: Exception) -> Doing[Resync | None]:
        """Come back to the server; `Resync` if it no longer holds the entry that this reader stands at."""
        deadline = time.monotonic() + self._patience_s
        while True:
            _raise_if_final(error)
            if time.monotonic() > deadline:
                raise LogUnreachable(f"the log does not answer: {error}") from error
            if self._failures:
                delay = min(_FIRST_DELAY_S * 2 ** min(self._failures, 10), _LONGEST_DELAY_S)
                yield Pause(delay * random.uniform(0.5, 1.0))  # noqa: S311 - only to spread many watchers
            if self._should_stop():
                return None
            self._failures += 1
            try:
                return (yield from self._come_back())
            except Exception as again:  # noqa: BLE001 - told apart above
                error = again

    def _come_back(self) -> Doing[Resync | None]:
        yield REOPEN
        self._merge = self._merge_from(self._merge.cursor)
        return (yield from ask_for_cursor(self._keys, self._merge.cursor))


def ask_for_life(keys: JobKeys) -> Asking[Life]:
    """Status (empty for a job that the server does not know) and workers that joined, did not leave and live."""
    [raw] = yield [("HGETALL", keys.meta)]
    meta = {name.decode(): value.decode() for name, value in raw.items()}
    joined = [name[2:] for name, value in meta.items() if name.startswith("w:") and value == "joined"]
    leases = (yield [("EXISTS", keys.lease(worker)) for worker in joined]) if joined else []
    living = [worker for worker, lease in zip(joined, leases, strict=True) if lease]
    return Life(meta.get("status", ""), meta.get("reason") or None, living)


def has_ended(life: Life) -> bool:
    """Whether the job is over, by what the server says."""
    return life.status in ENDED_STATUSES


def ended_event(life: Life, state: JobState, cursor: Cursor) -> EndedEvent:
    """The last event of a watch."""
    data = {"status": life.status, "reason": life.reason, "abandoned": not has_ended(life)}
    now_ms = state.last_ms or int(time.time() * 1000)
    return EndedEvent(type="ended", time=now_ms, cursor=str(cursor), data=MappingProxyType(data))


def _raise_if_final(error: Exception) -> None:
    from redis import exceptions as redis_errors

    passing = (
        redis_errors.ConnectionError, redis_errors.TimeoutError, redis_errors.ClusterDownError,
        redis_errors.TryAgainError, OSError, LogUnreachable,
    )  # fmt: skip
    if isinstance(error, passing):
        return
    if isinstance(error, redis_errors.RedisError):
        raise SinkError("log_denied", f"the log refuses to be read: {error}") from error
    raise error

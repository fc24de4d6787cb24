"""The order of a job's events: its log and the step streams of all workers, merged by the server's clock. No I/O.

    log      ── 12 ── 13 ─────────── 14 ──▶      an entry is handed on only when every other stream has shown its
    steps:a  ─── 1 ─── 2 ── 3 ───────────▶       next one or is known to be read to its end; a stream is read again
    steps:b  ───────────────── 1 ── 2 ───▶       only when its page is used up, so at most a page each is held

`reader` asks the server for what `wanted` names, gives the answers to `accept`, and takes entries from `hand_on`.
"""

from __future__ import annotations

import base64
import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.wire import (
    LogEntry,
    StepEntry,
    Unreadable,
    decode_json,
    encode_json,
    parse_id,
    parse_log_entry,
    parse_step_entry,
    read_log_entry,
    read_step_entry,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = 256
LOG = ""
START = "0-0"
_BEFORE_TOKENS = frozenset({"job.submitted", "job.started", "worker.joined", "range.claimed"})
_LEFT = frozenset({"worker.preempted", "worker.lost"})


class StepsCursor(NamedTuple):
    """How far a reader came in one step stream, by id and by number of entries (None: not counted)."""

    worker: str
    position: str
    num_entries: int | None


class Cursor(NamedTuple):
    """How far a reader came in each stream; opaque outside (`str` and `parse`). `steps` is None without tokens."""

    log: str = START
    steps: tuple[StepsCursor, ...] | None = None

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(encode_json([self.log, self.steps])).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Raises SinkError (`bad_cursor`) for anything a reader did not print."""
        try:
            log, steps = decode_json(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            found = None if steps is None else tuple(_steps_cursor(*one) for one in steps)
            return cls(_checked(log), found)
        except (ValueError, TypeError) as error:
            raise SinkError("bad_cursor", "the cursor is not one that `runner events --json` printed") from error


class Gap(NamedTuple):
    """Entries that a reader will never see: log entries `first`..`last`, or `num_entries` of one worker's tokens.

    num_entries is None where all tokens of the worker are gone and nobody counts them any more.
    """

    worker: str
    time: int
    num_entries: int | None
    first: int = 0
    last: int = 0


Entry = LogEntry | StepEntry | Gap | Unreadable


class Item(NamedTuple):
    """One entry with the cursor that continues right behind it."""

    entry: Entry
    cursor: Cursor


class _Held(NamedTuple):
    entry: Entry
    position: str
    num_entries: int | None


class Suspect(NamedTuple):
    """A hole in a worker's flush numbers: natural (a flush without tokens) unless the stream was trimmed there.

    num_entries: read before the hole; first_id: the entry behind it.
    """

    worker: str
    num_entries: int
    first_id: str


@dataclass(slots=True)
class _Stream:
    name: str
    read: str = START
    given: str = START
    read_count: int | None = 0
    given_count: int | None = 0
    held: deque[_Held] = field(default_factory=deque)
    drained: bool = False
    has_left: bool = False
    has_completed: bool = False
    skip_until_ms: int = -1

    @property
    def retired(self) -> bool:
        """Whether nothing can come any more, until its worker joins again."""
        return self.has_left and self.drained and not self.held


class StreamMerge:
    """Where one reader stands in all streams of a job, and what it holds of them."""

    def __init__(self, cursor: Cursor | None, *, tokens: bool, any_version: bool = False) -> None:
        start = cursor or Cursor()
        self._tokens = tokens
        self.counts_steps = start.steps is not None
        self._parse_log = read_log_entry if any_version else parse_log_entry
        self._parse_steps = read_step_entry if any_version else parse_step_entry
        self._streams = {LOG: _Stream(LOG, start.log, start.log)}
        for one in (start.steps or ()) if tokens else ():
            self._streams[one.worker] = _Stream(
                one.worker, one.position, one.position, one.num_entries, one.num_entries
            )
        self._log = self._streams[LOG]
        # The entry before one of a later run of the server: if it is gone, that run began by losing it.
        self.doubted: str | None = None
        self._steps_cursor: tuple[StepsCursor, ...] | None = None
        self._refresh_cursor()

    @property
    def cursor(self) -> Cursor:
        """Continues behind the last entry handed on."""
        return Cursor(self._log.given, self._steps_cursor)

    @property
    def idle(self) -> bool:
        """Whether nothing is held and all streams had nothing more when last read."""
        return all(stream.drained and not stream.held for stream in self._streams.values())

    def wanted(self) -> dict[str, str]:
        """Stream name (a worker, or LOG) → id behind which to read."""
        return {name: one.read for name, one in self._streams.items() if not one.held and not one.retired}

    def join_late(self, worker: str, since_ms: int) -> None:
        """Read a worker's tokens from `since_ms` on, although the cursor says nothing of them."""
        self._streams.setdefault(worker, _Stream(worker, read_count=None, given_count=None, skip_until_ms=since_ms))

    def start_at(self, worker: str, count: int) -> None:
        """Take the `count` entries that were trimmed from a worker's stream before now as known."""
        self._streams.setdefault(worker, _Stream(worker, read_count=count, given_count=count))

    def accept(self, asked: dict[str, str], pages: dict[str, list[tuple[bytes, Any]]]) -> list[Suspect]:
        """Take the answer to `wanted`; what it returns is to be asked about and given to `settle`."""
        suspects: list[Suspect] = []
        for name, stream in list(self._streams.items()):
            page = pages.get(name, [])
            # Whoever was not asked in this round may have more by now than when it was last read to its end.
            stream.drained = stream.retired or (name in asked and len(page) < PAGE)
            if name == LOG:
                self._take_log(page)
            elif page and (suspect := self._take_steps(stream, page)):
                suspects.append(suspect)
        return suspects

    def settle(self, suspect: Suspect, num_trimmed: int, first_id: str | None) -> None:
        """Say that entries are missing if the stream was trimmed beyond what this reader had.

        num_trimmed: entries the stream lost so far; first_id: its oldest entry now, None if it is gone.
        """
        stream = self._streams[suspect.worker]
        gone = 0 if first_id is None else sum(1 for one in stream.held if _id(one.position) < _id(first_id))
        # Without a first entry, or with one behind this page, only the next page can tell.
        if first_id is None or gone == len(stream.held) or (not gone and first_id != suspect.first_id):
            return
        missed = num_trimmed - gone - suspect.num_entries
        if missed <= 0:
            return
        stream.held = deque(one._replace(num_entries=(one.num_entries or 0) + missed) for one in stream.held)
        stream.read_count = stream.held[-1].num_entries
        gap = Gap(stream.name, stream.held[0].entry.time, missed)
        stream.held.appendleft(_Held(gap, stream.given, suspect.num_entries + missed))

    def hand_on(self, limit: int = PAGE) -> list[Item]:
        """The next entries in order, as far as the order is known."""
        streams = self._streams.values()
        if any(not one.held and not one.drained for one in streams):
            return []
        heads = [_head(one) for one in streams if one.held]
        heapq.heapify(heads)
        items: list[Item] = []
        while heads and len(items) < limit:
            stream = self._streams[heads[0][2]]
            items += self._pop(stream)
            if stream.held:
                heapq.heapreplace(heads, _head(stream))
            elif stream.drained:
                heapq.heappop(heads)
            else:
                break
        return items

    def _pop(self, stream: _Stream) -> Iterator[Item]:
        entry, stream.given, stream.given_count = stream.held.popleft()
        if stream.name != LOG:
            self._refresh_cursor()
        elif isinstance(entry, LogEntry) and self._tokens:
            yield from self._heed(entry)
        yield Item(entry, self.cursor)

    def _heed(self, entry: LogEntry) -> Iterator[Item]:
        """What a log entry says about step streams; a cursor from here on must lead back to a new worker's."""
        if entry.type == "worker.joined":
            self._refresh_cursor()
        elif entry.type in _LEFT and (left := self._streams.get(entry.data.get("worker", ""))):
            left.has_left = True
            self._refresh_cursor()
        elif entry.type == "request.completed" and (writer := self._streams.get(entry.by)):
            writer.has_completed = True
        elif entry.type == "job.ended":
            for one in self._streams.values():
                if one.name != LOG and one.has_completed and one.given_count == 0:
                    yield Item(Gap(one.name, entry.time, None), self.cursor)

    def _refresh_cursor(self) -> None:
        if self._tokens:
            self._steps_cursor = tuple(
                StepsCursor(name, one.given, one.given_count)
                for name, one in self._streams.items()
                if name != LOG and not one.retired
            )

    def _take_log(self, page: list[tuple[bytes, Any]]) -> None:
        log = self._log
        is_later_run = bool(page) and log.read != START and parse_id(page[0][0])[1] > _id(log.read)[1]
        self.doubted = log.read if is_later_run else None
        for raw_id, fields in page:
            entry, seq, expected = self._parse_log(raw_id, fields), parse_id(raw_id)[0], _id(log.read)[0] + 1
            if seq > expected:
                log.held.append(_Held(Gap(LOG, entry.time, seq - expected, expected, seq - 1), log.read, 0))
            log.read = raw_id.decode()
            log.held.append(_Held(entry, log.read, 0))
            if self._tokens and isinstance(entry, LogEntry) and entry.type == "worker.joined":
                self._discover(entry)

    def _discover(self, entry: LogEntry) -> None:
        worker, start = entry.data["worker"], f"{entry.data.get('epoch', 0)}-0"
        known = self._streams.get(worker)
        if known is None:
            self._streams[worker] = _Stream(worker, start, start)
        else:
            known.has_left = False
            known.drained = False

    def _take_steps(self, stream: _Stream, page: list[tuple[bytes, Any]]) -> Suspect | None:
        before, count, first = _id(stream.read), stream.read_count, parse_id(page[0][0])
        for raw_id, fields in page:
            stream.read = raw_id.decode()
            stream.read_count = None if stream.read_count is None else stream.read_count + 1
            entry = self._parse_steps(stream.name, raw_id, fields)
            if entry.time > stream.skip_until_ms:
                stream.held.append(_Held(entry, stream.read, stream.read_count))
        if count is None or first == (before[0], before[1] + 1):
            return None
        return Suspect(stream.name, count, page[0][0].decode())


def _head(stream: _Stream) -> tuple[int, int, str]:
    """What orders streams; within a millisecond tokens come before the end of their row and after their worker."""
    entry = stream.held[0].entry
    if stream.name != LOG:
        return entry.time, 1, stream.name
    leads = isinstance(entry, LogEntry) and entry.type in _BEFORE_TOKENS
    return entry.time, 0 if leads else 2, stream.name


def _id(position: str) -> tuple[int, int]:
    return parse_id(position.encode())


def _steps_cursor(worker: Any, position: Any, count: Any) -> StepsCursor:
    return StepsCursor(str(worker), _checked(position), None if count is None else int(count))


def _checked(position: Any) -> str:
    left, _, right = str(position).partition("-")
    return f"{int(left)}-{int(right)}"

"""Follow a job: its log and every worker's step stream, merged by the server's clock, from any cursor.

    log      ── 12 ── 13 ─────────── 14 ──▶      one XREAD over all streams; an entry is handed on only when no
    steps:a  ─── 1 ─── 2 ── 3 ───────────▶       stream can still bring an earlier one (the horizon), the rest
    steps:b  ───────────────── 1 ── 2 ───▶       waits in a buffer that holds at most a page per stream

Plain reads on an own connection: no group, nothing pending on the server, a slow reader costs nobody anything.
"""

from __future__ import annotations

import base64
import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.wire import LogEntry, StepEntry, decode_json, encode_json, parse_log_entry, parse_step_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from streamrunner.sinks.keys import JobKeys

PAGE = 256
# For who reads the log alone and at once: fewer round trips, a few MB at a time.
_LONG_PAGE = 4_000
_LOG = ""
_START = "0-0"


class Cursor(NamedTuple):
    """How far a reader came in each stream; opaque outside (`str` and `parse`)."""

    log: str = _START
    steps: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(encode_json([self.log, *self.steps])).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Raises SinkError (`bad_cursor`) for anything a reader did not print."""
        try:
            log, *steps = decode_json(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            positions = tuple((str(worker), _checked(position)) for worker, position in steps)
            return cls(_checked(log), positions)
        except (ValueError, TypeError) as error:
            raise SinkError("bad_cursor", "the cursor is not one that `runner events --json` printed") from error


class Resync(NamedTuple):
    """The server no longer holds what the cursor points at (a lost tail): state must be folded again from the start."""

    reason: str


Entry = LogEntry | StepEntry


class Item(NamedTuple):
    """One entry with the cursor that continues right behind it."""

    entry: Entry
    cursor: Cursor


class LogReader:
    """Reads one job's streams. Not thread-safe; a client of its own, `blocking` if poll is to wait.

    tokens: read the step streams too.
    """

    def __init__(
        self, client: redis.Redis, keys: JobKeys, *, cursor: Cursor | None = None, tokens: bool = False
    ) -> None:
        self._client: Any = client
        self._keys = keys
        self._tokens = tokens
        start = cursor or Cursor()
        # Where the next XREAD starts, and where the consumer stands: they differ by what is buffered.
        self._read: dict[str, str] = {_LOG: start.log, **(dict(start.steps) if tokens else {})}
        self._given = dict(self._read)
        self._pending: list[tuple[int, int, int, str, Entry, str]] = []
        self._order = 0

    @property
    def cursor(self) -> Cursor:
        """Continues behind the last entry handed on."""
        steps = tuple(sorted((worker, position) for worker, position in self._given.items() if worker != _LOG))
        return Cursor(self._given[_LOG], steps)

    def check(self) -> Resync | None:
        """Ask whether the server still knows where this reader stands; to be called after every reconnect."""
        position = self._given[_LOG]
        if position != _START and not self._client.xrange(self._keys.log, position, position):
            return Resync(f"the log no longer holds entry {position}: the server lost its last writes")
        return None

    def poll(self, block_ms: int | None = None) -> list[Item]:
        """The next entries in order; empty when there are none (within block_ms, if given)."""
        horizon = self._fetch(None)
        if not self._pending and block_ms:
            horizon = self._fetch(block_ms)
        return list(self._hand_on(horizon))

    def _fetch(self, block_ms: int | None) -> int | None:
        names = {self._key(name).encode(): name for name in self._read}
        streams = {key: self._read[name] for key, name in names.items()}
        pages = self._client.xread(streams, count=PAGE, block=block_ms) or []
        horizons = [self._take(names[key], entries) for key, entries in pages]
        return min((one for one in horizons if one is not None), default=None)

    def _take(self, name: str, entries: list[tuple[bytes, Any]]) -> int | None:
        """Buffer one stream's page; returns the time up to which all streams are known to be read."""
        horizon: int | None = None
        for raw_id, fields in entries:
            entry = parse_log_entry(raw_id, fields) if name == _LOG else parse_step_entry(name, raw_id, fields)
            self._order += 1
            # Tokens before the log's entries of the same flush, so that a terminal comes after its tokens.
            rank = 1 if name == _LOG else 0
            heapq.heappush(self._pending, (entry.time, rank, self._order, name, entry, raw_id.decode()))
            if self._discovers(entry):
                horizon = horizon or entry.time
        self._read[name] = entries[-1][0].decode()
        if len(entries) == PAGE:
            last: int = int(self._pending_time(name))
            horizon = last if horizon is None else min(horizon, last)
        return horizon

    def _discovers(self, entry: Entry) -> bool:
        """Whether the entry tells of a step stream that is to be read from now on."""
        if not self._tokens or not isinstance(entry, LogEntry) or entry.type != "worker.joined":
            return False
        worker = entry.data["worker"]
        is_new = worker not in self._read
        self._read.setdefault(worker, _START)
        return is_new

    def _pending_time(self, name: str) -> int:
        return max(time for time, _, _, stream, _, _ in self._pending if stream == name)

    def _hand_on(self, horizon: int | None) -> Iterator[Item]:
        while self._pending and (horizon is None or self._pending[0][0] <= horizon):
            _, _, _, name, entry, position = heapq.heappop(self._pending)
            self._given[name] = position
            if self._tokens and isinstance(entry, LogEntry) and entry.type == "worker.joined":
                # A cursor taken from here on must lead back to this worker's stream.
                self._given.setdefault(entry.data["worker"], _START)
            yield Item(entry, self.cursor)

    def _key(self, name: str) -> str:
        return self._keys.log if name == _LOG else self._keys.steps(name)


def read_log(client: redis.Redis, keys: JobKeys, after: str = _START) -> Iterator[LogEntry]:
    """Page through the log alone, behind entry id `after`."""
    for page in read_log_pages(client, keys, after):
        yield from page


def read_log_pages(client: redis.Redis, keys: JobKeys, after: str = _START) -> Iterator[list[LogEntry]]:
    """The log behind entry id `after`, in large pages."""
    position = after
    raw: Any = client
    while True:
        page = raw.xrange(keys.log, f"({position}" if position != _START else "-", count=_LONG_PAGE)
        if page:
            yield [parse_log_entry(raw_id, fields) for raw_id, fields in page]
        if len(page) < _LONG_PAGE:
            return
        position = page[-1][0].decode()


def read_steps(client: redis.Redis, keys: JobKeys, worker: str) -> Iterator[StepEntry]:
    """Page through one worker's step stream."""
    position = "-"
    raw: Any = client
    while True:
        page = raw.xrange(keys.steps(worker), position, count=PAGE)
        for raw_id, fields in page:
            yield parse_step_entry(worker, raw_id, fields)
        if len(page) < PAGE:
            return
        position = "(" + page[-1][0].decode()


def read_payloads(client: redis.Redis, keys: JobKeys, entries: list[LogEntry]) -> dict[str, bytes]:
    """The payloads of terminal events, by entry id; one round trip."""
    raw: Any = client
    pipe = raw.pipeline(transaction=False)
    for entry in entries:
        pipe.xrange(keys.res, entry.id, entry.id)
    found: dict[str, bytes] = {}
    for entry, page in zip(entries, pipe.execute(), strict=True):
        if page:
            found[entry.id] = page[0][1][b"p"]
    return found


def _checked(position: Any) -> str:
    left, _, right = str(position).partition("-")
    return f"{int(left)}-{int(right)}"

"""`watch` and `awatch`: a job's events as an iterator, from its first, from a snapshot or from any cursor, to its end.

Both open the log at the first event, carry out what one `Follower` wants done, and close it after the last. A slow
consumer holds a page of events and nothing else; the job does not notice it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from streamrunner.runner.fold import JobState
from streamrunner.runner.follower import ABANDONED_S, Doing, Follower, ended_event, has_ended
from streamrunner.runner.line import AsyncLine, Line
from streamrunner.runner.place import PREFIX, Place
from streamrunner.runner.view import View
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.merge import Cursor

if TYPE_CHECKING:
    import os
    from collections.abc import Collection

    from streamrunner.runner.job_events import EndedEvent, Event
    from streamrunner.sinks.server import LogServer

# How long a read waits on the server before the leases are looked at.
_BLOCK_MS = 5_000


class Source(NamedTuple):
    """Where a watch finds its job; `owned`: whether the watch is to close the server."""

    open: Callable[[], tuple[LogServer, JobKeys]]
    owned: bool

    @classmethod
    def at(cls, place: Place, wanted: str) -> Source:
        """A job of a log that is not open yet; opening raises SinkError (`job_not_found`, `job_ambiguous` …)."""
        return cls(partial(_open_at, place, wanted), owned=True)

    @classmethod
    def of(cls, server: LogServer, job_id: str) -> Source:
        """A known job of a log that somebody has opened and will close."""
        return cls(lambda: (server, JobKeys(job_id, PREFIX)), owned=False)


def _open_at(place: Place, wanted: str) -> tuple[LogServer, JobKeys]:
    server = place.open()
    try:
        return server, JobKeys(find_job_id(server, wanted), PREFIX)
    except BaseException:
        server.close()
        raise


def find_job_id(server: LogServer, wanted: str) -> str:
    """The id of the job that an id, a unique prefix, a name or `last` means. Raises SinkError."""
    from redis.exceptions import RedisError

    from streamrunner.sinks.directory import JobDirectory
    from streamrunner.sinks.errors import LogUnreachable

    try:
        with server.client() as client:
            return JobDirectory(client, PREFIX).find(wanted).job_id
    except (RedisError, OSError) as error:
        raise LogUnreachable(f"the log at {server.address} does not answer: {error}") from error


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What a watch gives and how long it lasts; see `watch`."""

    since: str | None = None
    snapshot: bool = False
    follow: bool = True
    worker_timeout_s: float | None = ABANDONED_S
    log_timeout_s: float = 600.0
    timeout_s: float | None = None


class _Plan:
    """One watch up to its end: what the blocking and the asyncio iterator have in common."""

    def __init__(self, keys: JobKeys, view: View, options: WatchOptions) -> None:
        cursor = None if options.since is None else Cursor.parse(options.since)
        self.follower = Follower(keys, view, cursor=cursor, snapshot=options.snapshot, patience_s=options.log_timeout_s)
        self.end: EndedEvent | None = None
        self._view = view
        self._options = options
        self._over = False
        self._deadline = None if options.timeout_s is None else time.monotonic() + options.timeout_s
        self._has_idled = False
        self._said_ended = False
        self._seen_alive = time.monotonic()

    def next_events(self) -> Doing[list[Event]]:
        """The next events; empty once there is no more to come."""
        while not self._over and not self._timed_out():
            events = yield from self.follower.next_page(self._block_ms())
            if not self.follower.is_idle:
                self._said_ended, self._seen_alive = False, time.monotonic()
                if events:
                    return events
                continue
            yield from self._idle()
            if self.end is not None and self._view.wants(self.end.type):
                return [self.end]
        return []

    def _block_ms(self) -> int | None:
        """How long to wait for the next entry: not at all before the log has been read up once, or behind its end."""
        if not (self._options.follow and self._has_idled) or self._said_ended or self.follower.at_end:
            return None
        left_ms = _BLOCK_MS if self._deadline is None else int((self._deadline - time.monotonic()) * 1000)
        return max(1, min(_BLOCK_MS, left_ms))

    def _timed_out(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _idle(self) -> Doing[None]:
        """Nothing more to read: find out whether there ever will be."""
        life = yield from self.follower.life()
        if life.workers:
            self._seen_alive = time.monotonic()
        # The job may have ended after the last read: its last entries are read once more before it is believed.
        ended, self._said_ended = has_ended(life) and self._said_ended, has_ended(life)
        limit = self._options.worker_timeout_s
        waited_s = 0.0 if life.workers else time.monotonic() - self._seen_alive
        abandoned = not (has_ended(life) or life.workers) and limit is not None and waited_s > limit
        if ended or (abandoned and self._options.follow):
            self.end = ended_event(life, self.follower.state, self.follower.cursor)
        self._over = self.end is not None or not (self._options.follow or self._said_ended)
        self._has_idled = True


class Watch(Iterator["Event"]):
    """The iterator that `watch` returns; also a context manager, for leaving early."""

    def __init__(self, source: Source, view: View, options: WatchOptions) -> None:
        self._source = source
        self._view = view
        self._options = options
        self._events: deque[Event] = deque()
        self._server: LogServer | None = None
        self._line: Line | None = None
        self._plan: _Plan | None = None

    @property
    def state(self) -> JobState:
        """The fold of what has been read; empty for a watch that began at a cursor."""
        return self._plan.follower.state if self._plan else JobState()

    @property
    def end(self) -> EndedEvent | None:
        """How the watch ended, once it has, also where the filter leaves `ended` out."""
        return self._plan.end if self._plan else None

    def __next__(self) -> Event:
        if not self._events:
            self._events.extend(self._next_page())
        return self._events.popleft()

    def pages(self) -> Iterator[list[Event]]:
        """The same events in the lots in which they came, for who draws or writes once for all of them."""
        while True:
            try:
                yield [*self._events] or self._next_page()
            except StopIteration:
                return
            self._events.clear()

    def _next_page(self) -> list[Event]:
        line, plan = self._opened()
        events = line.run(plan.next_events())
        if not events:
            self.close()
            raise StopIteration
        return events

    def close(self) -> None:
        """Give up the log; what was read stays readable."""
        if self._line is not None:
            self._line.close()
        if self._server is not None and self._source.owned:
            self._server.close()
        self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> tuple[Line, _Plan]:
        if self._line is None or self._plan is None:
            server, keys = self._source.open()
            self._server, self._line = server, Line(server)
            self._plan = _Plan(keys, self._view, self._options)
        return self._line, self._plan


class AsyncWatch(AsyncIterator["Event"]):
    """The asynchronous iterator that `awatch` returns; also an asynchronous context manager.

    Cancelling a wait for the next event (a timeout, say) loses nothing: iterate on afterwards.
    """

    def __init__(self, source: Source, view: View, options: WatchOptions) -> None:
        self._source = source
        self._view = view
        self._options = options
        self._events: deque[Event] = deque()
        self._server: LogServer | None = None
        self._line: AsyncLine | None = None
        self._plan: _Plan | None = None

    @property
    def state(self) -> JobState:
        """The fold of what has been read; empty for a watch that began at a cursor."""
        return self._plan.follower.state if self._plan else JobState()

    @property
    def end(self) -> EndedEvent | None:
        """How the watch ended, once it has, also where the filter leaves `ended` out."""
        return self._plan.end if self._plan else None

    async def __anext__(self) -> Event:
        while not self._events:
            line, plan = await self._opened()
            events = await line.run(plan.next_events())
            if not events:
                await self.aclose()
                raise StopAsyncIteration
            self._events.extend(events)
        return self._events.popleft()

    async def aclose(self) -> None:
        """Give up the log; what was read stays readable."""
        if self._line is not None:
            await self._line.close()
        if self._server is not None and self._source.owned:
            self._server.close()
        self._server = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _opened(self) -> tuple[AsyncLine, _Plan]:
        if self._line is None or self._plan is None:
            server, keys = await asyncio.to_thread(self._source.open)
            self._server, self._line = server, AsyncLine(server)
            self._plan = _Plan(keys, self._view, self._options)
        return self._line, self._plan


def watch(
    job: str = "last",
    *,
    since: str | None = None,
    snapshot: bool = False,
    types: Collection[str] | None = None,
    rows: Collection[int] | None = None,
    tokens: bool = True,
    follow: bool = True,
    worker_timeout_s: float | None = ABANDONED_S,
    log_timeout_s: float = 600.0,
    timeout_s: float | None = None,
    redis_url: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> Watch:
    """Iterate over a job's events until it ends, through restarts of the server and of the workers.

    job: an id, a unique prefix of it, a name, or `last`.
    since: the `cursor` of an event, to go on right behind it; None begins with the job's first event.
    snapshot: begin with one `snapshot` event (the job so far) and go on with what is new.
    types: only these, `request.*` and the like included; `gap`, `resync` and notices about the reading always come.
    rows: of the events and tokens that concern rows, only these rows' (numbers of input lines, from 0).
    follow: False stops at the log's present end instead of waiting.
    worker_timeout_s: stop (`ended.abandoned`) when no worker has held the unfinished job for so long; None: never.
    log_timeout_s: raise LogUnreachable when the server has been away for so long.
    timeout_s: stop after this time in any case (then `end` is None); None: never.
    redis_url, data_dir: where the log is, as for `runner`; RUNNER_REDIS_URL and RUNNER_DATA_DIR otherwise.

    Raises SinkError: `job_not_found`, `job_ambiguous`, `bad_cursor`, `log_unreachable`, `log_denied`.
    """
    options = WatchOptions(since, snapshot, follow, worker_timeout_s, log_timeout_s, timeout_s)
    return Watch(_source(job, redis_url, data_dir), View(types, rows, tokens=tokens), options)


def awatch(
    job: str = "last",
    *,
    since: str | None = None,
    snapshot: bool = False,
    types: Collection[str] | None = None,
    rows: Collection[int] | None = None,
    tokens: bool = True,
    follow: bool = True,
    worker_timeout_s: float | None = ABANDONED_S,
    log_timeout_s: float = 600.0,
    timeout_s: float | None = None,
    redis_url: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> AsyncWatch:
    """`watch` for an event loop: `async for event in awatch(job)`, with the same arguments and events."""
    options = WatchOptions(since, snapshot, follow, worker_timeout_s, log_timeout_s, timeout_s)
    return AsyncWatch(_source(job, redis_url, data_dir), View(types, rows, tokens=tokens), options)


def _source(job: str, redis_url: Any, data_dir: Any) -> Source:
    return Source.at(Place.of(redis_url, data_dir), job)

"""A job's results as an iterator, while it runs or afterwards, each row once.

Rows are taken from a `ResultFeed`; which of them have been given is kept by row and attempt, so a lost connection or a
server that lost its last writes repeats nothing.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from streamrunner.runner.errors import ExitCode, RunnerError
from streamrunner.runner.watcher import live_workers
from streamrunner.sinks.errors import LogUnreachable
from streamrunner.sinks.wire import decode_json

if TYPE_CHECKING:
    import redis

    from streamrunner.runner.result_feed import ResultFeed
    from streamrunner.runner.row_index import Applied, RowIndex
    from streamrunner.runner.selection import Selection
    from streamrunner.sinks.keys import JobKeys
    from streamrunner.sinks.server import LogServer

_POLL_MS = 500
_PAGE = 64
_RETRY_S = 0.25

Line = dict[str, Any]


class ResultOptions(NamedTuple):
    """Which results, and how long to wait for them; see `Job.results`."""

    selection: Selection
    follow: bool
    worker_timeout_s: float | None
    log_timeout_s: float


class _Due:
    """Which rows are to be given next; every row and attempt is due once."""

    def __init__(self, options: ResultOptions) -> None:
        self._selection = options.selection
        # What comes behind an open row has to wait for it, if somebody waits at all.
        self._holds_order = options.follow and options.selection.order == "input"
        self._given = array("I")
        self._next_row = 0

    def all(self, index: RowIndex) -> list[int]:
        """All rows that have ended and were not given."""
        self._given.extend([0] * (len(index.attempts) - len(self._given)))
        rows: list[int] = self._selection.ended_rows(index).tolist()
        if self._holds_order:
            self._next_row = 0
            self._pass(index)
            rows = [row for row in rows if row < self._next_row]
        return [row for row in rows if self._given[row] != index.attempts[row]]

    def after(self, index: RowIndex, applied: Applied) -> list[int]:
        """Rows that have just come to be due."""
        if applied.reopened or index.state.ended:
            return self.all(index)
        rows = self._pass(index) if self._holds_order else applied.ended
        return [row for row in rows if self._selection.wants(index, row) and self._given[row] != index.attempts[row]]

    def give(self, row: int, attempt: int) -> None:
        """Remember a row that was given."""
        self._given[row] = attempt

    def _pass(self, index: RowIndex) -> range:
        first, num_rows = self._next_row, len(index.entries)
        while self._next_row < num_rows and index.is_ended(self._next_row):
            self._next_row += 1
        return range(first, self._next_row)


class ResultPages:
    """Pages of result lines, read on a blocking connection of its own. Not thread-safe."""

    def __init__(self, server: LogServer, keys: JobKeys, options: ResultOptions) -> None:
        self.over = False
        self._server = server
        self._keys = keys
        self._options = options
        self._owner = keys.job_id.removeprefix("job_").encode()
        self._due = _Due(options)
        self._rows: deque[int] = deque()
        self._client: redis.Redis | None = None
        self._feed: ResultFeed | None = None
        self._seen_alive = time.monotonic()
        self._lost_since: float | None = None

    def next_page(self) -> list[Line]:
        """The next lines; empty if none came within half a second, or none will come any more (`over`).

        Raises RunnerError (`job_abandoned`: rows are open and nobody works on them; those of `ResultReader.records`),
        SinkError (`results_missing`), LogUnreachable.
        """
        from redis.exceptions import RedisError

        try:
            lines = self._next_page()
        except (RedisError, OSError) as error:
            self._reconnect(error)
            return []
        self._lost_since = None
        return lines

    def close(self) -> None:
        """Give up the connection."""
        client, self._client, self._feed = self._client, None, None
        if client is not None:
            client.close()

    def _next_page(self) -> list[Line]:
        client, feed = self._opened()
        if not self._rows:
            self.over = feed.ended or not self._options.follow
            if not self.over:
                self._poll(client, feed)
        rows = [self._rows[place] for place in range(min(_PAGE, len(self._rows)))]
        lines = [self._line(record) for record in feed.results.records(rows)]
        for row in rows:
            self._rows.popleft()
            self._due.give(row, feed.index.attempts[row])
        return lines

    def _poll(self, client: redis.Redis, feed: ResultFeed) -> None:
        if applied := feed.poll(_POLL_MS):
            self._seen_alive = time.monotonic()
            self._rows.extend(self._due.after(feed.index, applied))
        else:
            self._check_alive(client)

    def _line(self, record: Any) -> Line:
        from streamrunner.sinks.outputs.formats import jsonl_line

        line: Line = decode_json(jsonl_line(self._owner, record))
        return line

    def _opened(self) -> tuple[redis.Redis, ResultFeed]:
        from streamrunner.runner.result_feed import ResultFeed

        if self._client is None:
            self._client = self._server.client(blocking=True)
        if self._feed is None:
            self._feed = ResultFeed(self._client, self._keys)
            self._rows = deque(self._due.all(self._feed.index))
        return self._client, self._feed

    def _check_alive(self, client: redis.Redis) -> None:
        limit = self._options.worker_timeout_s
        if live_workers(client, self._keys):
            self._seen_alive = time.monotonic()
        elif limit is not None and time.monotonic() - self._seen_alive > limit:
            raise abandoned(self._keys.job_id, limit)

    def _reconnect(self, error: Exception) -> None:
        """Wait for the server; what was read is read again, as its last writes may be lost."""
        self.close()
        now = time.monotonic()
        if self._lost_since is None:
            self._lost_since = now
        else:
            time.sleep(_RETRY_S)
        try:
            self._server.revive()
        except LogUnreachable:
            if now - self._lost_since > self._options.log_timeout_s:
                raise LogUnreachable(f"the log does not answer: {error}") from error


def abandoned(job_id: str, limit_s: float) -> RunnerError:
    """The error of waiting for a job on which nobody works."""
    return RunnerError(
        "job_abandoned",
        f"no worker has held {job_id} for {limit_s:g} s: start a `runner worker`, call `job.run()`, or wait for one "
        "with worker_timeout_s=None",
        ExitCode.STOPPED,
    )


class Results(Iterator[Line]):
    """The iterator that `Job.results` returns; also a context manager, for leaving early."""

    def __init__(self, start: Callable[[], ResultPages]) -> None:
        self._start = start
        self._pages: ResultPages | None = None
        self._lines: deque[Line] = deque()

    def __next__(self) -> Line:
        pages = self._pages = self._pages or self._start()
        while not self._lines:
            if pages.over:
                pages.close()
                raise StopIteration
            self._lines.extend(pages.next_page())
        return self._lines.popleft()

    def close(self) -> None:
        """Give up the connection."""
        if self._pages is not None:
            self._pages.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncResults(AsyncIterator[Line]):
    """The asynchronous iterator that `AsyncJob.results` returns, also a context manager.

    A cancelled wait loses nothing.
    """

    def __init__(self, start: Callable[[], ResultPages]) -> None:
        self._start = start
        self._pages: ResultPages | None = None
        self._lines: deque[Line] = deque()
        self._reading: asyncio.Future[list[Line]] | None = None

    async def __anext__(self) -> Line:
        while not self._lines:
            if self._reading is None:
                if self._pages is not None and self._pages.over:
                    await self.aclose()
                    raise StopAsyncIteration
                self._reading = asyncio.ensure_future(asyncio.to_thread(self._read))
            # The thread reads on behind a cancelled wait, for half a second, and the next wait takes what it found.
            lines = await asyncio.shield(self._reading)
            self._reading = None
            self._lines.extend(lines)
        return self._lines.popleft()

    async def aclose(self) -> None:
        """Give up the connection."""
        if self._reading is not None:
            await asyncio.wait([self._reading])
            self._reading = None
        if self._pages is not None:
            await asyncio.to_thread(self._pages.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _read(self) -> list[Line]:
        self._pages = self._pages or self._start()
        return self._pages.next_page()

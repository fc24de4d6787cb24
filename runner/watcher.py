"""Follow a job across lost connections and server restarts: snapshot, page, follow, without gap or duplicate.

The end comes from the log (`job.ended`) or from the leases (nobody has held the job for a while), never from a last
message that could be missed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from streamrunner.runner.fold import JobState
from streamrunner.sinks.errors import LogUnreachable
from streamrunner.sinks.reader import Cursor, Item, LogReader, Resync
from streamrunner.sinks.wire import LogEntry

if TYPE_CHECKING:
    from collections.abc import Iterable

    import redis

    from streamrunner.sinks.keys import JobKeys
    from streamrunner.sinks.server import LogServer

# A lease lives 15 s; whoever was killed has been replaced or is missed by then.
ABANDONED_S = 20.0
_RETRY_S = 0.25


class Watcher:
    """Reads one job on a connection of its own. Not thread-safe.

    `state` is folded from what was read; with a `cursor` it stays empty, since half a log is no state.
    """

    def __init__(
        self,
        server: LogServer,
        keys: JobKeys,
        *,
        cursor: Cursor | None = None,
        tokens: bool = False,
        patience_s: float = 600,
    ) -> None:
        self.state = JobState()
        self._server = server
        self._keys = keys
        self._tokens = tokens
        self._patience_s = patience_s
        self._folds = cursor is None
        self._client = _own_connection(server)
        self._reader = LogReader(self._client, keys, cursor=cursor, tokens=tokens)
        self._seen_alive = time.monotonic()

    def poll(self, block_ms: int | None) -> list[Item] | Resync:
        """The next entries; `Resync` after the server lost its last writes: begin again from the start."""
        from redis.exceptions import RedisError

        try:
            items = self._reader.poll(block_ms)
        except (RedisError, OSError):
            return self._reconnect()
        self.fold(item.entry for item in items)
        return items

    def fold(self, entries: Iterable[Any]) -> None:
        """Take log entries into `state`, if this watcher reads from the start."""
        for entry in entries:
            if self._folds and isinstance(entry, LogEntry):
                self.state.apply(entry)

    def abandoned(self) -> bool:
        """Whether no worker has held the job for so long that nobody will answer for it."""
        if self.live_workers():
            self._seen_alive = time.monotonic()
        return time.monotonic() - self._seen_alive > ABANDONED_S

    def live_workers(self) -> list[str]:
        """Workers whose lease has not run out; empty while the server does not answer."""
        from redis.exceptions import RedisError

        try:
            return live_workers(self._client, self._keys)
        except (RedisError, OSError):
            return []

    def _reconnect(self) -> list[Item] | Resync:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return self._reopen()
            except LogUnreachable:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_S)

    def _reopen(self) -> list[Item] | Resync:
        from redis.exceptions import RedisError

        cursor = self._reader.cursor
        try:
            self._server.revive()
            self._client = _own_connection(self._server)
            self._reader = LogReader(self._client, self._keys, cursor=cursor, tokens=self._tokens)
            lost = self._reader.check()
        except (RedisError, OSError) as error:
            raise LogUnreachable(f"the log at {self._server.address} does not answer: {error}") from error
        if lost is None:
            return []
        self.state = JobState()
        self._reader = LogReader(self._client, self._keys, tokens=self._tokens)
        return lost


def _own_connection(server: LogServer) -> redis.Redis:
    """A client of one connection: a pool would replace a broken one silently, and a lost tail would go unnoticed."""
    pooled: Any = server.client(blocking=True)
    single: redis.Redis = pooled.client()
    return single


def live_workers(client: redis.Redis, keys: JobKeys) -> list[str]:
    """Workers of the job that joined, did not leave, and hold their lease."""
    raw: Any = client
    meta = raw.hgetall(keys.meta)
    joined = [name[2:].decode() for name, value in meta.items() if name.startswith(b"w:") and value == b"joined"]
    return [worker for worker in joined if raw.exists(keys.lease(worker))]

"""Follow a job: its log and every worker's step stream, merged by the server's clock, from any cursor.

Plain reads on an own connection: no group, nothing pending on the server, a slow reader costs nobody anything.

What is asked of the server is written as generators: they yield a round of commands and are sent the replies. So there
is one way to read a job, whoever carries the commands: `drive` with a client, or an event loop (`runner.line`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from streamrunner.sinks.blob import parse_reference
from streamrunner.sinks.merge import LOG, PAGE, START, Cursor, Item, StreamMerge
from streamrunner.sinks.wire import LogEntry, StepEntry, parse_log_entry, parse_step_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from streamrunner.sinks.keys import JobKeys

# For who reads the log alone and at once: fewer round trips; larger pages cost the collector more than they save.
_LONG_PAGE = 1_000

T = TypeVar("T")

Command = tuple[Any, ...]
# Yields commands that may go out in one round trip; is sent their replies.
Asking = Generator[list[Command], list[Any], T]


class Resync(NamedTuple):
    """The server no longer holds what the cursor points at (a lost tail): state must be folded again from the start."""

    reason: str


class LogReader:
    """Reads one job's streams. Not thread-safe; a client of its own, `blocking` if poll is to wait.

    tokens: read the step streams too.
    any_version: hand on entries that this release cannot read as `Unreadable` instead of raising SinkError.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: JobKeys,
        *,
        cursor: Cursor | None = None,
        tokens: bool = False,
        any_version: bool = False,
    ) -> None:
        self._client = client
        self._keys = keys
        self._merge = StreamMerge(cursor, tokens=tokens, any_version=any_version)

    @property
    def cursor(self) -> Cursor:
        """Continues behind the last entry handed on."""
        return self._merge.cursor

    def check(self) -> Resync | None:
        """Ask whether the server still knows where this reader stands; to be called after every reconnect."""
        return drive(self._client, ask_for_cursor(self._keys, self._merge.cursor))

    def poll(self, block_ms: int | None = None) -> list[Item]:
        """The next entries in order; empty when there are none (within block_ms, if given)."""
        return drive(self._client, ask_for_entries(self._keys, self._merge, block_ms))


def drive(client: redis.Redis, asking: Asking[T]) -> T:
    """Carry the commands of a generator to the server, until it returns."""
    try:
        commands = next(asking)
        while True:
            commands = _answer(client, asking, commands)
    except StopIteration as done:
        result: T = done.value
        return result


def _answer(client: redis.Redis, asking: Asking[Any], commands: list[Command]) -> list[Command]:
    from redis.exceptions import RedisError

    try:
        replies = perform(client, commands)
    except (RedisError, OSError) as error:
        return asking.throw(error)
    return asking.send(replies)


def perform(client: redis.Redis, commands: list[Command]) -> list[Any]:
    """The replies to commands, in one round trip."""
    raw: Any = client
    if len(commands) == 1:
        return [raw.execute_command(*commands[0])]
    pipe = raw.pipeline(transaction=False)
    for command in commands:
        pipe.execute_command(*command)
    replies: list[Any] = pipe.execute()
    return replies


def ask_for_entries(keys: JobKeys, merge: StreamMerge, block_ms: int | None, limit: int = PAGE) -> Asking[list[Item]]:
    """The next items of a merge, at most `limit`; empty when there is nothing more (within block_ms, if given)."""
    may_wait, has_read = bool(block_ms), False
    while True:
        items = merge.hand_on(limit)
        if items or (has_read and not may_wait and merge.idle):
            return items
        waits = may_wait and merge.idle
        yield from _read_round(keys, merge, block_ms if waits else None)
        may_wait, has_read = may_wait and not waits, True


def ask_for_cursor(keys: JobKeys, cursor: Cursor) -> Asking[Resync | None]:
    """Whether the log still holds the entry that a cursor points at."""
    if cursor.log != START:
        [found] = yield [("XRANGE", keys.log, cursor.log, cursor.log)]
        if not found:
            return Resync(f"the log no longer holds entry {cursor.log}: the server lost its last writes")
    return None


def ask_for_late_workers(keys: JobKeys, merge: StreamMerge) -> Asking[None]:
    """Have a merge read tokens from the time of its cursor on, where that was taken by a reader without tokens."""
    position = merge.cursor.log
    if merge.counts_steps or position == START:
        return
    found, meta = yield [("XRANGE", keys.log, position, position), ("HGETALL", keys.meta)]
    since_ms = int(found[0][1][b"time"]) if found else 0
    for name in meta:
        if name.startswith(b"w:"):
            merge.join_late(name[2:].decode(), since_ms)


def ask_for_trimmed(keys: JobKeys, worker: str) -> Asking[tuple[int, str | None]]:
    """How many entries a worker's step stream has lost to retention, and the id of its oldest; None if it is gone."""
    from redis.exceptions import ResponseError

    try:
        [info] = yield [("XINFO STREAM", keys.steps(worker))]
    except ResponseError:
        return 0, None
    first = info["first-entry"]
    return info["entries-added"] - info["length"], first and first[0].decode()


def _read_round(keys: JobKeys, merge: StreamMerge, block_ms: int | None) -> Asking[None]:
    asked = merge.wanted()
    names = {_key(keys, name).encode(): name for name in asked}
    block = ("BLOCK", block_ms) if block_ms else ()
    [pages] = yield [("XREAD", "COUNT", PAGE, *block, "STREAMS", *names, *asked.values())]
    suspects = merge.accept(asked, {names[key]: page for key, page in pages or ()})
    if merge.doubted is not None:
        yield from _prove(keys, merge.doubted)
    for suspect in suspects:
        num_trimmed, first_id = yield from ask_for_trimmed(keys, suspect.worker)
        merge.settle(suspect, num_trimmed, first_id)


def _prove(keys: JobKeys, position: str) -> Asking[None]:
    """A pool or a Cluster client may come back from a failover without a word; the reader must do as after an outage.

    Raises redis.ConnectionError if the log no longer holds an entry that was read.
    """
    [found] = yield [("XRANGE", keys.log, position, position)]
    if not found:
        from redis.exceptions import ConnectionError as Disconnected

        raise Disconnected(f"the log was written anew from entry {position} on")


def _key(keys: JobKeys, name: str) -> str:
    return keys.log if name == LOG else keys.steps(name)


def read_log(client: redis.Redis, keys: JobKeys, after: str = START) -> Iterator[LogEntry]:
    """Page through the log alone, behind entry id `after`."""
    for page in read_log_pages(client, keys, after):
        yield from page


def read_log_pages(client: redis.Redis, keys: JobKeys, after: str = START) -> Iterator[list[LogEntry]]:
    """The log behind entry id `after`, in large pages."""
    position = after
    raw: Any = client
    while True:
        page = raw.xrange(keys.log, f"({position}" if position != START else "-", count=_LONG_PAGE)
        if page:
            yield [parse_log_entry(raw_id, fields) for raw_id, fields in page]
        if len(page) < _LONG_PAGE:
            return
        position = page[-1][0].decode()


def read_steps(client: redis.Redis, keys: JobKeys, worker: str, after: str = "") -> Iterator[StepEntry]:
    """Page through one worker's step stream, behind step id `after` if given."""
    position = f"({after}" if after else "-"
    raw: Any = client
    while True:
        page = raw.xrange(keys.steps(worker), position, count=PAGE)
        for raw_id, fields in page:
            yield parse_step_entry(worker, raw_id, fields)
        if len(page) < PAGE:
            return
        position = "(" + page[-1][0].decode()


def newest_steps(client: redis.Redis, keys: JobKeys, worker: str, count: int) -> list[StepEntry]:
    """The last entries of one worker's step stream, newest first."""
    raw: Any = client
    page = raw.xrevrange(keys.steps(worker), count=count)
    return [parse_step_entry(worker, raw_id, fields) for raw_id, fields in page]


def read_payloads(client: redis.Redis, keys: JobKeys, entries: list[LogEntry]) -> dict[str, bytes]:
    """The payloads of terminal events, by entry id; one round trip."""
    return drive(client, ask_for_payloads(keys, entries)) if entries else {}


def ask_for_payloads(keys: JobKeys, entries: list[LogEntry]) -> Asking[dict[str, bytes]]:
    """The payloads of terminal events, by entry id; what retention took is missing."""
    pages = yield [("XRANGE", keys.res, entry.id, entry.id) for entry in entries]
    found = {entry.id: page[0][1][b"p"] for entry, page in zip(entries, pages, strict=True) if page}
    return (yield from ask_for_referred(keys, found))


def ask_for_referred(keys: JobKeys, payloads: dict[T, bytes]) -> Asking[dict[T, bytes]]:
    """The same payloads, with large ones in place of what refers to them; raises SinkError (`results_missing`)."""
    refs = {name: ref for name, payload in payloads.items() if (ref := parse_reference(payload)) is not None}
    for name, ref in refs.items():
        # One at a time: together they may be more than anybody wants to hold.
        [blob] = yield [("HGET", keys.blobs, ref.sha256)]
        payloads[name] = ref.check(blob, keys.job_id)
    return payloads

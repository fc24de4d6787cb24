"""An archived job behind the same face as a server: whoever reads jobs reads an archive without knowing it.

Only what readers ask is answered (`XRANGE`, `XREVRANGE`, `XREAD`, `HGETALL`, `HGET`, `GET`, `EXISTS`); there are no
tokens, no leases, and nothing can be written.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn, Self

from streamrunner.sinks.archive import Entry, JobFolder, read_frame, stream_path
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.wire import parse_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis.asyncio

Id = tuple[int, int]
_LAST: Id = (1 << 64, 1 << 64)


class ArchiveServer:
    """The log server of one archived job."""

    local = True
    may_lose_tail = False

    def __init__(self, folder: JobFolder, prefix: str) -> None:
        self.address = f"archive {folder.path}"
        self._client = ArchiveClient(folder, JobKeys(folder.manifest.job, prefix))

    def client(self, *, blocking: bool = False) -> Any:
        """What reads the files; waiting brings nothing, since nothing is added."""
        del blocking
        return self._client

    def async_client(self) -> redis.asyncio.Redis:
        """Archives are read from blocking code alone. Raises SinkError (`job_archived`)."""
        raise SinkError("job_archived", f"{self.address} is read by the command line and by blocking code only")

    def reader(self) -> ArchiveClient:
        """The same."""
        return self._client

    def revive(self) -> None:
        """Files need no revival."""

    def notices(self) -> tuple[str, ...]:
        """None."""
        return ()

    def close(self) -> None:
        """Nothing is held open."""


class _Stream:
    """One file of an archive, by ids."""

    def __init__(self, folder: JobFolder, name: str) -> None:
        self._path = stream_path(folder.path, name)
        self._frames = folder.manifest.streams[name].frames
        self._firsts = [parse_id(frame.first.encode()) for frame in self._frames]
        self._read = lru_cache(maxsize=4)(lambda number: read_frame(self._path, self._frames[number]))

    def forwards(self, low: Id, high: Id) -> Iterator[Entry]:
        for number in range(max(bisect_right(self._firsts, low) - 1, 0), len(self._frames)):
            if self._firsts[number] > high:
                return
            yield from (entry for entry in self._read(number) if low <= parse_id(entry[0]) <= high)

    def backwards(self, low: Id, high: Id) -> Iterator[Entry]:
        for number in range(bisect_right(self._firsts, high) - 1, -1, -1):
            yield from (entry for entry in reversed(self._read(number)) if low <= parse_id(entry[0]) <= high)
            if self._firsts[number] <= low:
                return


class ArchiveClient:
    """Answers a reader's commands from files, as redis-py would."""

    def __init__(self, folder: JobFolder, keys: JobKeys) -> None:
        names = {keys.log: "log", keys.res: "results", keys.work: "ranges"}
        self._streams = {key: _Stream(folder, name) for key, name in names.items()}
        manifest = folder.manifest
        hashes = {keys.meta: manifest.meta, keys.claims: manifest.claims, keys.attempts: manifest.attempts}
        self._hashes = {key: {a.encode(): b.encode() for a, b in fields.items()} for key, fields in hashes.items()}
        self._strings = {keys.done: bytes.fromhex(manifest.done)}

    def xrange(self, name: str, min: str = "-", max: str = "+", count: int | None = None) -> list[Entry]:  # noqa: A002
        """Entries of a stream, oldest first."""
        stream = self._streams.get(name)
        return [] if stream is None else list(islice(stream.forwards(_low(min), _high(max)), count))

    def xrevrange(self, name: str, max: str = "+", min: str = "-", count: int | None = None) -> list[Entry]:  # noqa: A002
        """Entries of a stream, newest first."""
        stream = self._streams.get(name)
        return [] if stream is None else list(islice(stream.backwards(_low(min), _high(max)), count))

    def hgetall(self, name: str) -> dict[bytes, bytes]:
        """All fields of a hash."""
        return dict(self._hashes.get(name, {}))

    def hget(self, name: str, field: str) -> bytes | None:
        """One field of a hash."""
        return self._hashes.get(name, {}).get(field.encode())

    def get(self, name: str) -> bytes | None:
        """A string, or None."""
        return self._strings.get(name)

    def exists(self, *names: str) -> int:
        """How many of the keys there are."""
        return sum(name in self._streams or name in self._hashes for name in names)

    def execute_command(self, command: str, *args: Any) -> Any:
        """A command as readers spell it. Raises SinkError (`job_archived`) for any other."""
        if command == "XREAD":
            return self._xread(args)
        if command in ("XRANGE", "XREVRANGE"):
            name, first, last, *rest = args
            call = self.xrange if command == "XRANGE" else self.xrevrange
            return call(name, first, last, rest[1] if rest else None)
        if command in ("HGETALL", "HGET", "GET", "EXISTS"):
            return getattr(self, command.lower())(*args)
        if command.startswith("XINFO"):
            from redis.exceptions import ResponseError

            raise ResponseError("no such key")
        return self.fcall(command)

    def fcall(self, *args: Any) -> NoReturn:
        """Nothing is written to an archive. Raises SinkError (`job_archived`)."""
        raise SinkError("job_archived", f"the job is archived, so nothing about it can change any more ({args[0]})")

    def pipeline(self, **_: Any) -> _Pipeline:
        """Commands that are answered together."""
        return _Pipeline(self)

    @property
    def connection_pool(self) -> ArchiveClient:
        """What `close` of a follower disconnects."""
        return self

    def disconnect(self) -> None:
        """Nothing is connected."""

    def close(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _xread(self, args: tuple[Any, ...]) -> list[Any]:
        words = list(args)
        count = int(words[words.index("COUNT") + 1]) if "COUNT" in words else None
        names = words[words.index("STREAMS") + 1 :]
        half = len(names) // 2
        found = []
        for name, after in zip(names[:half], names[half:], strict=True):
            key = name.decode() if isinstance(name, bytes) else name
            if entries := self.xrange(key, f"({after}", "+", count):
                found.append([key.encode(), entries])
        return found

    def client(self) -> ArchiveClient:
        """A connection of its own is this one."""
        return self


class _Pipeline:
    """Remembers calls, then makes them."""

    def __init__(self, client: ArchiveClient) -> None:
        self._client = client
        self._calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def remember(*args: Any, **kwargs: Any) -> None:
            self._calls.append((name, args, kwargs))

        return remember

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.clear()

    def execute(self) -> list[Any]:
        """The answers, in order."""
        return [getattr(self._client, name)(*args, **kwargs) for name, args, kwargs in self._calls]


def _low(text: str) -> Id:
    if text == "-":
        return (0, 0)
    left, right = parse_id(text.lstrip("(").encode())
    return (left, right + 1) if text.startswith("(") else (left, right)


def _high(text: str) -> Id:
    return _LAST if text == "+" else parse_id(text.encode())

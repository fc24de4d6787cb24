"""A JSON Lines file that is its own checkpoint.

Each line begins with its id, so whoever opens the file again after a kill reads from it which rows are in it: a torn
last line is cut off before anything is appended (never glued to the next one), and every row is written exactly once.

    {"id":"batch_req_01J…_17_1","custom_id":…}\\n      ◀ row 17, attempt 1, of job 01J…
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

ID_PREFIX = b'{"id":"batch_req_'
_BLOCK = 1 << 20


class RowAttempt(NamedTuple):
    """What one line answers."""

    row: int
    attempt: int


class JsonlFile:
    """An output file held by one process at a time (flock); appends are flushed by `sync`.

    owner: the job's ULID. A file with lines of another job is begun afresh (that job's results stay in its log); any
    other content is refused. Raises SinkError (`output_locked`, `output_exists`, `output_unwritable`).
    """

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self._owner = owner.encode()
        self._file = _open(path)
        try:
            self.written = self._recover()
        except BaseException:
            self._file.close()
            raise

    def append(self, lines: Iterable[bytes]) -> None:
        """Write whole lines (without their newline)."""
        self._file.write(b"".join(line + b"\n" for line in lines))

    def sync(self) -> None:
        """Make what was appended durable."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Sync and give the file to whoever wants it next."""
        self.sync()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _recover(self) -> set[RowAttempt]:
        written: set[RowAttempt] = set()
        whole = 0
        for line in iter(self._file.readline, b""):
            if not line.endswith(b"\n"):
                break
            attempt = self._parse(line)
            if attempt is None and not written:
                return self._begin_afresh(line)
            if attempt is None:
                raise self._foreign()
            written.add(attempt)
            whole += len(line)
        if whole == 0:
            self._refuse_foreign()
        self._file.truncate(whole)
        self._file.seek(whole)
        return written

    def _begin_afresh(self, line: bytes) -> set[RowAttempt]:
        if not line.startswith(ID_PREFIX):
            raise self._foreign()
        self._file.truncate(0)
        self._file.seek(0)
        return set()

    def _refuse_foreign(self) -> None:
        """A first line that never got its newline is ours only if it looks like ours as far as it goes."""
        self._file.seek(0)
        start = self._file.read(len(ID_PREFIX))
        if not ID_PREFIX.startswith(start):
            raise self._foreign()

    def _foreign(self) -> SinkError:
        return SinkError(
            "output_exists",
            f"{self.path} holds something that is no result of a job: move it away, or give `outputs` another path",
        )

    def _parse(self, line: bytes) -> RowAttempt | None:
        head = ID_PREFIX + self._owner + b"_"
        if not line.startswith(head):
            return None
        row, _, attempt = line[len(head) : line.index(b'"', len(head))].partition(b"_")
        return RowAttempt(int(row), int(attempt))


def _open(path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b", buffering=_BLOCK)
    except OSError as error:
        raise SinkError("output_unwritable", f"{path} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise SinkError("output_locked", f"{path} is being written by another process") from None
    return file

"""A file of results that grows at its end and is its own checkpoint.

Each record begins with its id, so whoever opens the file again after a kill reads from it which rows are in it: a torn
tail is cut off before anything is appended (never glued to what comes next), and every row is written exactly once.

    {"id":"batch_req_01J…_17_1","custom_id":…}\\n      ◀ row 17, attempt 1, of job 01J…
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
from array import array
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.outputs.codec import Codec, DamagedFrames
from streamrunner.sinks.outputs.record import ResultRecord, pack

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator
    from pathlib import Path

    from streamrunner.sinks.outputs.formats import AppendFormat

_BLOCK = 1 << 20
_FRAME = 4 << 20
_START = 64


class _Found(NamedTuple):
    """One whole record, and where the frame that holds it ends."""

    record: bytes
    end: int


class AppendFile:
    """An output file held by one process at a time (flock); what was appended is durable after `sync`.

    owner: the job's ULID. A file with results of another job is begun afresh (that job's results stay in its log); any
    other content is refused. `packed` has row and attempt (`record.pack`) of every record, in the file's order. Raises
    SinkError (`output_locked`, `output_exists`, `output_unwritable`) and, once open, OSError as the disk does.
    """

    def __init__(self, path: Path, owner: str, form: AppendFormat, codec: Codec | None = None) -> None:
        self.path = path
        self._owner = owner.encode()
        self._form = form
        self._codec = codec
        self._waiting: list[bytes] = []
        self._num_waiting = self._end = 0
        self.packed = array("Q")
        self._file = _open_locked(path)
        try:
            self._recover()
        except BaseException:
            self.abandon()
            raise

    @property
    def compressed(self) -> bool:
        """Whether each `sync` makes a frame: a few large ones compress well, many small ones badly."""
        return self._codec is not None

    def append(self, records: Iterable[ResultRecord]) -> None:
        """Add results at the end."""
        for record in records:
            self._put(self._form.encode(self._owner, record))
            self.packed.append(pack(record.row, record.attempt))

    def sync(self) -> None:
        """Make what was appended durable. Raises SinkError (`output_changed`) if somebody else changed the file."""
        self._write_waiting()
        self._check_place()
        os.fsync(self._file.fileno())

    def drop(self, places: Container[int]) -> None:
        """Take out the records at these places of `packed`, in one step: a file without them replaces this one."""
        self.sync()
        part = self.path.with_name(f".{self.path.name}.part")
        old, self._file, self._end = self._file, _create_locked(part), 0
        try:
            self._copy(old, places)
            os.fsync(self._file.fileno())
            part.replace(self.path)
            _sync_folder(self.path.parent)
        finally:
            old.close()

    def close(self) -> None:
        """Sync and give the file to whoever wants it next."""
        try:
            self.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Give the file up after an error, with what can still be written."""
        with contextlib.suppress(OSError, SinkError):
            self._write_waiting()
        # What could not be written was told when it was tried; the descriptor is closed all the same.
        with contextlib.suppress(OSError):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _copy(self, old: BinaryIO, places: Container[int]) -> None:
        kept = array("Q")
        self._put(self._form.header)
        for place, found in enumerate(self._scan(old)):
            if place not in places:
                self._put(found.record)
                kept.append(self.packed[place])
        self._write_waiting()
        self.packed = kept

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _put(self, record: bytes) -> None:
        self._waiting.append(record)
        self._num_waiting += len(record)
        if self._num_waiting >= _FRAME:
            self._write_waiting()

    def _write_waiting(self) -> None:
        content = b"".join(self._waiting)
        self._waiting, self._num_waiting = [], 0
        if content:
            self._write(content if self._codec is None else self._codec.compress(content))

    def _write(self, content: bytes) -> None:
        if os.fstat(self._file.fileno()).st_size != self._end:
            raise self._changed("was edited")
        self._file.write(content)
        self._file.flush()
        self._end += len(content)

    def _check_place(self) -> None:
        ours = os.fstat(self._file.fileno())
        try:
            theirs = self.path.stat()
        except FileNotFoundError:
            raise self._changed("is gone") from None
        if not os.path.samestat(ours, theirs):
            raise self._changed("was replaced by another file")
        if ours.st_size != self._end:
            raise self._changed("was edited")

    def _changed(self, how: str) -> SinkError:
        return SinkError(
            "output_changed",
            f"{self.path} {how} while it was written: run the same command again, which makes it whole from the log",
        )

    # ── recovering ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _recover(self) -> None:
        self._refuse_foreign_start()
        end = 0
        for found in self._scan(self._file):
            result = self._form.identify(found.record)
            if result is None or (result.owner != self._owner and self.packed):
                raise self._foreign()
            if result.owner != self._owner:
                end = 0
                break
            self.packed.append(pack(result.row, result.attempt))
            end = found.end
        self._file.truncate(end)
        self._file.seek(end)
        self._end = end
        if end == 0:
            self._put(self._form.header)

    def _refuse_foreign_start(self) -> None:
        self._file.seek(0)
        start = self._file.read(_START)
        if start and not (self._codec or self._form).may_begin_with(start):
            raise self._foreign()

    def _scan(self, file: BinaryIO) -> Iterator[_Found]:
        """The whole records without the header."""
        file.seek(0)
        found = self._frames(file)
        if self._form.header and (first := next(found, None)) and first.record != self._form.header:
            raise self._foreign()
        yield from found

    def _frames(self, file: BinaryIO) -> Iterator[_Found]:
        if self._codec is None:
            end = 0
            for record in self._form.records(iter(file.readline, b"")):
                end += len(record)
                yield _Found(record, end)
            return
        end = 0
        try:
            for content, end in self._codec.frames(file):
                for record in self._form.records(iter(io.BytesIO(content).readline, b"")):
                    yield _Found(record, end)
        except DamagedFrames:
            # Behind a frame of ours it is a tail that a power cut left half written.
            if end == 0:
                raise self._foreign() from None

    def _foreign(self) -> SinkError:
        return SinkError(
            "output_exists",
            f"{self.path} holds something that is no result of a job: move it away, or give `outputs` another path",
        )


def _open_locked(path: Path) -> BinaryIO:
    """The file under its path, held by this process: one that was replaced meanwhile is opened again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = _locked(_opened(path, os.O_CREAT), path)
            if _is_at(file, path):
                return file
            file.close()
    except OSError as error:
        raise SinkError("output_unwritable", f"{path} cannot be written: {error.strerror}") from error


def _create_locked(path: Path) -> BinaryIO:
    """An empty file, held before it gets its name, so that nobody comes between."""
    return _locked(_opened(path, os.O_CREAT | os.O_TRUNC), path)


def _opened(path: Path, flags: int) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o644), "r+b", buffering=_BLOCK)


def _locked(file: BinaryIO, path: Path) -> BinaryIO:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise SinkError("output_locked", f"{path} is being written by another process") from None
    return file


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _sync_folder(folder: Path) -> None:
    """Make a rename durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

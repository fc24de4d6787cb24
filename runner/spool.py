"""Copies of inputs that cannot be read in place: standard input, tables, packed files, rows of the job file.

A copy is JSON lines in the data dir, named by its content. So a resume finds it, equal inputs are kept once, and a
worker elsewhere makes the same copy again from the same input. A copy that was being made when its process was killed
is removed by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.ids import new_ulid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

FOLDER = "spool"
_BUFFER = 1 << 20
# A part younger than this may be about to be locked.
_SETTLED_S = 60.0
# A look takes minutes; what is older was killed.
_LOOK_S = 86_400.0


class Copy(NamedTuple):
    """A file in the spool. is_new: whether it was not there before."""

    path: Path
    is_new: bool


@contextlib.contextmanager
def passing_data_dir(data_dir: Path) -> Iterator[Path]:
    """A folder for the copies of an input that is only looked at: beside those that stay, and gone afterwards."""
    folder = data_dir / FOLDER / f"look-{new_ulid()}"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Spool:
    """The copies below one data dir."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / FOLDER

    def find(self, name: str) -> Path | None:
        """A copy that is there."""
        path = self.folder / name
        return path if path.is_file() else None

    def keep(self, chunks: Iterable[bytes]) -> Copy:
        """Write a copy, in flat memory. Raises RunnerError (`spool_failed`) if the data dir takes it not."""
        with self._part() as part:
            digest = hashlib.sha256()
            with part.open("wb", _BUFFER) as out:
                for chunk in chunks:
                    digest.update(chunk)
                    self._write(out, chunk)
                self._sync(out)
            path = self.folder / f"{digest.hexdigest()[:32]}.jsonl"
            is_new = not path.exists()
            return Copy(part.replace(path), is_new)

    @contextlib.contextmanager
    def _part(self) -> Iterator[Path]:
        """A name to write under, locked as long as this process lives, so that its leftovers are known as such."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            path = self.folder / f"{new_ulid()}.part"
            lock = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        except OSError as error:
            raise self._failed(error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield path
        finally:
            path.unlink(missing_ok=True)
            os.close(lock)

    def _sweep(self) -> None:
        for path in self.folder.glob("*.part"):
            with contextlib.suppress(OSError), path.open("rb") as file:
                if time.time() - os.fstat(file.fileno()).st_mtime < _SETTLED_S:
                    continue
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its writer lives
                path.unlink(missing_ok=True)
        for path in self.folder.glob("look-*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _LOOK_S:
                    shutil.rmtree(path, ignore_errors=True)

    def _write(self, out: BinaryIO, chunk: bytes) -> None:
        try:
            out.write(chunk)
        except OSError as error:
            raise self._failed(error) from error

    def _sync(self, out: BinaryIO) -> None:
        try:
            out.flush()
            os.fsync(out.fileno())
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> RunnerError:
        return RunnerError(
            "spool_failed",
            f"the input cannot be copied to {self.folder}: {error.strerror}: make room, or choose another --data-dir",
        )

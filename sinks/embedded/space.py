"""A full disk under the private server: noticed, told in words, and never mistaken for a server that can be revived."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.locks import try_lock

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.sinks.embedded.files import ServerFiles

# A start writes process ids and at most a manifest; the server's first write needs more than that anyway.
_START_BYTES = 256 << 10
# A full disk may have had no room for the server's last words either.
_SCARCE_BYTES = 1 << 20
# Under `appendfsync always` a server that cannot write its file ends: it could not keep what it answers for.
_FATAL = re.compile(r"Can't (?:recover from AOF write error|persist AOF for fsync error)")
_REASON = re.compile(r"(?:Error writing to the AOF file|fsync policy is 'always'): ([^.\n]+)")


class WriteErrors:
    """Tells why a server ended that could not write. Used from several threads under a lock."""

    def __init__(self, files: ServerFiles) -> None:
        self._files = files
        self._read = _size(files.log)

    def check(self) -> None:
        """Raise SinkError disk_full if a server ended since the last look because it could not write."""
        news = self._news()
        free = _free_bytes(self._files.folder)
        if _FATAL.search(news) or (free < _SCARCE_BYTES and _ended(self._files)):
            reasons = _REASON.findall(news)
            raise disk_full(self._files.folder, reasons[-1] if reasons else f"{free >> 10} KiB are free on its disk")

    def _news(self) -> str:
        if _size(self._files.log) < self._read:
            self._read = 0  # a start cut the messages short
        try:
            with self._files.log.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return ""
        self._read += len(data)
        return data.decode("utf-8", "replace")


def require_space(files: ServerFiles) -> None:
    """Raise SinkError disk_full where not even a start would fit."""
    if _free_bytes(files.folder) < _START_BYTES:
        raise disk_full(files.folder, f"less than {_START_BYTES >> 10} KiB are free on its disk")


def disk_full(folder: Path, reason: str) -> SinkError:
    """The error that stops a job whose log has no room."""
    return SinkError(
        "disk_full",
        f"the private server cannot write the log in {folder}: {reason}. Everything acknowledged is safe; make space "
        "there and run the same command again, it goes on where this one stopped",
    )


def _ended(files: ServerFiles) -> bool:
    lock = try_lock(files.server_lock, shared=True)
    if lock is not None:
        lock.close()
    return lock is not None


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0

"""Locks that live as long as their holder: flock, which the kernel frees however a process ends."""

from __future__ import annotations

import fcntl
import os
import re
import time
from typing import TYPE_CHECKING, Self

from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from pathlib import Path

_POLL_SECONDS = 0.005
_STALE_SECONDS = 24 * 3600.0
_WORKER_ID = re.compile(r"[A-Za-z0-9_.:-]+")


class FileLock:
    """One open description of a lock file; closing it, or the end of the last process that has it, frees the lock."""

    def __init__(self, path: Path) -> None:
        """Open the file, creating it for this user only, without locking it. Raises SinkError data_dir_unusable."""
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SinkError("data_dir_unusable", f"cannot open the lock file {path}: {error.strerror}") from error

    def try_acquire(self, *, shared: bool = False) -> bool:
        """Take the lock if it is free now; return whether it was."""
        try:
            fcntl.flock(self.fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Give up this description; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def try_lock(path: Path, *, shared: bool = False) -> FileLock | None:
    """Return the lock, or None when somebody else holds it."""
    lock = FileLock(path)
    if lock.try_acquire(shared=shared):
        return lock
    lock.close()
    return None


def wait_lock(path: Path, *, shared: bool = False, timeout: float) -> FileLock:
    """Wait up to `timeout` seconds for the lock. Raises SinkError data_dir_locked.

    Polled, because a blocking flock has no deadline, and alarms belong to the main thread alone.
    """
    lock = FileLock(path)
    deadline = time.monotonic() + timeout
    try:
        while not lock.try_acquire(shared=shared):
            if time.monotonic() >= deadline:
                raise _locked(path, timeout)
            time.sleep(_POLL_SECONDS)
    except BaseException:
        lock.close()
        raise
    return lock


def _locked(path: Path, timeout: float) -> SinkError:
    return SinkError(
        "data_dir_locked",
        f"another process has held {path} for {timeout:g} s; wait for it to end or choose another --data-dir",
    )


class WorkerLock:
    """Proof of life of one worker: its own lock file, held until the process ends in whatever way."""

    def __init__(self, data_dir: Path, worker_id: str) -> None:
        """Take the lock of a fresh id. Raises SinkError data_dir_locked if that id is alive, ValueError if unsafe."""
        path = _worker_path(data_dir, worker_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        self.worker_id = worker_id
        self._lock = wait_lock(path, timeout=1.0)

    def close(self) -> None:
        """Free the lock. The file stays for a day, so that others can tell "ended" from "never ran here"."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_worker_dead(data_dir: Path, worker_id: str) -> bool:
    """Tell whether a worker that ran on this data dir has ended.

    False also for a worker that never ran here (another machine on a shared server): then only its lease knows.
    """
    path = _worker_path(data_dir, worker_id)
    if not path.exists():
        return False
    # Shared, so that several observers do not take each other for the worker.
    lock = try_lock(path, shared=True)
    if lock is None:
        return False
    lock.close()
    return True


def _worker_path(data_dir: Path, worker_id: str) -> Path:
    if not _WORKER_ID.fullmatch(worker_id):
        raise ValueError(f"worker id {worker_id!r} may hold only letters, digits and _ . : -")
    return data_dir / "workers" / f"{worker_id}.lock"


def _sweep(folder: Path) -> None:
    """Remove the lock files of workers that ended more than a day ago; leases end after seconds."""
    horizon = time.time() - _STALE_SECONDS
    for path in folder.glob("*.lock"):
        try:
            if path.stat().st_mtime < horizon and (lock := try_lock(path)) is not None:
                path.unlink()
                lock.close()
        except OSError:
            continue  # another worker sweeps too

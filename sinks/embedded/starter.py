"""Finding the private server alive or bringing it up, one process at a time."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from streamrunner.sinks.embedded.config import choose_socket, server_options, socket_path
from streamrunner.sinks.embedded.host import filesystem_of, this_host
from streamrunner.sinks.embedded.pin import Pin, read_pin, write_pin
from streamrunner.sinks.embedded.probe import ServerState, probe
from streamrunner.sinks.embedded.process import pid_space, start_detached
from streamrunner.sinks.embedded.space import require_space
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.locks import FileLock, try_lock, wait_lock
from streamrunner.sinks.scheduling import lower_cpu_class

if TYPE_CHECKING:
    from streamrunner.sinks.embedded.binary import ServerBinary
    from streamrunner.sinks.embedded.files import ServerFiles

ANSWER_SECONDS = 10.0
# Whoever starts a server holds the start lock until a long log has been read.
_START_LOCK_SECONDS = 600.0
_START_ATTEMPTS = 3
_POLL_SECONDS = 0.002
_LOG_LIMIT_BYTES = 1 << 20


def ensure_running(files: ServerFiles, answer_timeout: float = ANSWER_SECONDS) -> tuple[str, tuple[str, ...]]:
    """Adopt the living server or start one; return its socket and notices once it answers.

    The caller shares the users' lock, so that the reaper is not at work. Raises SinkError.
    """
    with wait_lock(files.start_lock, timeout=_START_LOCK_SECONDS):
        pin = read_pin(files.pin)
        if pin is not None:
            pin.check_host(this_host(), files.pin)
        # The reaper first: if we are killed in the next line, it will end what we began.
        _ensure_reaper(files)
        lock = _await_ready(files, pin.socket if pin else "", answer_timeout)
        if lock is None:
            return socket_path(files.folder, pin.socket if pin else ""), ()
        return _start(files, pin, lock, answer_timeout)


def _await_ready(files: ServerFiles, socket: str, timeout: float) -> FileLock | None:
    """Return None once the server answers, or its lock, taken, when no server lives (any more).

    As long as it says that it is loading it gets all the time it needs. Raises SinkError data_dir_locked.
    """
    path = socket_path(files.folder, socket)
    deadline = time.monotonic() + timeout
    while (lock := try_lock(files.server_lock)) is None:
        state = probe(path) if socket else ServerState.SILENT
        if state is ServerState.READY:
            return None
        if state is ServerState.LOADING:
            deadline = time.monotonic() + timeout
        if time.monotonic() >= deadline:
            raise SinkError(
                "data_dir_locked",
                f"a process holds {files.server_lock} but no server answers at {path}: it hangs, is stopped, or runs "
                "elsewhere. End it, or use another --data-dir",
            )
        time.sleep(_POLL_SECONDS)
    return lock


def _start(files: ServerFiles, pin: Pin | None, lock: FileLock, timeout: float) -> tuple[str, tuple[str, ...]]:
    """Start a server; again after a repair of its files, or when something killed it while it was starting."""
    notices: list[str] = []
    held: FileLock | None = lock
    try:
        require_space(files)
        binary, pin = _pinned(files, pin)
        attempts_left = _START_ATTEMPTS
        while held is not None:
            attempts_left -= 1
            offset = _spawn(files, binary, socket_path(files.folder, pin.socket), held)
            held = _await_ready(files, pin.socket, timeout)
            if held is not None:
                notices += _repaired(files, binary, offset, last=not attempts_left)
    finally:
        if held is not None:
            held.close()
    return socket_path(files.folder, pin.socket), tuple(notices)


def _pinned(files: ServerFiles, old: Pin | None) -> tuple[ServerBinary, Pin]:
    """Choose the program, and record it before it writes anything."""
    from streamrunner.sinks.embedded.binary import choose_binary  # adopting needs none of it, and has to be quick

    binary = choose_binary(old.written_by if old else None)
    host = this_host()
    pin = Pin(
        server=binary.version.kind,
        version=".".join(map(str, binary.version.number)),
        binary=str(binary.path),
        host_id=host.id,
        host_name=host.name,
        filesystem=filesystem_of(files.folder),
        socket=choose_socket(files.folder),
    )
    if pin != old:
        try:
            write_pin(files.pin, pin)
        except OSError as error:
            raise SinkError("data_dir_unusable", f"cannot write {files.pin}: {error.strerror}") from error
    return binary, pin


def _spawn(files: ServerFiles, binary: ServerBinary, socket: str, lock: FileLock) -> int:
    """Start the program and hand it the lock; return where in the log its messages begin."""
    if files.log.exists() and files.log.stat().st_size > _LOG_LIMIT_BYTES:
        os.truncate(files.log, 0)
    offset = files.log.stat().st_size if files.log.exists() else 0
    pid = start_detached([str(binary.path), *server_options(files, socket)], lock, log=files.log)
    lower_cpu_class(pid)
    lock.close()
    return offset


def _repaired(files: ServerFiles, binary: ServerBinary, offset: int, *, last: bool) -> list[str]:
    """Repair what kept the server from starting, if it was its files; return the notices. Raises SinkError."""
    from streamrunner.sinks.embedded.repair import repair_tail  # rarely needed

    with files.log.open("rb") as file:
        file.seek(offset)
        log_tail = file.read().decode("utf-8", "replace")
    try:
        notice = repair_tail(files, binary, log_tail)
    except SinkError as error:
        if error.code != "server_failed" or last:
            raise
        return []
    if last:
        raise SinkError("server_failed", f"the private server did not start in spite of repairs; see {files.log}")
    return [notice]


def _ensure_reaper(files: ServerFiles) -> None:
    """Start a reaper unless one waits already."""
    own = try_lock(files.reaper_lock)
    if own is None:
        return
    # Fresh descriptions: through one of ours the reaper would share our own lock on the users.
    with own, FileLock(files.users_lock) as users, FileLock(files.server_lock) as server:
        descriptors = (users.fd, server.fd, own.fd)
        program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("reaper.py"))]
        arguments = [*map(str, descriptors), pid_space()]
        start_detached([*program, *arguments], own, log=files.log, pass_fds=(users.fd, server.fd))

"""Starting processes that outlive their starter."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from streamrunner.sinks.locks import FileLock

# The shell starts the program, writes its process id into the lock file and ends: so the program is nobody's child
# (no zombie under a long-lived runner), and its id is known to others even when the starter is killed right here.
_SCRIPT = 'lock=$1 space=$2 log=$3; shift 3; "$@" </dev/null >>"$log" 2>&1 & echo "$! $space" >"$lock"; echo $!'
_START_SECONDS = 30.0


def start_detached(arguments: Sequence[str], lock: FileLock, *, log: Path, pass_fds: Sequence[int] = ()) -> int:
    """Start a program in a session of its own, which Ctrl-C and hang-ups do not reach, and return its process id.

    The program inherits the lock's description: the lock is held until the program ends, whatever becomes of us.
    Raises SinkError server_failed.
    """
    import subprocess  # adopting a server needs none

    shell = ["/bin/sh", "-c", _SCRIPT, "sh", str(lock.path), pid_space(), str(log), *arguments]
    try:
        done = subprocess.run(
            shell,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            start_new_session=True,
            pass_fds=(lock.fd, *pass_fds),
            timeout=_START_SECONDS,
            check=True,
        )
        return int(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise SinkError("server_failed", f"cannot start {arguments[0]}: {error}") from error


def read_pid(lock_path: Path) -> int | None:
    """Return the process id that a lock file names; it means something only while the lock is held."""
    try:
        return int(lock_path.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return None


def pid_space() -> str:
    """Name the space of process ids: another container's ids mean other processes here. "-" where there is one."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - not a path, a name like pid:[4026531836]
    except OSError:
        return "-"

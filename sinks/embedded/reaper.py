"""Ends the private server once its last client has gone, however that client ended.

Runs as a program of its own (`python -I -S reaper.py USERS SERVER SELF SPACE`), with nothing but the standard
library, so that it starts in milliseconds and costs a few megabytes. It gets three open descriptors: USERS and SERVER
are fresh ones of users.lock and server.lock, SELF is its own lock, which it holds while it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time

# Commands often follow each other: a server that stays a moment saves each of them a start.
LINGER_SECONDS = 1.5
# Under `appendfsync always` an acknowledged write is on disk, so even the last resort loses nothing.
_PATIENCE = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 1.0))
_POLL_SECONDS = 0.01


def wait_for_last_user(users: int, linger: float) -> None:
    """Return holding the users' lock exclusively, after nobody has shared it for a moment.

    While it is held nobody can become a client: a newcomer waits for us and then starts a new server.
    """
    while True:
        fcntl.flock(users, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_UN)
        time.sleep(linger)
        if _take(users):
            return


def stop_server(server: int, space: str) -> None:
    """End the process that holds the server's lock, politely at first."""
    for number, patience in _PATIENCE:
        deadline = time.monotonic() + patience
        if _take(server):
            return
        _signal_holder(server, space, number)
        while time.monotonic() < deadline:
            if _take(server):
                return
            time.sleep(_POLL_SECONDS)


def main(arguments: list[str]) -> None:
    """Wait, stop the server, and give up the locks in the order that newcomers rely on."""
    users, server, own, space = int(arguments[0]), int(arguments[1]), int(arguments[2]), arguments[3]
    wait_for_last_user(users, LINGER_SECONDS)
    stop_server(server, space)
    # Ours first: whoever shares the users' lock next must see that it needs a new reaper.
    for descriptor in (own, server, users):
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _signal_holder(server: int, space: str, number: int) -> None:
    """Signal the process named in the lock file: while the lock is held, that id cannot have become another's.

    The descriptor is read, not the path: the folder may have been deleted, or replaced by a new one.
    """
    words = os.pread(server, 128, 0).decode("ascii", "replace").split(maxsplit=1)
    if len(words) == 2 and words[0].isdigit() and words[1].strip() == space:
        with contextlib.suppress(OSError):
            os.kill(int(words[0]), number)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Settings of the private server, and where its socket goes."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from streamrunner.sinks.embedded.files import ServerFiles

SOCKET_NAME = "server.sock"
# sockaddr_un, less the closing zero byte.
SOCKET_PATH_LIMIT = 107 if sys.platform.startswith("linux") else 103


def server_options(files: ServerFiles, socket: str) -> list[str]:
    """Return the server's arguments: one unix socket, every acknowledged write on disk, nothing evicted."""
    settings = {
        "port": "0",
        "unixsocket": socket,
        "unixsocketperm": "700",
        "dir": str(files.folder),
        "daemonize": "no",
        "logfile": "",
        "appendonly": "yes",
        "appenddirname": files.aof.name,
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        # A short tail is cut by our repair, which keeps a copy and tells the user; the server would do it silently.
        "aof-load-truncated": "no",
        # Token logs grow fast and shrink by trimming: rewriting at the default 64 MB would be most of the disk's work.
        "auto-aof-rewrite-min-size": "256mb",
        "save": "",
        "maxmemory-policy": "noeviction",
        "enable-debug-command": "no",
        "databases": "1",
    }
    return [part for name, value in settings.items() for part in (f"--{name}", value)]


def choose_socket(folder: Path) -> str:
    """Return a name relative to the folder, or the path in a short runtime dir where the folder's is too long.

    Raises SinkError data_dir_unusable.
    """
    if _fits(folder / SOCKET_NAME):
        return SOCKET_NAME
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16] + ".sock"
    for base in _runtime_dirs():
        path = base / f"streamrunner-{os.getuid()}" / name
        if base.is_dir() and _fits(path):
            _make_private(path.parent)
            return str(path)
    raise SinkError("data_dir_unusable", f"the path {folder} is too long for a socket; choose a shorter --data-dir")


def socket_path(folder: Path, socket: str) -> str:
    """Return the socket's path, given what `choose_socket` returned."""
    return str(folder / socket)


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= SOCKET_PATH_LIMIT


def _runtime_dirs() -> list[Path]:
    import tempfile  # rarely needed, slow to import

    given = os.environ.get("XDG_RUNTIME_DIR")
    return [*([Path(given)] if given else []), Path(tempfile.gettempdir()), Path("/tmp")]  # noqa: S108 - checked below


def _make_private(folder: Path) -> None:
    """Make a folder that nobody else can enter; others may have put one in our place before."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise SinkError("data_dir_unusable", f"cannot make the socket's folder {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SinkError("data_dir_unusable", f"{folder} is not a folder of this user alone; remove it")

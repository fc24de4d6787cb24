"""Starting and killing the runner, and finding what is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis


def now_ms() -> int:
    """Unix ms: the clock of the log, since the server runs on this machine."""
    return time.time_ns() // 1_000_000


def spawn(
    command: list[str], environment: dict[str, str], log: Path, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start the runner with its output in a file; nobody types into it."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )


def kill_hard(pid: int) -> None:
    """SIGKILL; a process that has ended by itself is no error."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def server_pid(client: Any) -> int:
    """The process that answers on this connection."""
    return int(client.info("server")["process_id"])


def connect(pin: Path) -> redis.Redis | None:
    """A plain connection to the private server whose pin file this is; None while there is none."""
    import json

    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    try:
        # Relative to the pin, or absolute where that would be too long for a socket.
        path = str(pin.parent / json.loads(pin.read_text())["socket"])
        client = redis.Redis(
            unix_socket_path=path, protocol=2, decode_responses=True, socket_timeout=5, retry=Retry(NoBackoff(), 0)
        )
        client.ping()
    except (OSError, ValueError, KeyError, redis.RedisError):
        return None
    return client


def left_behind(folder: Path, within_s: float) -> list[str]:
    """Processes that still use the folder after a while: named in their arguments, or holding a file in it open."""
    deadline = time.monotonic() + within_s
    while True:
        found = _users(str(folder.resolve()))
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def _users(folder: str) -> list[str]:
    family = _ancestors(os.getpid())
    processes = (path for path in Path("/proc").iterdir() if path.name.isdecimal() and int(path.name) not in family)
    return [f"pid {path.name}: {_arguments(path)[:120]}" for path in processes if _uses(path, folder)]


def _uses(process: Path, folder: str) -> bool:
    if folder in _arguments(process):
        return True
    try:
        links = [process / "cwd", *(process / "fd").iterdir()]
        return any(_target(link).startswith(folder) for link in links)
    except OSError:
        return False


def _arguments(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _ancestors(pid: int) -> set[int]:
    """This process and those above it: their arguments may name the folder, too."""
    family: set[int] = set()
    while pid > 0:
        family.add(pid)
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        pid = int(status.rpartition(")")[2].split()[1])
    return family

"""A redis-server that a test may kill and start again on the same files."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from pathlib import Path

DURABLE = {"appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory-policy": "noeviction"}


class RedisProcess:
    """Settings are redis.conf's, with underscores; the address stays the same over restarts."""

    def __init__(self, binary: str, folder: Path, **settings: str) -> None:
        self.binary = binary
        self.folder = folder
        self.socket = folder / "redis.sock"
        self.settings = {**DURABLE, **{name.replace("_", "-"): value for name, value in settings.items()}}
        self.start()

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def client(self, **options: Any) -> Any:
        return redis.Redis(unix_socket_path=str(self.socket), protocol=2, **options)

    def launch(self) -> None:
        """Start and do not wait."""
        options = {"port": "0", "unixsocket": str(self.socket), "dir": str(self.folder), **self.settings}
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self.process = subprocess.Popen([self.binary, *arguments], stdout=subprocess.DEVNULL)

    def start(self) -> None:
        self.launch()
        deadline = time.monotonic() + 10
        while not self.answers():
            assert time.monotonic() < deadline, "redis-server did not start"
            time.sleep(0.01)

    def listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(str(self.socket)) == 0

    def answers(self) -> bool:
        try:
            return bool(self.client().ping())
        except redis.AuthenticationError:
            return True
        except (redis.ConnectionError, redis.ResponseError):
            return False

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

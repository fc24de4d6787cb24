"""Processes that use the private server, and what is left of it on disk."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from streamrunner.sinks.embedded.files import ServerFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

USER = """
import pathlib, sys
from streamrunner.sinks.embedded.server import EmbeddedServer
server = EmbeddedServer(pathlib.Path(sys.argv[1]))
print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def files(data_dir: Path) -> ServerFiles:
    """Where the private server of `data_dir` keeps what."""
    return ServerFiles(data_dir / "server")


@pytest.fixture
def start_user(data_dir: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts processes that hold the private server until killed; each prints the server's process id once."""
    users: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", USER, str(data_dir)]
        users.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return users[-1]

    yield start
    for user in users:
        user.kill()
        user.communicate()

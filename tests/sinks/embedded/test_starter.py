"""Starting is tried again where that can help, and fails with the server's own words where it cannot."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from streamrunner.sinks.embedded import binary
from streamrunner.sinks.embedded.server import EmbeddedServer
from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamrunner.sinks.embedded.files import ServerFiles

STARTER = """
import pathlib, sys
from streamrunner.sinks.embedded import binary
from streamrunner.sinks.embedded.server import EmbeddedServer
binary.bundled_binary = lambda: pathlib.Path(sys.argv[2])
EmbeddedServer(pathlib.Path(sys.argv[1]))
"""


@pytest.fixture
def wrap_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts shell lines between us and the real server; `$real` starts it, `$count` counts the starts from 1."""
    real = binary.bundled_binary()
    path = tmp_path / "valkey-server"

    def wrap(lines: str) -> None:
        path.write_text(
            f'#!/bin/sh\nreal={real}\n[ "$1" = --version ] && exec $real --version\n'
            f'echo x >>{tmp_path}/starts; count=$(wc -l <{tmp_path}/starts)\n{lines}\nexec $real "$@"\n'
        )
        path.chmod(0o755)

    monkeypatch.setattr(binary, "bundled_binary", lambda: path)
    return wrap


def starts(tmp_path: Path) -> int:
    return len((tmp_path / "starts").read_text().splitlines())


def test_a_server_killed_while_it_starts_is_started_again(
    wrap_server: Callable[[str], None], tmp_path: Path, data_dir: Path
) -> None:
    wrap_server("[ $count -lt 3 ] && kill -9 $$")
    with EmbeddedServer(data_dir) as server, server.client() as client:
        assert client.ping()
        assert server.notices() == ()
    assert starts(tmp_path) == 3


def test_a_server_that_never_starts_is_given_up_with_its_own_words(
    wrap_server: Callable[[str], None], tmp_path: Path, data_dir: Path, files: ServerFiles
) -> None:
    wrap_server('echo "Fatal: no room for sockets"; exit 1')
    with pytest.raises(SinkError, match="no room for sockets") as caught:
        EmbeddedServer(data_dir)
    assert caught.value.code == "server_failed"
    assert str(files.log) in caught.value.message
    assert starts(tmp_path) == 3


def test_a_slow_start_is_waited_for(wrap_server: Callable[[str], None], data_dir: Path) -> None:
    wrap_server("sleep 0.3")
    with EmbeddedServer(data_dir) as server, server.client() as client:
        assert client.ping()


def test_a_starter_killed_halfway_hinders_nobody(
    wrap_server: Callable[[str], None], tmp_path: Path, data_dir: Path, eventually: Callable[..., None]
) -> None:
    wrap_server("[ $count -eq 1 ] && sleep 0.5")
    command = [sys.executable, "-c", STARTER, str(data_dir), str(binary.bundled_binary())]
    with subprocess.Popen(command) as starter:
        eventually((tmp_path / "starts").exists, seconds=20)
        starter.kill()
    with EmbeddedServer(data_dir) as server, server.client() as client:
        assert client.ping()
    assert starts(tmp_path) == 1, "the server that the killed one began is adopted"


def test_the_servers_log_does_not_grow_for_ever(data_dir: Path, files: ServerFiles) -> None:
    files.folder.mkdir(mode=0o700)
    files.log.write_bytes(b"x" * (1 << 21))
    EmbeddedServer(data_dir).close()
    assert files.log.stat().st_size < 1 << 20

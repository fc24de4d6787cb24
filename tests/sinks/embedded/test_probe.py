"""Whether a server is ready, loading or silent, told without a client library."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from streamrunner.sinks.embedded.probe import ServerState, probe

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        (b"+PONG\r\n", ServerState.READY),
        (b"-LOADING Valkey is loading the dataset in memory\r\n", ServerState.LOADING),
        (b"-ERR something else\r\n", ServerState.SILENT),
        (b"", ServerState.SILENT),
    ],
)
def test_the_answer_decides(data_dir: Path, reply: bytes, state: ServerState) -> None:
    path = str(data_dir / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(64) == b"PING\r\n"
                connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        assert probe(path) is state
        thread.join()


def test_no_socket_a_dead_one_and_a_mute_server_are_silent(data_dir: Path) -> None:
    path = str(data_dir / "s")
    assert probe(path) is ServerState.SILENT
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        assert probe(path) is ServerState.SILENT
        listener.listen()
        assert probe(path, timeout=0.02) is ServerState.SILENT
    assert probe("/" + "x" * 200) is ServerState.SILENT


def test_a_real_server_is_ready(log_server: object, data_dir: Path) -> None:
    address = str(getattr(log_server, "address", ""))
    assert probe(address.removeprefix("unix://")) is ServerState.READY

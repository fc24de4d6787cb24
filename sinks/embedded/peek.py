"""Looking at the private server of a data dir without starting, adopting or keeping it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrunner.sinks.embedded.config import socket_path
from streamrunner.sinks.embedded.pin import read_pin
from streamrunner.sinks.embedded.probe import ServerState, probe

if TYPE_CHECKING:
    from pathlib import Path


def running_socket(data_dir: Path) -> str | None:
    """The socket of a private server that answers now, or None. Raises SinkError if `server.json` is no good."""
    folder = data_dir.expanduser().absolute() / "server"
    pin = read_pin(folder / "server.json")
    if pin is None or not pin.socket:
        return None
    path = socket_path(folder, pin.socket)
    return path if probe(path) is ServerState.READY else None

"""Asking a server whether it is ready, without a client library: it has to take a millisecond."""

from __future__ import annotations

import socket
from enum import Enum


class ServerState(Enum):
    """What a server answered."""

    READY = "ready"
    LOADING = "loading"
    SILENT = "silent"


def probe(path: str, timeout: float = 1.0) -> ServerState:
    """Send PING to a unix socket. SILENT also when nothing listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(path)
            connection.sendall(b"PING\r\n")
            reply = connection.recv(64)
        except OSError:
            return ServerState.SILENT
    if reply.startswith(b"+PONG"):
        return ServerState.READY
    return ServerState.LOADING if reply.startswith(b"-LOADING") else ServerState.SILENT

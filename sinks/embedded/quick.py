"""A client for the few reads that `runner status` and `runner list` make, without redis-py.

Importing redis-py takes 0.2-0.3 s, most of it for its asyncio and cluster halves: half of what a status may take in
all. The parser is the one redis-py uses itself (hiredis, 1.5 ms). Method names and answers are redis-py's.
"""

from __future__ import annotations

import socket
from typing import Any, cast

import hiredis

from streamrunner.sinks.errors import LogUnreachable

_RECEIVE_BYTES = 1 << 16
_TIMEOUT_S = 10.0

Entries = list[tuple[bytes, dict[bytes, bytes]]]


class QuickClient:
    """Reads over a unix socket, one command at a time; bytes in, bytes out. Raises LogUnreachable."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._parser = hiredis.Reader()
        self._socket: socket.socket | None = None

    def exists(self, *names: str) -> int:
        """How many of the keys exist."""
        return int(self._ask("EXISTS", *names))

    def hgetall(self, name: str) -> dict[bytes, bytes]:
        """All fields of a hash."""
        return _pairs(self._ask("HGETALL", name))

    def xrange(self, name: str, min: str = "-", max: str = "+", count: int | None = None) -> Entries:  # noqa: A002
        """Entries of a stream, oldest first."""
        return _entries(self._ask("XRANGE", name, min, max, *_count(count)))

    def xrevrange(self, name: str, max: str = "+", min: str = "-", count: int | None = None) -> Entries:  # noqa: A002
        """Entries of a stream, newest first."""
        return _entries(self._ask("XREVRANGE", name, max, min, *_count(count)))

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, *command: str) -> Any:
        try:
            if self._socket is None:
                self._socket = self._connect()
            self._socket.sendall(hiredis.pack_command(cast("Any", command)))
            reply = self._receive(self._socket)
        except OSError as error:
            self.close()
            raise LogUnreachable(f"the private server at {self._path} does not answer: {error.strerror}") from error
        if isinstance(reply, hiredis.HiredisError):
            raise LogUnreachable(f"the private server at {self._path} cannot answer now: {reply}")
        return reply

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_TIMEOUT_S)
        connection.connect(self._path)
        return connection

    def _receive(self, connection: socket.socket) -> Any:
        # hiredis says "not yet" with False, which no RESP2 reply is.
        while (reply := self._parser.gets()) is False:
            data = connection.recv(_RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError(104, "the server closed the connection")
            self._parser.feed(data)
        return reply


def _count(count: int | None) -> tuple[str, ...]:
    return () if count is None else ("COUNT", str(count))


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _entries(reply: list[Any]) -> Entries:
    return [(raw_id, _pairs(fields)) for raw_id, fields in reply]

"""A proxy between a client and a real server that breaks exactly one command, chosen by number or by name.

It passes one command at a time: reads it whole, sends it on, reads the whole reply, hands it back. So "the reply of
the fifth command is lost" means the same thing in every run.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
from typing import TYPE_CHECKING, Self

import hiredis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Fault(enum.Enum):
    """What becomes of one command."""

    LOSE_REPLY = "executed, and the connection closes before the reply"
    RESET_AFTER = "executed, and the connection is reset within the reply"
    LOSE_REQUEST = "not executed, and the connection closes"
    CUT_REQUEST = "half of it reaches the server, then the connection is reset"


class Command:
    """One command as the client sent it; `name` is the function's for FCALL."""

    def __init__(self, number: int, words: list[bytes], raw: bytes) -> None:
        self.number = number
        self.raw = raw
        word = words[0].decode().upper()
        self.name = words[1].decode() if word == "FCALL" else word


class Proxy:
    """Listens on a port of this machine. `judge` may name a fault for a command, or bytes to reply with."""

    def __init__(self, target: str, judge: Callable[[Command], Fault | bytes | None] = lambda _: None) -> None:
        self.target = target.removeprefix("unix://")
        self.judge = judge
        self.names: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
            self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        self._sockets.append(server)
        with client, server, contextlib.suppress(OSError):
            server.connect(self.target)
            for command in self._commands(client):
                if not self._pass(command, client, server):
                    return

    def _commands(self, client: socket.socket) -> Iterator[Command]:
        for words, raw in messages(client):
            command = Command(len(self.names), words, raw)
            self.names.append(command.name)
            yield command

    def _pass(self, command: Command, client: socket.socket, server: socket.socket) -> bool:
        """Whether the connection lives on."""
        verdict = self.judge(command)
        if isinstance(verdict, bytes):
            client.sendall(verdict)
            return True
        if verdict is Fault.LOSE_REQUEST:
            return False
        if verdict is Fault.CUT_REQUEST:
            server.sendall(command.raw[: len(command.raw) // 2])
            reset(client)
            return False
        server.sendall(command.raw)
        _, reply = next(messages(server), ([], b""))
        if verdict is None:
            client.sendall(reply)
            return bool(reply)
        if verdict is Fault.RESET_AFTER:
            client.sendall(reply[: len(reply) // 2])
            reset(client)
        return False


def messages(connection: socket.socket) -> Iterator[tuple[list[bytes], bytes]]:
    """Whole messages of a connection, parsed and raw; requests and replies have one format."""
    parser, raw = hiredis.Reader(notEnoughData=...), b""
    while data := connection.recv(1 << 16):
        # Byte by byte at the ends of several messages in one read would be slow; clients here wait for each reply,
        # except in pipelines, whose messages are few.
        for piece in pieces(data):
            raw += piece
            parser.feed(piece)
            message = parser.gets()
            if message is not ...:
                yield message, raw
                raw = b""


def pieces(data: bytes) -> Iterator[bytes]:
    """Lines with their ends: no message ends anywhere else."""
    yield from data.splitlines(keepends=True) if b"\n" in data else [data]


def reset(connection: socket.socket) -> None:
    """Close with RST instead of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()

"""The private server of a data dir: started or adopted, shared by all clients, gone after the last of them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from streamrunner.sinks.connect import make_async_unix_client, make_unix_client
from streamrunner.sinks.embedded.files import prepare_files
from streamrunner.sinks.embedded.host import check_filesystem, filesystem_of
from streamrunner.sinks.embedded.process import read_pid
from streamrunner.sinks.embedded.space import WriteErrors
from streamrunner.sinks.embedded.starter import ANSWER_SECONDS, ensure_running
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.locks import wait_lock

if TYPE_CHECKING:
    from pathlib import Path

    import redis
    import redis.asyncio

    from streamrunner.sinks.embedded.quick import QuickClient

# The reaper holds the users' lock only while it stops a server, which takes it 3 s at most.
_REAPER_SECONDS = 15.0


class EmbeddedServer:
    """One client's hold on the private server. While any exists the server runs; within 5 s of the last it is gone."""

    local = True
    # Every acknowledged write is on the disk, and nobody fails over to it.
    may_lose_tail = False

    def __init__(self, data_dir: Path, *, answer_timeout: float = ANSWER_SECONDS) -> None:
        """Adopt or start the server; return once it answers. Raises SinkError.

        Codes: data_dir_unusable, data_dir_foreign, data_dir_locked (somebody else's server, silent for
        `answer_timeout` seconds), server_missing, server_version, server_failed, aof_damaged.
        """
        self._files = prepare_files(data_dir)
        check_filesystem(self._files.folder, filesystem_of(self._files.folder))
        self._answer_timeout = answer_timeout
        self._guard = threading.Lock()
        self._users = wait_lock(self._files.users_lock, shared=True, timeout=_REAPER_SECONDS)
        self._closed = False
        self._write_errors = WriteErrors(self._files)
        try:
            self._socket, self._notices = ensure_running(self._files, answer_timeout)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """The socket, as a URL."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int | None:
        """Process id of the running server."""
        return read_pid(self._files.server_lock)

    def client(self, *, blocking: bool = False) -> redis.Redis:
        """Return a client with its own pool and no retries; `blocking` ones wait for replies without limit."""
        self._require_open()
        return make_unix_client(self._socket, blocking=blocking)

    def async_client(self) -> redis.asyncio.Redis:
        """Return a client of one connection for an event loop, without retries, that waits without limit."""
        self._require_open()
        return make_async_unix_client(self._socket)

    def reader(self) -> QuickClient:
        """Return a light client for short reads."""
        from streamrunner.sinks.embedded.quick import QuickClient

        self._require_open()
        return QuickClient(self._socket)

    def revive(self) -> None:
        """Start the server again if it died; return once it answers. Any number of clients may call it at once.

        Raises SinkError as the constructor does, and disk_full where the server ended because it could not write.
        """
        self._require_open()
        with self._guard:
            self._write_errors.check()
        socket, notices = ensure_running(self._files, self._answer_timeout)
        with self._guard:
            self._socket = socket
            self._notices += notices

    def notices(self) -> tuple[str, ...]:
        """Say what was repaired since this client came."""
        with self._guard:
            return self._notices

    def close(self) -> None:
        """Give up the server, which ends soon after the last client; a second call does nothing."""
        self._closed = True
        self._users.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise SinkError("log_closed", f"this hold on the private server in {self._files.folder} has been closed")

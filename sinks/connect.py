"""Connections to the log's server as the protocol needs them: no silent retries, bounded waits, bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import redis

COMMAND_TIMEOUT = 10.0


def make_client(options: Mapping[str, Any], *, blocking: bool, connect_timeout: float = COMMAND_TIMEOUT) -> redis.Redis:
    """Return a client with a connection pool of its own, which closes with it.

    `options` say where the server is. redis-py retries whole pipelines by default, which writes entries twice when
    only the reply was lost: here every error comes out at once. `blocking` clients wait for a reply without limit.
    """
    import redis  # takes 0.2 s, and not every command of the runner talks to a server
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    settings = {
        **options,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None if blocking else COMMAND_TIMEOUT,
        "socket_connect_timeout": connect_timeout,
        "protocol": 2,
        "decode_responses": False,
    }
    if "path" not in settings:
        settings["socket_keepalive"] = True
    return redis.Redis.from_pool(redis.ConnectionPool(**settings))


def make_unix_client(path: str, *, blocking: bool) -> redis.Redis:
    """Return such a client for a unix socket."""
    from redis.connection import UnixDomainSocketConnection

    return make_client({"connection_class": UnixDomainSocketConnection, "path": path}, blocking=blocking)

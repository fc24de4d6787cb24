"""Connections to the log's server as the protocol needs them: no silent retries, bounded waits, bytes."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import redis
    import redis.asyncio

COMMAND_TIMEOUT = 10.0
# A reader waits for hours without a word; a peer that vanished behind a router is to be missed within a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


def make_client(options: Mapping[str, Any], *, blocking: bool, connect_timeout: float = COMMAND_TIMEOUT) -> redis.Redis:
    """Return a client with a connection pool of its own, which closes with it.

    `options` say where the server is. redis-py retries whole pipelines by default, which writes entries twice when
    only the reply was lost: here every error comes out at once. `blocking` clients wait for a reply without limit.
    """
    import redis  # takes 0.2 s, and not every command of the runner talks to a server
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    settings = _settings(options, blocking=blocking, connect_timeout=connect_timeout)
    return redis.Redis.from_pool(redis.ConnectionPool(retry=Retry(NoBackoff(), 0), **settings))


def make_async_client(options: Mapping[str, Any]) -> redis.asyncio.Redis:
    """Return the asyncio twin of a blocking client: one connection, which waits for replies without limit."""
    import redis.asyncio
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    settings = _settings(options, blocking=True, connect_timeout=COMMAND_TIMEOUT)
    if kind := settings.get("connection_class"):
        settings["connection_class"] = getattr(redis.asyncio.connection, kind.__name__)
    pool = redis.asyncio.ConnectionPool(retry=Retry(NoBackoff(), 0), **settings)
    return redis.asyncio.Redis.from_pool(pool).client()


def _settings(options: Mapping[str, Any], *, blocking: bool, connect_timeout: float) -> dict[str, Any]:
    settings = {
        **options,
        "socket_timeout": None if blocking else COMMAND_TIMEOUT,
        "socket_connect_timeout": connect_timeout,
        "protocol": 2,
        "decode_responses": False,
    }
    if "path" not in settings:
        known = {getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)}
        settings |= {"socket_keepalive": True, "socket_keepalive_options": known}
    return settings


def make_unix_client(path: str, *, blocking: bool) -> redis.Redis:
    """Return such a client for a unix socket."""
    from redis.connection import UnixDomainSocketConnection

    return make_client({"connection_class": UnixDomainSocketConnection, "path": path}, blocking=blocking)


def make_async_unix_client(path: str) -> redis.asyncio.Redis:
    """Return the asyncio twin for a unix socket."""
    from redis.connection import UnixDomainSocketConnection

    return make_async_client({"connection_class": UnixDomainSocketConnection, "path": path})

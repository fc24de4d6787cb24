"""Connections to the log's server as the protocol needs them: no silent retries, bounded waits, bytes."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    import redis
    import redis.asyncio

COMMAND_TIMEOUT = 10.0
# A reader waits for hours without a word; a peer that vanished behind a router is to be missed within a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


def make_client(options: Mapping[str, Any], *, blocking: bool, connect_timeout: float = COMMAND_TIMEOUT) -> redis.Redis:
    """Return a client with a connection pool of its own, which closes with it.

    `options` say where the server is; `sentinel` among them, whom to ask. redis-py retries whole pipelines by default,
    which writes entries twice when only the reply was lost: here every error comes out at once. `blocking` clients wait
    for a reply without limit.
    """
    import redis  # takes 0.2 s, and not every command of the runner talks to a server

    settings = {**_settings(options, blocking=blocking, connect_timeout=connect_timeout), "retry": _no_retry()}
    if "sentinel" not in settings:
        return redis.Redis.from_pool(redis.ConnectionPool(**settings))
    from redis.sentinel import Sentinel, SentinelConnectionPool

    pool: Any = _sentinel_pool(Sentinel, SentinelConnectionPool, settings)
    return redis.Redis.from_pool(pool)


def make_cluster_client(options: Mapping[str, Any], *, blocking: bool) -> redis.Redis:
    """Return a client that sends every command to the node of its key's slot, also after the slot has moved.

    A job's keys share one slot. Only a redirect is followed, for then nothing was executed; errors come out at once.
    """
    from redis.cluster import RedisCluster

    made: Any = RedisCluster(**_cluster_settings(options, blocking=blocking), retry=_no_retry())
    return cast("redis.Redis", made)


def make_async_cluster_client(options: Mapping[str, Any]) -> redis.asyncio.Redis:
    """Return the asyncio twin of a blocking cluster client."""
    from redis.asyncio.cluster import RedisCluster

    made: Any = RedisCluster(**_cluster_settings(options, blocking=True), retry=_no_async_retry())
    return cast("redis.asyncio.Redis", made)


def make_async_client(options: Mapping[str, Any]) -> redis.asyncio.Redis:
    """Return the asyncio twin of a blocking client: one connection, which waits for replies without limit."""
    import redis.asyncio

    settings = {**_settings(options, blocking=True, connect_timeout=COMMAND_TIMEOUT), "retry": _no_async_retry()}
    if "sentinel" in settings:
        from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

        found: Any = _sentinel_pool(Sentinel, SentinelConnectionPool, settings)
        return redis.asyncio.Redis.from_pool(found).client()
    if kind := settings.get("connection_class"):
        settings["connection_class"] = getattr(redis.asyncio.connection, kind.__name__)
    return redis.asyncio.Redis.from_pool(redis.asyncio.ConnectionPool(**settings)).client()


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


def _cluster_settings(options: Mapping[str, Any], *, blocking: bool) -> dict[str, Any]:
    settings = _settings(options, blocking=blocking, connect_timeout=COMMAND_TIMEOUT)
    settings.pop("db", None)
    if (kind := settings.pop("connection_class", None)) is not None:
        settings["ssl"] = kind.__name__ == "SSLConnection"
    return settings


def _sentinel_pool(sentinel_class: Any, pool_class: Any, settings: dict[str, Any]) -> Any:
    """A pool that asks the Sentinels for the primary at every new connection."""
    asked = settings.pop("sentinel")
    names = ("retry", "socket_connect_timeout", "protocol")
    asking = {**{name: settings[name] for name in names}, "socket_timeout": COMMAND_TIMEOUT, **asked["options"]}
    manager = sentinel_class(list(asked["sentinels"]), sentinel_kwargs=asking)
    return pool_class(asked["service"], manager, **settings)


def _no_retry() -> Any:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return Retry(NoBackoff(), 0)


def _no_async_retry() -> Any:
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return Retry(NoBackoff(), 0)


def make_unix_client(path: str, *, blocking: bool) -> redis.Redis:
    """Return such a client for a unix socket."""
    from redis.connection import UnixDomainSocketConnection

    return make_client({"connection_class": UnixDomainSocketConnection, "path": path}, blocking=blocking)


def make_async_unix_client(path: str) -> redis.asyncio.Redis:
    """Return the asyncio twin for a unix socket."""
    from redis.connection import UnixDomainSocketConnection

    return make_async_client({"connection_class": UnixDomainSocketConnection, "path": path})

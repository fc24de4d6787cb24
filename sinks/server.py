"""The server that holds the log: one that the user named, or a private one in the data dir."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from streamrunner.sinks.address import connection_options, mask_url, scrub, secrets_of
from streamrunner.sinks.connect import (
    make_async_client,
    make_async_cluster_client,
    make_client,
    make_cluster_client,
)
from streamrunner.sinks.errors import LogUnreachable, SinkError
from streamrunner.sinks.policy import UNKNOWN, check_policy, durability_notices
from streamrunner.sinks.secrets import resolve_secrets
from streamrunner.sinks.tls import refuse_bad_certificate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import redis
    import redis.asyncio

_T = TypeVar("_T")

_REACH_SECONDS = 2.5
_LOADING_SECONDS = 60.0
_LOADING_POLL_SECONDS = 0.1


class LogServer(Protocol):
    """A running server, and how to get at it; used from several threads."""

    @property
    def address(self) -> str:
        """Where it is, without credentials."""

    @property
    def local(self) -> bool:
        """Whether it is the private server of this data dir."""

    @property
    def may_lose_tail(self) -> bool:
        """Whether a crash or a failover of it can lose writes that it has acknowledged."""

    def client(self, *, blocking: bool = False) -> redis.Redis:
        """Return a client with its own pool and no retries; `blocking` ones wait for replies without limit."""

    def async_client(self) -> redis.asyncio.Redis:
        """Return a client of one connection for an event loop, without retries, that waits without limit."""

    def reader(self) -> Any:
        """Return a client for short reads (exists, hgetall, xrange, xrevrange), as light as can be."""

    def revive(self) -> None:
        """Make sure that the server answers again after an error. Raises SinkError, mostly LogUnreachable."""

    def notices(self) -> tuple[str, ...]:
        """Say what the user should know about this server: a repaired tail, weak durability."""

    def close(self) -> None:
        """Give up the server; clients made before must not be used any more."""


def open_server(redis_url: str | None, data_dir: Path) -> LogServer:
    """Return the server at `redis_url`, or the private one of `data_dir` where no URL is given. Raises SinkError."""
    if redis_url:
        return ExternalServer(redis_url)
    from streamrunner.sinks.embedded.server import EmbeddedServer  # not needed with a URL

    return EmbeddedServer(data_dir)


class ExternalServer:
    """A Redis or Valkey that somebody else runs, checked when opened."""

    local = False
    _in_cluster = False

    def __init__(self, url: str) -> None:
        """Connect and check; `${NAME}` in the URL is the value of that environment variable.

        Raises SinkError log_url, log_auth, log_tls, secret_missing, server_version, server_policy; LogUnreachable.
        """
        url = resolve_secrets(url, "the Redis URL", in_url=True)
        self.address = mask_url(url)
        self._secrets = secrets_of(url)
        self._options = connection_options(url)
        self.may_lose_tail = True
        self._notices = self._inspect()

    def client(self, *, blocking: bool = False) -> redis.Redis:
        """Return a client with its own pool and no retries; `blocking` ones wait for replies without limit."""
        make = make_cluster_client if self._in_cluster else make_client
        return make(self._options, blocking=blocking)

    def async_client(self) -> redis.asyncio.Redis:
        """Return a client of one connection for an event loop, without retries, that waits without limit."""
        return make_async_cluster_client(self._options) if self._in_cluster else make_async_client(self._options)

    def reader(self) -> redis.Redis:
        """Return an ordinary client: over the network nothing lighter is worth it."""
        return self.client()

    def revive(self) -> None:
        """Return once the server answers and has loaded its data. Raises LogUnreachable within 3 s otherwise."""
        self._ask(_wait_loaded)

    def notices(self) -> tuple[str, ...]:
        """Say what a crash of this server can lose."""
        return self._notices

    def close(self) -> None:
        """Do nothing: the server is not ours, and clients close their own connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _inspect(self) -> tuple[str, ...]:
        info, appendfsync = self._ask(_read_state)
        check_policy(info, self.address)
        weak = durability_notices(info, appendfsync, self.address)
        replicated = "sentinel" in self._options or bool(int(info.get("connected_slaves", 0)))
        self.may_lose_tail = bool(weak) or replicated
        self._in_cluster = bool(int(info.get("cluster_enabled", 0)))
        if str(self._options.get("ssl_cert_reqs", "")).lower() in ("none", "optional"):
            weak += (f"the TLS certificate of {self.address} is not verified (ssl_cert_reqs)",)
        return weak

    def _ask(self, question: Callable[[redis.Redis], _T]) -> _T:
        """Put a question on a fresh connection, and tell its failures apart in our own words."""
        import redis  # loaded by then

        with make_client(self._options, blocking=False, connect_timeout=_REACH_SECONDS) as client:
            try:
                _within(_REACH_SECONDS, lambda: _knock(client))
                return question(client)
            except redis.AuthenticationError as error:
                raise self._refused(error) from None
            except redis.BusyLoadingError:
                raise self._unreachable(f"still loading its data after {_LOADING_SECONDS:g} s") from None
            except redis.ConnectionError as error:
                refuse_bad_certificate(error, self.address)
                raise self._unreachable(scrub(str(error), self._secrets)) from None
            except (redis.TimeoutError, TimeoutError):
                hint = " (does that port speak TLS?)" if self.address.startswith("rediss") else ""
                raise self._unreachable(f"no answer within {_REACH_SECONDS:g} s{hint}") from None

    def _refused(self, error: Exception) -> SinkError:
        reason = scrub(str(error), self._secrets)
        return SinkError("log_auth", f"{self.address} refused the credentials of the URL: {reason}")

    def _unreachable(self, reason: str) -> LogUnreachable:
        return LogUnreachable(
            f"no server to write the log to at {self.address}: {reason}. Start it or correct --redis-url "
            "(RUNNER_REDIS_URL); without one the runner keeps a private server in its data dir"
        )


def _read_state(client: redis.Redis) -> tuple[dict[str, Any], str]:
    """Return INFO and appendfsync. Managed servers and ACLs forbid either: then {} and UNKNOWN."""
    import redis

    info = _wait_loaded(client)
    try:
        setting: dict[Any, Any] = client.config_get("appendfsync")
    except redis.ResponseError:
        return info, UNKNOWN
    return info, str(setting.get("appendfsync", UNKNOWN))


def _wait_loaded(client: redis.Redis) -> dict[str, Any]:
    """Return INFO once the server has read its data from disk; {} where INFO is forbidden."""
    import redis

    deadline = time.monotonic() + _LOADING_SECONDS
    while True:
        try:
            info: dict[str, Any] = client.info()
        except redis.ResponseError:
            return {}
        if not int(info.get("loading", 0)):
            return info
        if time.monotonic() >= deadline:
            raise redis.BusyLoadingError
        time.sleep(_LOADING_POLL_SECONDS)


def _knock(client: redis.Redis) -> None:
    """Connect; a server that is loading, or that forbids PING, is there all the same."""
    import redis

    try:
        client.ping()
    except (redis.BusyLoadingError, redis.ResponseError):
        return


def _within(seconds: float, call: Callable[[], None]) -> None:
    """Run a call that may hang beyond any socket timeout (name lookup, many addresses). Raises TimeoutError."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - carried to the caller's thread
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True, name="log-reach")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError
    if failures:
        raise failures[0]

"""Addresses of a primary that Sentinels know: `redis+sentinel://[user:password@]host[:port],…/service[/db]`."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

from streamrunner.sinks.errors import SinkError

SCHEMES = ("redis+sentinel", "rediss+sentinel")
FORM = "redis+sentinel://[user:password@]host[:port],host[:port],…/service[/db]"
_PORT = 26379
_QUERY_NAMES = frozenset({"username", "password", "sentinel_username", "sentinel_password"})


class SentinelUrl(NamedTuple):
    """The parts of such a URL; credentials are the servers', those of the Sentinels stand in the query."""

    scheme: str
    username: str | None
    password: str | None
    sentinels: tuple[tuple[str, int], ...]
    service: str
    db: int
    query: dict[str, str]


def is_sentinel_url(url: str) -> bool:
    """Whether the scheme is one of ours."""
    return url.partition("://")[0] in SCHEMES


def parse_sentinel_url(url: str) -> SentinelUrl:
    """Take a URL apart. Raises SinkError log_url, which never quotes it."""
    scheme, _, rest = url.partition("://")
    rest, _, query_text = rest.partition("?")
    netloc, _, path = rest.partition("/")
    credentials, _, hosts = netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    service, _, db = path.partition("/")
    query = {name: values[-1] for name, values in parse_qs(query_text).items()}
    foreign = sorted(name for name in query if name not in _QUERY_NAMES and not name.startswith("ssl_"))
    if foreign or not service or not (db or "0").isdigit():
        raise _bad("it needs a service name, a number as database, and only username, password, sentinel_* and ssl_*")
    return SentinelUrl(
        scheme,
        query.pop("username", unquote(username)) or None,
        query.pop("password", unquote(password)) or None,
        tuple(_host(one) for one in hosts.split(",")),
        unquote(service),
        int(db or 0),
        query,
    )


def mask_sentinel_url(url: str) -> str:
    """The address without credentials and query."""
    parts = parse_sentinel_url(url)
    credentials = "***@" if parts.password or parts.username or parts.query else ""
    hosts = ",".join(f"{host}:{port}" for host, port in parts.sentinels)
    return f"{parts.scheme}://{credentials}{hosts}/{parts.service}/{parts.db}"


def sentinel_options(url: str) -> dict[str, Any]:
    """Options for `make_client`: those of the servers, and under `sentinel` how to find the primary."""
    parts = parse_sentinel_url(url)
    tls = {name: value for name, value in parts.query.items() if name.startswith("ssl_")}
    if parts.scheme.startswith("rediss"):
        tls["ssl"] = True  # type: ignore[assignment]
    own = {name.removeprefix("sentinel_"): value for name, value in parts.query.items() if name.startswith("sentinel_")}
    found = {"db": parts.db, "username": parts.username, "password": parts.password, **tls}
    return {**found, "sentinel": {"service": parts.service, "sentinels": parts.sentinels, "options": {**own, **tls}}}


def _host(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(_PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise _bad("one of its hosts or ports cannot be read")
    return host.strip("[]"), int(port)


def _bad(reason: str) -> SinkError:
    return SinkError("log_url", f"the Redis URL cannot be used: {reason}. Expected {FORM}")

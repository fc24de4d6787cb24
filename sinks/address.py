"""Addresses of servers: what a URL may say, and how it is shown without its credentials."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.sentinel import (
    FORM,
    is_sentinel_url,
    mask_sentinel_url,
    parse_sentinel_url,
    sentinel_options,
)

_SCHEMES = ("redis", "rediss", "unix")
_QUERY_NAMES = frozenset({"db", "username", "password"})
_FORM = f"redis://[user:password@]host[:port][/db], rediss://… (TLS), unix:///path/to/socket or {FORM}"


def mask_url(url: str) -> str:
    """Return the address without user, password and query, fit for logs, events and errors.

    A URL that cannot be taken apart shows its scheme only, because the credentials may be anywhere in it.
    """
    if is_sentinel_url(url):
        return mask_sentinel_url(url)
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else (parts.hostname or "")
    except ValueError:
        return f"{url.partition('://')[0]}://***" if "://" in url else "***"
    if parts.scheme not in _SCHEMES:
        return "***"
    credentials = "***@" if "@" in parts.netloc or "password=" in parts.query else ""
    return f"{parts.scheme}://{credentials}{host}{port}{parts.path}"


def connection_options(url: str) -> dict[str, Any]:
    """Turn a URL into redis-py's connection options. Raises SinkError log_url, which never quotes the URL.

    Only the address, database, credentials and `ssl_*` may come from the URL: retries, timeouts and the protocol
    are what the log's guarantees rest on.
    """
    if is_sentinel_url(url):
        return sentinel_options(url)
    from redis.connection import parse_url  # redis takes 0.2 s to import

    _check_form(url)
    try:
        options: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError:
        raise _bad_url("it cannot be read") from None
    return options


def secrets_of(url: str) -> tuple[str, ...]:
    """Return every spelling of the credentials in a URL, longest first, for scrubbing foreign messages."""
    try:
        found = _passwords(url)
    except (ValueError, SinkError):
        return ()
    spellings = {form for secret in found if secret for form in (secret, unquote(secret), quote(secret, safe=""))}
    return tuple(sorted(spellings, key=len, reverse=True))


def _passwords(url: str) -> list[str | None]:
    if is_sentinel_url(url):
        sentinel = parse_sentinel_url(url)
        return [sentinel.password, sentinel.query.get("sentinel_password")]
    parts = urlsplit(url)
    return [parts.password, *parse_qs(parts.query).get("password", [])]


def scrub(text: str, secrets: tuple[str, ...]) -> str:
    """Replace credentials in a message that others wrote."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _check_form(url: str) -> None:
    try:
        parts = urlsplit(url)
        port_fits = parts.port is None or 0 < parts.port < 65536
    except ValueError:
        raise _bad_url("its host or port cannot be read; percent-encode special characters in the password") from None
    if parts.scheme not in _SCHEMES:
        raise _bad_url("its scheme is unknown")
    if not port_fits:
        raise _bad_url("its port is not between 1 and 65535")
    if parts.scheme == "unix" and not parts.path:
        raise _bad_url("it names no socket")
    foreign = sorted(n for n in parse_qs(parts.query) if n not in _QUERY_NAMES and not n.startswith("ssl_"))
    if foreign:
        raise _bad_url(f"the option {foreign[0]!r} cannot be set there, only db, username, password and ssl_*")


def _bad_url(reason: str) -> SinkError:
    return SinkError("log_url", f"the Redis URL cannot be used: {reason}. Expected {_FORM}")

"""Kinds and versions of servers: what we need, and how the servers state it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Functions (FUNCTION, FCALL) carry the log's protocol.
_MINIMUM = {"redis": (7, 0), "valkey": (8, 0)}
_BANNER = re.compile(r"(redis|valkey) server v=(\d[\d.]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ServerVersion:
    """Kind (`redis` or `valkey`) and version of a server, comparable within one kind."""

    kind: str
    number: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind.capitalize()} {'.'.join(map(str, self.number))}"

    @property
    def supported(self) -> bool:
        """Whether the log's function library runs on it."""
        return self.number >= _MINIMUM.get(self.kind, (7, 0))

    def require_supported(self, where: str) -> None:
        """Raise SinkError server_version when the server is too old."""
        if not self.supported:
            raise SinkError("server_version", f"{self} {where} is too old: {needed()}")


def needed() -> str:
    """Say which servers will do."""
    return "Redis 7.0 or Valkey 8.0, or newer, is needed"


def parse_banner(text: str) -> ServerVersion | None:
    """Read the answer to `--version`; None when it is no such server."""
    match = _BANNER.search(text)
    return ServerVersion(match[1].lower(), parse_number(match[2])) if match else None


def parse_info(info: Mapping[str, Any]) -> ServerVersion | None:
    """Read the reply to INFO; Valkey also states an old Redis version, for compatibility. None when there is none."""
    if "valkey_version" in info:
        return ServerVersion("valkey", parse_number(str(info["valkey_version"])))
    if "redis_version" in info:
        return ServerVersion("redis", parse_number(str(info["redis_version"])))
    return None


def parse_number(text: str) -> tuple[int, ...]:
    """Turn "9.1.2" into (9, 1, 2); what follows the digits (a release candidate's mark) does not count."""
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("-")[0])[:3])

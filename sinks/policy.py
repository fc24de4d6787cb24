"""What an external server must be like to hold a log, and what its user should know before trusting it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.versions import parse_info

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN = "unknown"

_FSYNC_LOSS = {
    "everysec": "with appendfsync everysec a crash of its machine can lose about the last 2 seconds of finished rows",
    "no": "with appendfsync no a crash of its machine can lose everything the system had not written, often 30 seconds",
}


def check_policy(info: Mapping[str, Any], where: str) -> None:
    """Refuse a server that cannot keep a log. Raises SinkError server_version or server_policy."""
    version = parse_info(info)
    if version is not None:
        version.require_supported(f"at {where}")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise SinkError(
            "server_policy",
            f"the server at {where} has maxmemory-policy {policy}: it would delete parts of the log when memory is "
            "short. Set it to noeviction (CONFIG SET maxmemory-policy noeviction)",
        )
    if info.get("role") in ("slave", "replica"):
        raise SinkError("server_policy", f"the server at {where} is a read-only replica; give the URL of its primary")


def durability_notices(info: Mapping[str, Any], appendfsync: str, where: str) -> tuple[str, ...]:
    """Say what a crash of the server can lose; empty when every acknowledged write is on its disk.

    `appendfsync` is the server's setting, or `UNKNOWN` where it may not be read.
    """
    if "aof_enabled" not in info:
        return (f"the server at {where} does not tell how it persists: finished rows may be lost if it stops",)
    if not int(info["aof_enabled"]):
        loss = f"the server at {where} keeps no append-only file: if it stops, all since its last snapshot is lost"
        return (f"{loss}. Set appendonly yes and appendfsync always",)
    if appendfsync == UNKNOWN:
        return (f"the server at {where} does not tell its appendfsync; only `always` keeps every finished row",)
    if appendfsync in _FSYNC_LOSS:
        return (f"the server at {where}: {_FSYNC_LOSS[appendfsync]}. Set appendfsync always to keep every one",)
    return ()

"""Bring the function library to a server, once, and never other code under the same name."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any

from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    import redis

LIBRARY = "sr_v1"
# In the order of their use of each other; `base` begins with the line that names the library.
PARTS = ("base", "submit", "lease", "claim", "split", "flush", "control", "retry", "end", "keep")


def library_code() -> str:
    """The Lua source of the library, as shipped: its parts, one after the other."""
    folder = resources.files("streamrunner.sinks.functions").joinpath(LIBRARY)
    return "\n".join(folder.joinpath(f"{part}.lua").read_text("utf-8") for part in PARTS)


def ensure_library(client: redis.Redis) -> None:
    """Load the library unless it is there already, in a Cluster on every node that takes writes.

    Raises SinkError (`library_conflict`) if the server holds different code under the name: two releases that
    disagree about the log must not write to one server.
    """
    code = library_code()
    for node in _writable_nodes(client):
        _ensure_on(node, code)


def _writable_nodes(client: Any) -> list[redis.Redis]:
    primaries = getattr(client, "get_primaries", None)
    return [client] if primaries is None else [client.get_redis_connection(node) for node in primaries()]


def _ensure_on(client: redis.Redis, code: str) -> None:
    loaded = _loaded_code(client)
    if loaded is None:
        loaded = _load(client, code)
    if loaded != code:
        raise SinkError(
            "library_conflict",
            f"the server holds other code under the function library name {LIBRARY}: run every streamrunner on this "
            f"server in one release, or delete it with FUNCTION DELETE {LIBRARY} when no job is running",
        )


def _command(client: Any, *args: str) -> Any:
    return client.execute_command(*args)


def _load(client: redis.Redis, code: str) -> str | None:
    from redis.exceptions import ResponseError

    try:
        _command(client, "FUNCTION LOAD", code)
    except ResponseError as error:
        # Two starters raced; whoever came second compares with what the first one loaded.
        if "already exists" not in str(error):
            raise
        return _loaded_code(client)
    return code


def _loaded_code(client: redis.Redis) -> str | None:
    # Spelled as a raw command: redis-py's function_list() answers in other shapes under RESP2 and RESP3.
    found = _command(client, "FUNCTION LIST", "LIBRARYNAME", LIBRARY, "WITHCODE")
    if not found:
        return None
    fields = found[0]
    flat = list(fields) if isinstance(fields, list) else [part for pair in fields.items() for part in pair]
    code = dict(zip(flat[::2], flat[1::2], strict=True))[b"library_code"]
    return bytes(code).decode()

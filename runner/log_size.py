"""How large a job's log may become, told before it starts: a server that is full takes no more rows.

The most it can be: every row uses its whole `max_tokens`. What a row takes besides its payload was measured on Valkey 9
(rows of 300 to 5,000 bytes, ten a flush): 250-320 bytes of memory, 710 bytes of append-only file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from streamrunner.runner.inputs import RangeSpec
    from streamrunner.runner.spec import JobSpec

_ROW_MEMORY, _ROW_FILE = 300, 710
# Of a response body: what stands around the choices, around a choice, a token of text, a token with one score.
_BODY, _CHOICE, _TOKEN, _SCORE = 300, 150, 5, 50
# A token in its step entry, until that is trimmed.
_STEP_TOKEN = 30
_SHARE = 0.8


class LogSize(NamedTuple):
    """Bytes of the server's memory, and of its append-only file before it is rewritten, at the most."""

    memory: int
    file: int


class Room(NamedTuple):
    """Bytes that are left; None where nobody can say."""

    memory: int | None
    disk: int | None


def forecast_size(spec: JobSpec, ranges: Iterable[RangeSpec]) -> LogSize:
    """The size of a job's log if every row uses its `max_tokens`."""
    scores = 0 if spec.sampling.logprobs is None else 1 + spec.sampling.logprobs
    rows = payloads = tokens = 0
    for one in ranges:
        rows += one.count
        for _, _, choices, limit in one.work:
            payloads += _CHOICE * choices + (_TOKEN + _SCORE * scores) * limit
            tokens += limit
    payloads += _BODY * rows
    kept = 0 if spec.events.retention == "results" else payloads
    return LogSize(_ROW_MEMORY * rows + kept, _ROW_FILE * rows + payloads + _STEP_TOKEN * tokens)


def memory_left(info: Mapping[str, Any]) -> int | None:
    """Bytes that a server may still use, from its INFO; by its limit, or what its machine has."""
    most = int(info.get("maxmemory", 0)) or int(info.get("total_system_memory", 0))
    return most - int(info.get("used_memory", 0)) if most else None


def size_notices(size: LogSize, room: Room, address: str) -> list[str]:
    """What to tell the user before such a job starts; nothing if it fits with some room to spare."""
    found: list[str] = []
    if room.memory is not None and size.memory > _SHARE * room.memory:
        found.append(
            f"the log of this job may take {_gigabytes(size.memory)} of memory if all rows use their max_tokens; "
            f"the server at {address} has {_gigabytes(room.memory)} left. Lower max_tokens, give it more memory, or "
            "let results leave it once the outputs have them (`events: {retention: results}`)"
        )
    if room.disk is not None and size.file > _SHARE * room.disk:
        found.append(
            f"the log of this job may take {_gigabytes(size.file)} of disk if all rows use their max_tokens; "
            f"{_gigabytes(room.disk)} are free there: make room, or name another --data-dir"
        )
    return found


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{max(num_bytes, 0) / 1e6:.1f} MB"

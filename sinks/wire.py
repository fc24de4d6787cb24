"""Raw stream entries and the typed records they stand for.

Light on purpose: the read verbs of the command line import this and not the pydantic vocabulary of `events`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from streamrunner.sinks.errors import SinkError

WIRE_VERSION = 1
_NEWEST = b"%d" % WIRE_VERSION

Fields = dict[bytes, bytes]

encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode


class LogEntry(NamedTuple):
    """One event of a job's history; `time` is Unix ms by the server's clock."""

    seq: int
    gen: int
    type: str
    v: int
    time: int
    by: str
    data: dict[str, Any]

    @property
    def id(self) -> str:
        """The stream id, shared with the payload of a terminal event."""
        return f"{self.seq}-{self.gen}"


class StepDelta(NamedTuple):
    """New tokens of one choice of one row; `at` indexes the first of them within the choice's output."""

    row: int
    claim: int
    choice: int
    at: int
    token_ids: list[int]
    text: str
    logprobs: list[Any] | None = None


class StepEntry(NamedTuple):
    """What one flush of one worker added to the rows in flight."""

    worker: str
    epoch: int
    n: int
    time: int
    deltas: list[StepDelta]


class Unreadable(NamedTuple):
    """An entry whose version is newer than this reader, or that is none of ours; `worker` is "" for the log."""

    worker: str
    id: str
    type: str
    time: int
    reason: str


def parse_id(raw: bytes) -> tuple[int, int]:
    """Split `<ms>-<seq>` of a stream id into its two numbers."""
    left, _, right = raw.partition(b"-")
    return int(left), int(right)


def parse_log_entry(raw_id: bytes, fields: Fields) -> LogEntry:
    """Read one entry of `…:log`. Raises SinkError (`log_conflict`) for a version newer than this reader."""
    version = check_version("log entry", raw_id, fields)
    seq, _, gen = raw_id.partition(b"-")
    return LogEntry(
        int(seq), int(gen), fields[b"type"].decode(), version, int(fields[b"time"]), fields[b"by"].decode(),
        decode_json(fields[b"data"]),
    )  # fmt: skip


def parse_step_entry(worker: str, raw_id: bytes, fields: Fields) -> StepEntry:
    """Read one entry of `…:steps:<worker>`. Raises SinkError (`log_conflict`) for a version newer than this reader."""
    check_version(f"entry of {worker}", raw_id, fields)
    epoch, n = parse_id(raw_id)
    # What a newer writer appends to a delta is left out, as unknown fields of an event are.
    deltas = [StepDelta(*item[: len(StepDelta._fields)]) for item in decode_json(fields[b"d"])]
    return StepEntry(worker, epoch, n, int(fields[b"t"]), deltas)


def read_log_entry(raw_id: bytes, fields: Fields) -> LogEntry | Unreadable:
    """Read one entry of `…:log` for a follower, which says what it cannot read and goes on."""
    try:
        return parse_log_entry(raw_id, fields)
    except (SinkError, ValueError, KeyError, TypeError) as error:
        return _unreadable("", raw_id, fields.get(b"type", b""), fields.get(b"time", b""), error)


def read_step_entry(worker: str, raw_id: bytes, fields: Fields) -> StepEntry | Unreadable:
    """Read one entry of `…:steps:<worker>` for a follower."""
    try:
        return parse_step_entry(worker, raw_id, fields)
    except (SinkError, ValueError, KeyError, TypeError) as error:
        return _unreadable(worker, raw_id, b"tokens", fields.get(b"t", b""), error)


def encode_deltas(deltas: list[StepDelta]) -> bytes:
    """The `d` field of a step entry: JSON without spaces, logprobs left off where there are none."""
    return encode_json([delta if delta.logprobs is not None else delta[:-1] for delta in deltas])


def check_version(what: str, raw_id: bytes, fields: Fields) -> int:
    """The version of an entry. Raises SinkError (`log_conflict`) for one newer than this reader."""
    if fields[b"v"] == _NEWEST:
        return WIRE_VERSION
    version = int(fields[b"v"])
    if version > WIRE_VERSION:
        raise SinkError(
            "log_conflict",
            f"{what} {raw_id.decode()} has version {version}, this release reads up to {WIRE_VERSION}: "
            "upgrade streamrunner",
        )
    return version


def _unreadable(worker: str, raw_id: bytes, kind: bytes, time: bytes, error: Exception) -> Unreadable:
    reason = error.message if isinstance(error, SinkError) else f"entry {raw_id.decode()} is none of a runner's"
    return Unreadable(worker, raw_id.decode(), kind.decode(), int(time) if time.isdigit() else 0, reason)

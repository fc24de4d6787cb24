"""Raw stream entries and the typed records they stand for.

Light on purpose: the read verbs of the command line import this and not the pydantic vocabulary of `events`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from streamrunner.sinks.errors import SinkError

WIRE_VERSION = 1

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


def parse_id(raw: bytes) -> tuple[int, int]:
    """Split `<ms>-<seq>` of a stream id into its two numbers."""
    left, _, right = raw.partition(b"-")
    return int(left), int(right)


def parse_log_entry(raw_id: bytes, fields: Fields) -> LogEntry:
    """Read one entry of `…:log`. Raises SinkError (`log_conflict`) for a version newer than this reader."""
    version = int(fields[b"v"])
    if version > WIRE_VERSION:
        raise SinkError(
            "log_conflict",
            f"log entry {raw_id.decode()} has version {version}, this release reads up to {WIRE_VERSION}: "
            "upgrade streamrunner",
        )
    seq, gen = parse_id(raw_id)
    data = decode_json(fields[b"data"])
    return LogEntry(seq, gen, fields[b"type"].decode(), version, int(fields[b"time"]), fields[b"by"].decode(), data)


def parse_step_entry(worker: str, raw_id: bytes, fields: Fields) -> StepEntry:
    """Read one entry of `…:steps:<worker>`."""
    epoch, n = parse_id(raw_id)
    deltas = [StepDelta(*item) for item in decode_json(fields[b"d"])]
    return StepEntry(worker, epoch, n, int(fields[b"t"]), deltas)


def encode_deltas(deltas: list[StepDelta]) -> bytes:
    """The `d` field of a step entry: JSON without spaces, logprobs left off where there are none."""
    return encode_json([delta if delta.logprobs is not None else delta[:-1] for delta in deltas])

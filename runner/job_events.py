"""What a watcher is given: typed, immutable records, each with the cursor that goes on right behind it.

`LogEvent` and `TokensEvent` are what the log holds; the others say what happened to the reading itself. `to_json` is
the line that `runner events --json` prints.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrunner.sinks.wire import StepDelta


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events have: `time` is Unix ms by the server's clock, `cursor` is for `watch(..., since=cursor)`."""

    type: str
    time: int
    cursor: str
    data: Mapping[str, Any] = field(default_factory=_nothing)

    @property
    def row(self) -> int | None:
        """The row that the event is about."""
        return self.data.get("row")

    @property
    def custom_id(self) -> str | None:
        """The `custom_id` of that row."""
        return self.data.get("custom_id")

    def to_json(self) -> dict[str, Any]:
        """The event as plain JSON types."""
        return {"type": self.type, "time": self.time, "data": dict(self.data), "cursor": self.cursor}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent(Event):
    """One entry of the job's history: any type of docs/log.md, and types that this release does not know yet.

    `request.completed` also has `choices`, unless retention took the result.
    """

    seq: int
    v: int
    by: str

    def to_json(self) -> dict[str, Any]:
        """The event as plain JSON types."""
        return {
            "seq": self.seq, "type": self.type, "v": self.v, "time": self.time, "by": self.by,
            "data": dict(self.data), "cursor": self.cursor,
        }  # fmt: skip


class TokenDelta(NamedTuple):
    """New tokens of one choice of one row; `at` indexes the first of them within the choice's output.

    A takeover gives a row's tokens again from 0 under a higher `claim`: what counts is the highest claim's.
    """

    row: int
    claim: int
    choice: int
    at: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, delta: StepDelta) -> TokenDelta:
        """An immutable copy."""
        logprobs = None if delta.logprobs is None else tuple(delta.logprobs)
        return cls(delta.row, delta.claim, delta.choice, delta.at, tuple(delta.token_ids), delta.text, logprobs)

    def to_json(self) -> dict[str, Any]:
        """The delta as plain JSON types; `logprobs` only where there are some."""
        found = self._asdict() | {"token_ids": list(self.token_ids)}
        return found if self.logprobs is not None else {k: v for k, v in found.items() if k != "logprobs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensEvent(Event):
    """What one flush of one worker added to the rows in flight; `step` is the flush, `by` the worker."""

    by: str
    step: str
    deltas: tuple[TokenDelta, ...]

    def to_json(self) -> dict[str, Any]:
        """The event as plain JSON types."""
        data = {"deltas": [delta.to_json() for delta in self.deltas]}
        return {
            "type": self.type, "v": 1, "time": self.time, "by": self.by, "step": self.step, "data": data,
            "cursor": self.cursor,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEvent(Event):
    """The job so far, as `runner status --json` names it; `seq` is the last entry in it. What follows is new."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GapEvent(Event):
    """Entries that nobody can read any more.

    data: `stream` (`log` or a worker id), `num_entries` (None where nobody counts them), `reason`; of the log also
    `first` and `last` seq.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ResyncEvent(Event):
    """The server lost its last writes: forget what was read, all events (or a new snapshot) come again from the first.

    data: `reason`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedEvent(Event):
    """The last event of a watch.

    data: `status` and `reason` of the job, and `abandoned`: whether the watch ended because no worker has held the
    unfinished job for a while.
    """

    @property
    def abandoned(self) -> bool:
        """Whether the job is unfinished and nobody works on it."""
        return bool(self.data["abandoned"])

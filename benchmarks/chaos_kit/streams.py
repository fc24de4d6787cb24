"""A job's raw streams, read with plain XRANGE: the log, the payloads, every worker's token deltas."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import redis

TERMINALS = ("request.completed", "request.failed", "request.cancelled", "request.expired")
_PAGE = 1000


class Event(NamedTuple):
    """One entry of `sr:{J}:log`; time in Unix ms."""

    seq: int
    gen: int
    type: str
    time: int
    data: dict[str, Any]


class Delta(NamedTuple):
    """Tokens that one step entry adds to one choice of one row, from position `at` on."""

    time: int
    worker: str
    row: int
    claim: int
    choice: int
    at: int
    token_ids: tuple[int, ...]
    text: str


@dataclass
class Streams:
    """All that has been read of one job, in the order of each stream."""

    events: list[Event] = field(default_factory=list)
    payloads: dict[str, dict[str, Any]] = field(default_factory=dict)
    deltas: list[Delta] = field(default_factory=list)

    @property
    def terminals(self) -> list[Event]:
        """The events that end a row, in order."""
        return [event for event in self.events if event.type in TERMINALS]

    @property
    def num_rows(self) -> int:
        """Rows of the job; 0 before its submission is readable."""
        return int(self.events[0].data["rows"]) if self.events else 0

    def joins(self) -> list[Event]:
        """Every worker.joined."""
        return [event for event in self.events if event.type == "worker.joined"]


def choice_deltas(streams: Streams) -> dict[tuple[int, int], list[Delta]]:
    """The deltas by (row, choice), each in the order in which they were written."""
    found: dict[tuple[int, int], list[Delta]] = {}
    for delta in streams.deltas:
        found.setdefault((delta.row, delta.choice), []).append(delta)
    return {key: sorted(deltas, key=lambda one: (one.claim, one.time)) for key, deltas in found.items()}


class StreamReader:
    """Reads on from where it stopped; what retention has trimmed since stays in `streams`."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.streams = Streams()
        self._read: dict[str, str] = {}

    def poll(self, client: redis.Redis) -> Streams:
        """Read everything new. Raises redis.ConnectionError when the server is gone."""
        # Tokens first: a terminal that is seen then never lacks the tokens that were written before it.
        for event in self.streams.joins():
            self._poll_steps(client, event.data["worker"])
        for entry_id, fields in self._new(client, "log"):
            self._add_event(entry_id, fields)
        for event in self.streams.joins():
            self._poll_steps(client, event.data["worker"])
        for entry_id, fields in self._new(client, "res"):
            self.streams.payloads[entry_id] = json.loads(fields["p"])
        return self.streams

    def _add_event(self, entry_id: str, fields: dict[str, str]) -> None:
        seq, gen = (int(part) for part in entry_id.split("-"))
        event = Event(seq, gen, fields["type"], int(fields["time"]), json.loads(fields["data"]))
        self.streams.events.append(event)

    def _poll_steps(self, client: redis.Redis, worker: str) -> None:
        for _, fields in self._new(client, f"steps:{worker}"):
            for row, claim, choice, at, token_ids, text, *_logprobs in json.loads(fields["d"]):
                delta = Delta(int(fields["t"]), worker, row, claim, choice, at, tuple(token_ids), text)
                self.streams.deltas.append(delta)

    def _new(self, client: Any, name: str) -> list[tuple[str, dict[str, str]]]:
        key = f"sr:{{{self.job_id}}}:{name}"
        found: list[tuple[str, dict[str, str]]] = []
        while True:
            start = f"({self._read[name]}" if name in self._read else "-"
            page = client.xrange(key, start, "+", count=_PAGE)
            if not page:
                return found
            found += page
            self._read[name] = page[-1][0]


def find_job(client: Any, name: str) -> str | None:
    """The newest job of that name in `sr:jobs`."""
    for _, fields in client.xrevrange("sr:jobs"):
        if fields["name"] == name:
            return str(fields["job"])
    return None

"""Where a worker's rows come from: it claims ranges, reads their lines, and prepares one row at a time for the engine.

A row is checked in full (template, length) when it is taken, not before: tokenising a million rows takes minutes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from streamrunner.runner.durable import ChoiceKey, DurableChoice, fold_steps
from streamrunner.runner.inputs import RangeSpec, read_range
from streamrunner.runner.rows import Row, RowError, parse_row
from streamrunner.sinks.log import ClaimedRange, JobLog, Reply, WorkerLease, claimed_range
from streamrunner.sinks.reader import read_steps

if TYPE_CHECKING:
    from collections.abc import Iterable

    import redis

    from streamrunner.runner.job import JobContext


class ClaimedRow(NamedTuple):
    """One open row of a claimed range: parsed, or why not, with the tokens that are durable already."""

    row: Row | RowError
    range: str
    claim: int
    durable: dict[ChoiceKey, DurableChoice]


@dataclass(slots=True)
class HeldRange:
    """A range under this worker's claim and its rows that have no terminal event yet."""

    claim: int
    spec: RangeSpec
    open_rows: set[int] = field(default_factory=set)


class Feed:
    """Claims and reads. Belongs to the worker thread; `held` is what this worker may finish."""

    def __init__(self, job: JobContext, log: JobLog, client: redis.Redis) -> None:
        self._job = job
        self._log = log
        self._client = client
        self._rows: deque[ClaimedRow] = deque()
        self.held: dict[str, HeldRange] = {}

    @property
    def num_ready(self) -> int:
        """Rows claimed and not yet taken."""
        return len(self._rows)

    def claim(self, lease: WorkerLease) -> Reply:
        """Take one more range; the reply says OK, NONE, BUSY, PAUSED, ENDED, EXPIRED or FENCED."""
        reply = self._log.claim(lease, list(self.held))
        if reply["s"] == "OK":
            claimed = claimed_range(reply)
            self.adopt(claimed, claimed.previous)
        return reply

    def adopt(self, claimed: ClaimedRange, workers: Iterable[str], skip: Iterable[int] = ()) -> None:
        """Queue the open rows of a range, except those the caller has in flight.

        workers: those whose step streams may hold tokens of its rows.
        """
        spec = RangeSpec(**claimed.spec)
        open_rows = {spec.first + i for i, done in enumerate(claimed.done) if done == "0"}
        self.held[claimed.id] = HeldRange(claimed.claim, spec, open_rows)
        wanted = open_rows - set(skip) - {one.row.index for one in self._rows if one.range == claimed.id}
        durable = self._durable(spec, workers)
        for index, line, raw in read_range(spec):
            if index in wanted:
                row = parse_row(raw, index, line, self._job.spec)
                kept = {key: choice for key, choice in durable.items() if key.row == index}
                self._rows.append(ClaimedRow(row, claimed.id, claimed.claim, kept))

    def take(self) -> ClaimedRow | None:
        """The next row, half-finished ones of a dead worker in the order of their range."""
        return self._rows.popleft() if self._rows else None

    def close(self, range_id: str, row: int) -> None:
        """Note that a row has its terminal event; a range without open rows is no longer held."""
        held = self.held.get(range_id)
        if held is not None:
            held.open_rows.discard(row)
            if not held.open_rows:
                del self.held[range_id]

    def drop(self, range_id: str) -> None:
        """Forget a range that belongs to somebody else now."""
        self.held.pop(range_id, None)
        self._rows = deque(one for one in self._rows if one.range != range_id)

    def _durable(self, spec: RangeSpec, workers: Iterable[str]) -> dict[ChoiceKey, DurableChoice]:
        entries = (
            entry for worker in dict.fromkeys(workers) for entry in read_steps(self._client, self._job.keys, worker)
        )
        return fold_steps(entries, range(spec.first, spec.first + spec.count))

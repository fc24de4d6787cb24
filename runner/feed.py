"""Where a worker's rows come from: it claims ranges, reads their lines, and prepares one row at a time for the engine.

A row is checked in full (template, length) when it is taken, not before: tokenising a million rows takes minutes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from streamrunner.runner.durable import ChoiceKey, DurableChoice, fold_steps
from streamrunner.runner.errors import RunnerError
from streamrunner.runner.inputs import RangeSpec, read_range
from streamrunner.runner.rows import Row, RowError, parse_row
from streamrunner.runner.tail import find_cuts
from streamrunner.sinks.log import ClaimedRange, JobLog, OtherRange, Reply, StepSource, WorkerLease, claimed_range
from streamrunner.sinks.reader import newest_steps, read_steps

if TYPE_CHECKING:
    from collections.abc import Iterable

    import redis

    from streamrunner.runner.job import JobContext

# Flushes of another worker that are looked at to see which rows it runs: each carries all that one step brought.
_NEWEST = 8


class ClaimedRow(NamedTuple):
    """One open row of a claimed range: parsed, or why not, with the tokens that are durable already.

    attempt: counts from 1; every retry of the row adds one.
    """

    row: Row | RowError
    range: str
    claim: int
    attempt: int
    durable: dict[ChoiceKey, DurableChoice]


@dataclass(slots=True)
class HeldRange:
    """A range under this worker's claim and its rows that have no terminal event yet."""

    claim: int
    spec: RangeSpec
    open_rows: set[int] = field(default_factory=set)
    previous: tuple[StepSource, ...] = ()


class Feed:
    """Claims, splits and reads. Belongs to the worker thread; `held` is what this worker may finish.

    A range that cannot be read here is given back and never claimed again by this worker. unreadable: why.
    num_given_back: how many, since the last one that could be read.
    """

    def __init__(self, job: JobContext, log: JobLog) -> None:
        self._job = job
        self._log = log
        self._rows: deque[ClaimedRow] = deque()
        self._given_back: list[str] = []
        self._predecessors: set[str] = set()
        self.held: dict[str, HeldRange] = {}
        self.unreadable: RunnerError | None = None
        self.num_given_back = 0

    @property
    def num_ready(self) -> int:
        """Rows claimed and not yet taken."""
        return len(self._rows)

    def claim(self, lease: WorkerLease) -> Reply:
        """Take one more range; the reply says OK, NONE, BUSY, PAUSED, ENDED, EXPIRED or FENCED."""
        reply = self._log.claim(lease, list(self.held), self._given_back)
        if reply["s"] == "OK":
            claimed = claimed_range(reply)
            self.adopt(lease, claimed, claimed.previous)
        return reply

    def split(self, lease: WorkerLease) -> bool:
        """Take the open rows that another worker has not begun, half of those of its largest range; False if none."""
        for wanted in find_cuts(self._log.others(lease), self._running_rows):
            reply = self._log.split(lease, wanted.range, wanted.row)
            if reply["s"] == "OK":
                claimed = claimed_range(reply)
                self.adopt(lease, claimed, claimed.previous)
                return True
        return False

    def adopt(
        self, lease: WorkerLease, claimed: ClaimedRange, sources: Iterable[StepSource], skip: Iterable[int] = ()
    ) -> None:
        """Queue the open rows of a range, except those the caller has in flight.

        sources: where tokens of its rows may stand.
        """
        spec = RangeSpec(**{**claimed.spec, "count": len(claimed.done)})
        open_rows = {spec.first + i for i, done in enumerate(claimed.done) if done == "0"}
        self.held[claimed.id] = HeldRange(claimed.claim, spec, open_rows, claimed.previous)
        wanted = open_rows - set(skip) - {one.row.index for one in self._rows if one.range == claimed.id}
        try:
            lines = read_range(spec, self._job)
        except RunnerError as error:
            self._give_back(lease, claimed.id, error)
            return
        self.num_given_back = 0
        durable = self._durable(spec, sources)
        for index, line, raw in lines:
            if index in wanted:
                row = parse_row(raw, index, line, self._job.spec)
                kept = {key: choice for key, choice in durable.items() if key.row == index}
                self._rows.append(ClaimedRow(row, claimed.id, claimed.claim, spec.attempts.get(str(index), 1), kept))

    def take(self) -> ClaimedRow | None:
        """The next row, half-finished ones of a dead worker in the order of their range."""
        return self._rows.popleft() if self._rows else None

    def close(self, range_id: str, row: int) -> None:
        """Note that a row has its terminal event; a range without open rows is no longer held."""
        held = self.held.get(range_id)
        if held is None:
            return
        held.open_rows.discard(row)
        if not held.open_rows:
            del self.held[range_id]
            self._predecessors.update(one.worker for one in held.previous)

    def take_predecessors(self) -> set[str]:
        """Earlier owners of ranges that were finished since the last call."""
        found, self._predecessors = self._predecessors, set()
        return found

    @property
    def waiting(self) -> list[ClaimedRow]:
        """Rows claimed and not yet taken."""
        return list(self._rows)

    def discard(self, rows: set[int]) -> None:
        """Forget rows that somebody else has ended."""
        for one in [one for one in self._rows if one.row.index in rows]:
            self._rows.remove(one)
            self.close(one.range, one.row.index)

    def drop(self, range_id: str) -> None:
        """Forget a range that belongs to somebody else now."""
        self.held.pop(range_id, None)
        self._rows = deque(one for one in self._rows if one.range != range_id)

    def narrow(self, range_id: str, limit: int) -> None:
        """Forget the rows from `limit` on of a range: a split gave them to another worker."""
        held = self.held.get(range_id)
        if held is None:
            return
        held.open_rows = {row for row in held.open_rows if row < limit}
        self._rows = deque(one for one in self._rows if one.range != range_id or one.row.index < limit)
        if not held.open_rows:
            del self.held[range_id]

    def _give_back(self, lease: WorkerLease, range_id: str, error: RunnerError) -> None:
        held = self.held.pop(range_id)
        last = held.spec.first + held.spec.count - 1
        message = (
            f"rows {held.spec.first}-{last} cannot be read on this machine and are left to others: {error.message}"
        )
        self._log.give_back(lease, [range_id], {"code": error.code, "message": message})
        self._given_back.append(range_id)
        self.unreadable, self.num_given_back = error, self.num_given_back + 1

    def _running_rows(self, other: OtherRange) -> set[int]:
        """Rows of the range that its owner has begun, as its newest flushes show."""
        keys = self._job.keys
        entries = self._log.ask(lambda client: newest_steps(client, keys, other.worker, _NEWEST))
        return {delta.row for entry in entries for delta in entry.deltas if delta.claim == other.claim}

    def _durable(self, spec: RangeSpec, sources: Iterable[StepSource]) -> dict[ChoiceKey, DurableChoice]:
        keys, rows = self._job.keys, range(spec.first, spec.first + spec.count)
        # Read once from the earliest point, where a worker had the range twice.
        wanted = _merged(sources)

        def read(client: redis.Redis) -> dict[ChoiceKey, DurableChoice]:
            return fold_steps((entry for one in wanted for entry in read_steps(client, keys, *one)), rows)

        return self._log.ask(read)


def _merged(sources: Iterable[StepSource]) -> list[StepSource]:
    first: dict[str, StepSource] = {}
    for one in sources:
        first.setdefault(one.worker, one)
    return list(first.values())

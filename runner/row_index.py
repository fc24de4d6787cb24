"""Where in the log each row has its ending: a fold that makes results readable in any order.

    row      0     1     2     3
    entry   12-0   0    31-0  14-0     ◀ the newest ending; 0 for open rows, and where it is the job's
    attempt  1     1     2     1

Twelve bytes a row, so an output of a million rows costs 12 MB, whatever the rows hold.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from streamrunner.runner.fold import OPEN, OUTCOME_OF_JOB, JobState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamrunner.sinks.wire import LogEntry

# The gen of an entry grows by one with every server that lost its tail.
_GEN_BITS = 20
_ENDINGS = frozenset({"request.completed", "request.failed", "request.cancelled", "request.expired"})


class Applied(NamedTuple):
    """What some entries did: rows that got their ending, in that order; whether rows that had one were opened again."""

    ended: list[int]
    reopened: bool


class RowIndex:
    """Folds the log; `state` is the job's, `entries` and `attempts` have one number a row."""

    def __init__(self) -> None:
        self.state = JobState()
        self.entries = array("Q")
        self.attempts = array("I")

    def is_ended(self, row: int) -> bool:
        """Whether the row has an ending of its own, or shares that of its job."""
        return bool(self.entries[row]) or self.state.ended or self.state.rows[row] != OPEN

    def outcome(self, row: int) -> int:
        """How an ended row ended, as `fold` numbers it."""
        return self.state.rows[row] or OUTCOME_OF_JOB[self.state.status]

    def apply(self, entries: Iterable[LogEntry]) -> Applied:
        """Take in the next entries."""
        ended: list[int] = []
        reopened = False
        for entry in entries:
            self.state.apply(entry)
            if entry.type in _ENDINGS:
                row = entry.data["row"]
                reopened = reopened or bool(self.entries[row])
                self.entries[row] = pack_id(entry.seq, entry.gen)
                self.attempts[row] = entry.data["attempt"]
                ended.append(row)
            elif entry.type == "job.submitted":
                self.entries = array("Q", bytes(8 * self.state.num_rows))
                self.attempts = array("I", [1]) * self.state.num_rows
            elif entry.type == "request.retried":
                self.entries[entry.data["row"]] = 0
                self.attempts[entry.data["row"]] = entry.data["attempt"]
                reopened = True
        return Applied(ended, reopened)


def pack_id(seq: int, gen: int) -> int:
    """An entry's id as one number that sorts as ids do."""
    return seq << _GEN_BITS | gen


def unpack_id(packed: int) -> str:
    """The inverse of `pack_id`, as Redis writes it."""
    return f"{packed >> _GEN_BITS}-{packed & (1 << _GEN_BITS) - 1}"


def seq_of(packed: int) -> int:
    """The seq of a packed id."""
    return packed >> _GEN_BITS

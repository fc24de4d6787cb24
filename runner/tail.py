"""The end of a job, shared: which rows an idle worker takes off another one that has more than it can run.

    range   done done  run  run │ not begun │ not begun      the first half of what is not begun stays,
                                └── stays ──┴── taken ──▶    so that both go on

Rows that run stay where they are: their keys and values are in that worker's engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streamrunner.sinks.log import OtherRange


class Cut(NamedTuple):
    """Rows from `row` on are to leave `range`."""

    range: OtherRange
    row: int


def find_cuts(others: Iterable[OtherRange], running: Callable[[OtherRange], set[int]]) -> list[Cut]:
    """Where to cut the ranges of others, the one with most rows that are not begun first.

    running: rows of a range that its owner runs now. Rows are begun in their order, so whatever follows the last one
    of these is not begun; the larger half of that is taken, a single row too.
    """
    found: list[tuple[int, Cut]] = []
    for other in others:
        waiting = _not_begun(other, running(other))
        if waiting:
            found.append((len(waiting), Cut(other, waiting[len(waiting) // 2])))
    return [cut for _, cut in sorted(found, key=lambda one: -one[0])]


def _not_begun(other: OtherRange, running: set[int]) -> list[int]:
    begun = max(running, default=other.first - 1)
    rows = enumerate(other.done, other.first)
    return [row for row, done in rows if done == "0" and row > begun]

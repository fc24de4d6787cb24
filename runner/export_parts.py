"""Keeps a folder of parts as the log has it: which rows belong to which part is decided here, from the log alone.

    order: completion   a part ends behind every so many endings in the log, and at the job's end
    order: input        a part is so many rows of the input, written once all of them have ended

A part whose rows are not what they should be (a row was retried, a file was removed) is written again; others stay.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrunner.sinks.outputs.parts import Content
from streamrunner.sinks.outputs.record import ATTEMPT_BITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from streamrunner.runner.result_feed import ResultFeed
    from streamrunner.runner.row_index import Applied
    from streamrunner.runner.selection import Selection
    from streamrunner.sinks.outputs.parts import PartsFolder

    RowArray = NDArray[np.int64]


class _Planned(NamedTuple):
    """The rows of one part, and where it ends: a packed entry id, or nothing for rows without an entry."""

    rows: RowArray
    end: str


class PartsExport:
    """`settle` makes the folder what it should be by the log; `advance` waits until there is a part to write."""

    def __init__(self, folder: PartsFolder, selection: Selection, feed: ResultFeed, rows_per_part: int) -> None:
        self._folder = folder
        self._selection = selection
        self._index = feed.index
        self._results = feed.results
        self._rows_per_part = rows_per_part
        self._num_new = 0

    def settle(self) -> None:
        """Write what is missing or not as it should be."""
        self._num_new = 0
        plan = self._plan()
        for number, part in enumerate(plan):
            digest = self._digest(part.rows)
            known = self._folder.parts[number] if number < len(self._folder.parts) else None
            if known is None or (known.digest, known.end) != (digest, part.end):
                rows = part.rows.tolist()
                self._folder.put(number, Content(self._results.records(rows), len(rows), digest, part.end))
        self._folder.settle(len(plan), complete=self._index.state.ended)

    def advance(self, applied: Applied) -> None:
        """Take in what the log has just said."""
        self._num_new += len(applied.ended)
        if applied.reopened or self._index.state.ended or self._num_new >= self._rows_per_part:
            self.settle()

    def _digest(self, rows: RowArray) -> str:
        """Of the rows and their attempts: which results a part holds."""
        attempts = np.frombuffer(self._index.attempts, np.uint32)[rows].astype(np.uint64)
        packed = rows.astype(np.uint64) << np.uint64(ATTEMPT_BITS) | attempts
        return hashlib.blake2b(packed.astype("<u8").tobytes(), digest_size=16).hexdigest()

    def _plan(self) -> list[_Planned]:
        rows = self._selection.ended_rows(self._index)
        plan = list(self._by_input(rows) if self._selection.order == "input" else self._by_completion(rows))
        if not plan and self._index.state.ended:
            # A dataset of no rows is still one that can be read.
            return [_Planned(rows, "")]
        return plan

    def _by_input(self, rows: RowArray) -> Iterator[_Planned]:
        num_rows = len(self._index.entries)
        frontier = next((row for row in range(num_rows) if not self._index.is_ended(row)), num_rows)
        for first in range(0, num_rows, self._rows_per_part):
            behind = min(first + self._rows_per_part, num_rows)
            if behind <= frontier:
                low, high = np.searchsorted(rows, [first, behind])
                yield _Planned(rows[low:high], str(behind))

    def _by_completion(self, rows: RowArray) -> Iterator[_Planned]:
        """Parts that are there keep their ends, so that a row which leaves one shifts none behind it."""
        entries = np.frombuffer(self._index.entries, np.uint64)[rows]
        num_own = int(np.count_nonzero(entries))
        begin = 0
        for end in [int(part.end) for part in self._folder.parts if part.end]:
            behind = int(np.searchsorted(entries[:num_own], np.uint64(end), side="right"))
            yield _Planned(rows[begin:behind], str(end))
            begin = behind
        yield from self._new_parts(rows[begin:num_own], entries[begin:num_own])
        for first in range(num_own, len(rows), self._rows_per_part):
            yield _Planned(rows[first : first + self._rows_per_part], "")

    def _new_parts(self, rows: RowArray, entries: NDArray[np.uint64]) -> Iterator[_Planned]:
        for first in range(0, len(rows), self._rows_per_part):
            behind = min(first + self._rows_per_part, len(rows))
            if behind - first == self._rows_per_part or self._index.state.ended:
                yield _Planned(rows[first:behind], str(int(entries[behind - 1])))

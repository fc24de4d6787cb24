"""Keeps one file of results as the log has it: each chosen row once, in the chosen order, superseded ones taken out."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import numpy as np

from streamrunner.sinks.outputs.record import ATTEMPT_BITS

if TYPE_CHECKING:
    from array import array
    from collections.abc import Collection, Iterable, Sequence

    from numpy.typing import NDArray

    from streamrunner.runner.result_feed import ResultFeed
    from streamrunner.runner.row_index import Applied
    from streamrunner.runner.selection import Selection
    from streamrunner.sinks.outputs.record import ResultRecord

# A compressed frame should be large, and a reader should not wait long.
_FRAME_S = 5.0
_SYNC_EVERY = 20_000


class GrowingOutput(Protocol):
    """What results are appended to; `packed` has row and attempt of what is in it."""

    packed: array[int]

    @property
    def compressed(self) -> bool:
        """Whether syncing seldom pays."""

    def append(self, records: Iterable[ResultRecord]) -> None:
        """Add results at the end."""

    def sync(self) -> None:
        """Make them durable."""

    def drop(self, places: Collection[int]) -> None:
        """Take out the records at these places of `packed`."""


class FileExport:
    """`settle` makes the file what it should be by the log; `advance` does so with less work when it has grown."""

    def __init__(self, file: GrowingOutput, selection: Selection, feed: ResultFeed) -> None:
        self._file = file
        self._selection = selection
        self._index = feed.index
        self._results = feed.results
        self._next_row = 0
        self._synced = time.monotonic()

    def settle(self) -> None:
        """Take out what the log does not say (any more), then write all that is missing."""
        wanted = self._wanted()
        stale = self._stale(wanted)
        if stale:
            self._file.drop(stale)
        held = np.frombuffer(self._file.packed, np.uint64) >> np.uint64(ATTEMPT_BITS)
        missing = wanted[~np.isin(wanted, held.astype(np.int64))]
        self._write(missing.tolist())
        self._file.sync()

    def advance(self, applied: Applied) -> None:
        """Take in what the log has just said."""
        if applied.reopened or self._index.state.ended:
            self.settle()
        else:
            self._take(applied.ended)

    def _take(self, ended: Sequence[int]) -> None:
        """Write rows that have just ended; in the input's order as far as no open row comes before."""
        rows = self._passed() if self._selection.order == "input" else ended
        self._write([row for row in rows if self._selection.wants(self._index, row)])
        if not self._file.compressed or time.monotonic() - self._synced > _FRAME_S:
            self._sync()

    def _wanted(self) -> NDArray[np.int64]:
        rows = self._selection.ended_rows(self._index)
        if self._selection.order == "input":
            self._next_row = 0
            self._passed()
            rows = rows[rows < self._next_row]
        return rows

    def _passed(self) -> list[int]:
        """Rows that the first open row has just moved past."""
        first, num_rows = self._next_row, len(self._index.entries)
        if self._index.state.ended:
            self._next_row = num_rows
        while self._next_row < num_rows and self._index.is_ended(self._next_row):
            self._next_row += 1
        return list(range(first, self._next_row))

    def _stale(self, wanted: NDArray[np.int64]) -> Collection[int]:
        """Places in the file of records that are superseded, doubled, or out of the order."""
        packed = np.frombuffer(self._file.packed, np.uint64)
        attempts = np.frombuffer(self._index.attempts, np.uint32)[wanted].astype(np.uint64)
        right = wanted.astype(np.uint64) << np.uint64(ATTEMPT_BITS) | attempts
        if self._selection.order == "input":
            common = min(len(packed), len(right))
            differing = np.flatnonzero(packed[:common] != right[:common])
            return range(int(differing[0]) if len(differing) else common, len(packed))
        is_good = np.isin(packed, right)
        _, first_places = np.unique(packed, return_index=True)
        is_first = np.zeros(len(packed), np.bool_)
        is_first[first_places] = True
        return set(np.flatnonzero(~(is_good & is_first)).tolist())

    def _write(self, rows: Sequence[int]) -> None:
        records = self._results.records(rows)
        for first in range(0, len(rows), _SYNC_EVERY):
            self._file.append(islice(records, _SYNC_EVERY))
            if len(rows) - first > _SYNC_EVERY:
                self._sync()

    def _sync(self) -> None:
        self._synced = time.monotonic()
        self._file.sync()

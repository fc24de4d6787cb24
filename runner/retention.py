"""Results that may leave the log: those that every output has, under `retention: results`.

res     1 … 40 41 42 … 90        results.jsonl has all up to 90, failed.csv up to 41
        └─ gone ─┘                the slower one holds what it still needs, for a day after its last word
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from streamrunner.runner.row_index import seq_of
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.log import JobLog
from streamrunner.sinks.outputs.record import ATTEMPT_BITS

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

    from streamrunner.runner.job import JobContext
    from streamrunner.runner.result_feed import ResultFeed
    from streamrunner.runner.row_index import RowIndex
    from streamrunner.runner.selection import Selection
    from streamrunner.sinks.server import LogServer

_EVERY_S = 5.0


class ExportBeat:
    """One output's word to the log: that it lives, and which results it no longer needs there."""

    def __init__(self, job: JobContext, server: LogServer, name: str, required: list[str]) -> None:
        self._log = JobLog(server, job.keys, "export", patience_s=0.0)
        self._name = name
        self._required = required
        self._is_wanted = job.spec.events.retention == "results"
        self._next_s = 0.0

    def tell(self, feed: ResultFeed, selection: Selection, written: Callable[[], array[int]], *, now: bool) -> None:
        """At most every 5 s unless `now`. written: makes all that was appended durable, and says what it is.

        A log that does not answer is no fault of an export: the next word is as good.
        """
        if not self._is_wanted or (time.monotonic() < self._next_s and not now):
            return
        self._next_s = time.monotonic() + _EVERY_S
        until = durable_until(feed.index, selection, written())
        try:
            self._log.export(self._name, feed.last_id, until, self._required)
        except SinkError as error:
            if error.code not in ("log_unreachable", "job_archived"):
                raise


def durable_until(index: RowIndex, selection: Selection, written: array[int]) -> int:
    """The seq up to which an output has all results that it wants. written: row and attempt of each (`record.pack`)."""
    rows = selection.ended_rows(index)
    entries = np.frombuffer(index.entries, np.uint64)[rows]
    attempts = np.frombuffer(index.attempts, np.uint32)[rows].astype(np.uint64)
    wanted = rows.astype(np.uint64) << np.uint64(ATTEMPT_BITS) | attempts
    missing = entries[~np.isin(wanted, np.frombuffer(written, np.uint64)) & (entries > 0)]
    return seq_of(int(missing.min())) - 1 if missing.size else index.state.last_seq

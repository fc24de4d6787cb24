"""Which rows this worker may finish, kept in line with the log: after a join, after a split, after a range's last row.

Never wrong for long and never dangerous: the log refuses what is written for a row that belongs to somebody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrunner.sinks.log import ClaimedRange, JobLog, Reply, StepSource, claimed_range

if TYPE_CHECKING:
    from streamrunner.runner.feed import Feed
    from streamrunner.runner.flight import RowRun
    from streamrunner.runner.lease import LeaseKeeper
    from streamrunner.runner.runs import Runs
    from streamrunner.runner.writer import LogWriter

# Followers get this long to read the tokens of a worker that is gone, once its rows have ended.
_FOLLOW_MS = 120_000


class Ownership:
    """Tells feed, runs and writer of one worker what they have to let go of. Belongs to the worker thread."""

    def __init__(self, log: JobLog, lease: LeaseKeeper, feed: Feed, runs: Runs, writer: LogWriter) -> None:
        self._log = log
        self._lease = lease
        self._feed = feed
        self._runs = runs
        self._writer = writer

    def rejoin(self) -> int | None:
        """Acquire the lease anew and append all that is still this worker's again.

        Returns how many rows went to others meanwhile; None if the job has ended.
        """
        reply = self._lease.join(self._log)
        if reply["s"] != "OK":
            self._lease.faulted.clear()
            return None
        held = {one.id: one for one in map(claimed_range, reply["held"] or ())}
        num_taken = self._writer.rejoined(held)
        num_taken += len(self._runs.drop(lambda run: not _is_held(held.get(run.range), run)))
        self.reconcile(reply)
        self._runs.append_again()
        return num_taken

    def reconcile(self, joined: Reply) -> None:
        """Bring the ranges this worker believes to hold in line with those that a join's reply says it holds."""
        held = {one.id: one for one in map(claimed_range, joined["held"] or ())}
        for range_id, mine in list(self._feed.held.items()):
            if range_id not in held or held[range_id].claim != mine.claim:
                self._feed.drop(range_id)
        known = {run.row.index for run in self._runs.in_flight} | self._writer.pending_rows
        for one in held.values():
            sources = [*one.previous, StepSource(self._lease.worker, one.since)]
            self._feed.narrow(one.id, one.rows.stop)
            self._feed.adopt(self._lease.lease, one, sources, skip=known)

    def follow_splits(self) -> None:
        """Let go of rows that others have split off since the last flush."""
        limits = dict(self._writer.take_cuts())
        for range_id, limit in limits.items():
            self._feed.narrow(range_id, limit)
        if limits:
            self._runs.drop(lambda run: run.range in limits and run.row.index >= limits[run.range])

    def forget_predecessors(self) -> None:
        """Whoever finishes the last range of a dead worker lets its tokens go."""
        for worker in self._feed.take_predecessors() - {self._lease.worker}:
            self._log.forget(worker, _FOLLOW_MS)


def _is_held(held: ClaimedRange | None, run: RowRun) -> bool:
    return held is not None and held.claim == run.claim and run.row.index in held.rows

"""Delete jobs from the server: their keys and the ways to them, never a file.

    submit key ──▶ all keys of the job, in one step ──▶ pointer in sr:jobs

A crash between two of these leaves a job that is whole, or a pointer to nothing, which no verb shows; the same
command again goes on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.fold import ENDED_STATUSES
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import JobLog

if TYPE_CHECKING:
    from streamrunner.sinks.directory import JobDirectory, JobPointer
    from streamrunner.sinks.server import LogServer

# A submitter announces its job a moment before the log begins.
_SUBMIT_S = 3600.0


class PurgeCandidate(NamedTuple):
    """A job that has ended, and when (Unix ms)."""

    pointer: JobPointer
    status: str
    ended_ms: int


def ended_jobs(directory: JobDirectory, older_than_s: float, now_s: float | None = None) -> list[PurgeCandidate]:
    """Jobs that ended at least so many seconds ago, oldest first."""
    latest_ms = ((time.time() if now_s is None else now_s) - older_than_s) * 1000
    found: list[PurgeCandidate] = []
    for pointer in directory.jobs():
        meta = directory.meta(pointer.job_id)
        one = PurgeCandidate(pointer, meta.get("status", ""), int(meta.get("ended", 0)))
        if one.status in ENDED_STATUSES and one.ended_ms <= latest_ms:
            found.append(one)
    return found


class Purger:
    """Deletes jobs of one server. Every step is idempotent."""

    def __init__(self, server: LogServer, directory: JobDirectory, prefix: str) -> None:
        self._server = server
        self._directory = directory
        self._prefix = prefix

    def purge(self, job_id: str) -> int:
        """Delete one ended job; returns how many keys went, 0 if nothing was left of it.

        Raises RunnerError: `job_running` if it has not ended, `job_damaged` if its `meta` does not say so.
        """
        keys = JobKeys(job_id, self._prefix)
        self._refuse_running(job_id)
        self._directory.withdraw(job_id)
        reply = JobLog(self._server, keys, "purge", patience_s=10.0).purge()
        if reply["s"] == "BROKEN":
            raise RunnerError(
                "job_damaged",
                f"{job_id} has a log and no `meta`, so nobody can say whether it has ended: "
                f"run `runner fsck {job_id} --repair` first",
            )
        if reply["s"] == "RUNNING":
            raise _running(job_id, str(reply["status"]))
        self._directory.retract(job_id)
        return int(reply["keys"])

    def sweep(self, now_s: float | None = None) -> None:
        """Retract pointers whose job has been gone for an hour: of purges that were killed."""
        now_ms = (time.time() if now_s is None else now_s) * 1000
        alive = {one.job_id for one in self._directory.jobs()}
        for pointer in self._directory.pointers():
            if pointer.job_id not in alive and pointer.time < now_ms - _SUBMIT_S * 1000:
                self._directory.retract(pointer.job_id)

    def _refuse_running(self, job_id: str) -> None:
        """Before anything is touched; the server asks again in the step that deletes."""
        status = self._directory.meta(job_id).get("status")
        if status is not None and status not in ENDED_STATUSES:
            raise _running(job_id, status)


def _running(job_id: str, status: str) -> RunnerError:
    return RunnerError(
        "job_running",
        f"{job_id} has not ended ({status}): let it finish, or `runner cancel {job_id}` first; nothing was deleted",
    )

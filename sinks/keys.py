"""Names of the keys on the server: part of the public contract, so they are made here and nowhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_PREFIX = "sr"

# Braces would move the Cluster hash tag, blanks and glob characters would break ACL patterns.
_SAFE = re.compile(r"[A-Za-z0-9_.:-]+")


@dataclass(frozen=True, slots=True)
class JobKeys:
    """The keys of one job, all in one Cluster slot: the braces around the job id are the hash tag.

    Raises ValueError when the id or the prefix holds characters that would break a key pattern.
    """

    job_id: str
    prefix: str = DEFAULT_PREFIX

    def __post_init__(self) -> None:
        _checked("job id", self.job_id)
        _checked("key prefix", self.prefix)

    @property
    def log(self) -> str:
        """Stream of the job's history, one slim entry per event."""
        return self._key("log")

    @property
    def res(self) -> str:
        """Stream of result payloads, under the ids of their terminal events."""
        return self._key("res")

    @property
    def work(self) -> str:
        """Stream of row ranges to run, with the consumer group `workers`."""
        return self._key("work")

    @property
    def claims(self) -> str:
        """Hash from range to claim number and worker."""
        return self._key("claims")

    @property
    def done(self) -> str:
        """Bitmap with one bit per row that has its terminal event."""
        return self._key("done")

    @property
    def attempts(self) -> str:
        """Hash from row to the number of its latest attempt; only of rows that were retried."""
        return self._key("attempts")

    @property
    def meta(self) -> str:
        """Hash of derived state: status, counters, epoch, gen, last flush per worker."""
        return self._key("meta")

    @property
    def blobs(self) -> str:
        """Hash from SHA-256 to the bytes of a result that is too large for its stream."""
        return self._key("blobs")

    @property
    def exporters(self) -> str:
        """Hash from output to `<Unix ms> <seq>`: its last heartbeat, and up to where it has all results it wants."""
        return self._key("exporters")

    def lease(self, worker: str) -> str:
        """Return the key that a living worker keeps from expiring."""
        return self._key(f"lease:{_checked('worker id', worker)}")

    def steps(self, worker: str) -> str:
        """Return the stream of token deltas that one worker writes."""
        return self._key(f"steps:{_checked('worker id', worker)}")

    def _key(self, name: str) -> str:
        return f"{self.prefix}:{{{self.job_id}}}:{name}"


def jobs_key(prefix: str = DEFAULT_PREFIX) -> str:
    """Return the stream that holds a pointer per job."""
    return f"{_checked('key prefix', prefix)}:jobs"


def submit_key(prefix: str, key: str) -> str:
    """Return the string that maps a submission key to its job, set NX: two submitters make one job."""
    return f"{_checked('key prefix', prefix)}:submit:{key}"


def _checked(what: str, value: str) -> str:
    if not _SAFE.fullmatch(value):
        raise ValueError(f"{what} {value!r} may hold only letters, digits and _ . : -")
    return value

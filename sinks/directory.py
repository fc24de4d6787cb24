"""Which jobs a server knows: a pointer stream for all, and a key per (name, spec path) for idempotent submits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.keys import JobKeys, jobs_key, submit_key

if TYPE_CHECKING:
    import redis

LAST = "last"


class JobPointer(NamedTuple):
    """One job as `sr:jobs` names it; `time` is Unix ms."""

    job_id: str
    name: str
    time: int


class JobDirectory:
    """Finds jobs by id, unique prefix, name or `last`. Reads need one connection, writes are idempotent."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client: Any = client
        self._prefix = prefix

    def reserve(self, key: str, job_id: str) -> str:
        """The job that owns the submit key: `job_id` if nobody was first."""
        name = submit_key(self._prefix, key)
        if self._client.set(name, job_id, nx=True):
            return job_id
        return str(self._client.get(name).decode())

    def replace(self, key: str, expected: str, job_id: str) -> str:
        """Point the submit key at a new job unless somebody else moved it first; returns its owner."""
        name = submit_key(self._prefix, key)
        with self._client.pipeline(transaction=True) as pipe:
            pipe.watch(name)
            current = pipe.get(name)
            if current is not None and current.decode() != expected:
                return str(current.decode())
            pipe.multi()
            pipe.set(name, job_id)
            try:
                pipe.execute()
            except _watch_error():
                return self.reserve(key, job_id)
        return job_id

    def announce(self, job_id: str, name: str) -> None:
        """Add the job to `sr:jobs`; a second pointer to one job is harmless."""
        self._client.xadd(jobs_key(self._prefix), {"job": job_id, "name": name})

    def jobs(self) -> list[JobPointer]:
        """All jobs, oldest first, each once."""
        found: dict[str, JobPointer] = {}
        for raw_id, fields in self._client.xrange(jobs_key(self._prefix)):
            job_id = fields[b"job"].decode()
            pointer = JobPointer(job_id, fields[b"name"].decode(), int(raw_id.partition(b"-")[0]))
            found.setdefault(job_id, pointer)
        return [one for one in found.values() if self._client.exists(JobKeys(one.job_id, self._prefix).log)]

    def find(self, wanted: str) -> JobPointer:
        """The job that `wanted` means. Raises SinkError (`job_not_found`, `job_ambiguous`)."""
        jobs = self.jobs()
        if not jobs:
            raise SinkError("job_not_found", "there are no jobs here yet: start one with `runner submit job.yaml`")
        if wanted == LAST:
            return jobs[-1]
        named = [one for one in jobs if one.name == wanted]
        if named:
            return named[-1]
        matches = [one for one in jobs if _matches(one.job_id, wanted)]
        if len(matches) == 1:
            return matches[0]
        if not matches:
            raise SinkError("job_not_found", f"no job is called {wanted!r}: `runner list` shows ids and names")
        ids = ", ".join(one.job_id for one in matches[:4])
        raise SinkError("job_ambiguous", f"{wanted!r} fits {len(matches)} jobs ({ids} …): give more characters")

    def meta(self, job_id: str) -> dict[str, str]:
        """The derived figures of a job: status, counters, times (Unix ms)."""
        raw = self._client.hgetall(JobKeys(job_id, self._prefix).meta)
        return {key.decode(): value.decode() for key, value in raw.items()}


def _matches(job_id: str, wanted: str) -> bool:
    return bool(wanted) and (job_id.startswith(wanted) or job_id.removeprefix("job_").startswith(wanted.upper()))


def _watch_error() -> type[Exception]:
    from redis.exceptions import WatchError

    return WatchError

"""Which jobs a server knows: a pointer stream for all, and a key per (name, spec path) for idempotent submits."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.keys import JobKeys, jobs_key, submit_key

if TYPE_CHECKING:
    import redis

LAST = "last"
OPEN_STATUSES = ("validating", "in_progress", "cancelling")
_COUNTS = ("rows", "completed", "failed", "cancelled", "expired", "completion_tokens")
_STANDING = ("status", "paused", "priority", "limits", "clock", *_COUNTS)
_SCAN_COUNT = 1_000


class JobPointer(NamedTuple):
    """One job as `sr:jobs` names it; `time` is Unix ms."""

    job_id: str
    name: str
    time: int


class OpenJob(NamedTuple):
    """A job that has not ended, with those of its derived figures that say what to do with it."""

    job_id: str
    meta: dict[str, str]

    @property
    def priority(self) -> int:
        """Higher goes first."""
        return int(self.meta.get("priority", 0))


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

    def owner(self, key: str) -> str | None:
        """The job that owns a submit key, if any."""
        found = self._client.get(submit_key(self._prefix, key))
        return None if found is None else str(found.decode())

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

    def withdraw(self, job_id: str) -> None:
        """Forget the submit key of a job, so that the next submit of its file makes a new one. Idempotent."""
        for name in self._client.scan_iter(match=submit_key(self._prefix, "") + "*", count=_SCAN_COUNT):
            with self._client.pipeline(transaction=True) as pipe:
                pipe.watch(name)
                if pipe.get(name) != job_id.encode():
                    continue
                pipe.multi()
                pipe.delete(name)
                with suppress(_watch_error()):  # somebody has just pointed it at another job
                    pipe.execute()

    def retract(self, job_id: str) -> None:
        """Take all pointers to a job out of `sr:jobs`. Idempotent."""
        stream = jobs_key(self._prefix)
        found = [raw_id for raw_id, fields in self._client.xrange(stream) if fields[b"job"] == job_id.encode()]
        if found:
            self._client.xdel(stream, *found)

    def jobs(self) -> list[JobPointer]:
        """All jobs, oldest first, each once."""
        return [one for one in self.pointers() if self._client.exists(JobKeys(one.job_id, self._prefix).log)]

    def pointers(self) -> list[JobPointer]:
        """All jobs that were ever announced and not retracted, whether they (still) have a log or not."""
        found: dict[str, JobPointer] = {}
        for raw_id, fields in self._client.xrange(jobs_key(self._prefix)):
            job_id = fields[b"job"].decode()
            pointer = JobPointer(job_id, fields[b"name"].decode(), int(raw_id.partition(b"-")[0]))
            found.setdefault(job_id, pointer)
        return list(found.values())

    def open_jobs(self) -> list[OpenJob]:
        """The jobs that have not ended, oldest first; one round trip however many have."""
        pointers: dict[str, None] = {}
        for _, fields in self._client.xrange(jobs_key(self._prefix)):
            pointers.setdefault(fields[b"job"].decode())
        pipe = self._client.pipeline(transaction=False)
        for job_id in pointers:
            pipe.hmget(JobKeys(job_id, self._prefix).meta, *_STANDING)
        found = []
        for job_id, values in zip(pointers, pipe.execute(), strict=True):
            meta = {name: raw.decode() for name, raw in zip(_STANDING, values, strict=True) if raw is not None}
            if meta.get("status") in OPEN_STATUSES:
                found.append(OpenJob(job_id, meta))
        return found

    def has_claimable(self, job_id: str) -> bool:
        """Whether a worker that joined now would find rows: ranges that nobody took, or whose worker is gone."""
        from redis.exceptions import ResponseError

        keys = JobKeys(job_id, self._prefix)
        try:
            [group] = self._client.xinfo_groups(keys.work)
            pending = self._client.xpending(keys.work, group["name"])
            newest = self._client.xrevrange(keys.work, count=1)
        except (ResponseError, ValueError):
            return False
        if newest and newest[0][0] != group["last-delivered-id"]:
            return True
        owners = [one["name"].decode() for one in pending["consumers"]]
        return any(not self._client.exists(keys.lease(owner)) for owner in owners)

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

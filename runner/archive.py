"""Move an ended job from its server to the data dir: its history and results as files that the read verbs still read.

    read all of it ──▶ write, sync, compare ──▶ rename into place ──▶ purge

A crash before the rename leaves the job where it was; one before the purge leaves both, and the same command goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.fold import ENDED_STATUSES
from streamrunner.runner.identity import Identity
from streamrunner.runner.place import PREFIX
from streamrunner.sinks.archive import Archives, JobFolder, Manifest, check
from streamrunner.sinks.archive_server import ArchiveServer
from streamrunner.sinks.blob import parse_reference
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.wire import parse_log_entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from streamrunner.runner.purge import Purger
    from streamrunner.runner.submission import Request
    from streamrunner.sinks.archive import Entry
    from streamrunner.sinks.directory import JobDirectory, JobPointer

_LAST = "last"
# Payloads may be large: this many are held at a time.
_PAGE = 256


class Archiver:
    """Archives jobs of one server under one data dir."""

    def __init__(self, client: redis.Redis, archives: Archives, purger: Purger, prefix: str) -> None:
        self._client: Any = client
        self._archives = archives
        self._purger = purger
        self._prefix = prefix

    def archive(self, pointer: JobPointer) -> JobFolder:
        """Write one ended job to files, prove them, and take it off the server.

        Raises RunnerError (`job_running`), SinkError (`archive_unwritable`, `archive_damaged`, `results_missing`).
        """
        keys = JobKeys(pointer.job_id, self._prefix)
        manifest = self._describe(pointer, keys)
        folder = self._archives.get(pointer.job_id)
        if folder is None or folder.manifest.last_id != manifest.last_id:
            streams = {
                "log": self._entries(keys.log),
                "results": self._results(keys),
                "ranges": self._entries(keys.work),
            }
            folder = self._archives.write(manifest, streams)
        check(folder)
        self._refuse_growth(keys, folder)
        self._purger.purge(pointer.job_id)
        return folder

    def _describe(self, pointer: JobPointer, keys: JobKeys) -> Manifest:
        with self._client.pipeline(transaction=True) as pipe:
            pipe.xrevrange(keys.log, count=1)
            for name in (keys.meta, keys.claims, keys.attempts):
                pipe.hgetall(name)
            pipe.get(keys.done)
            last, *hashes, done = pipe.execute()
        meta, claims, attempts = (
            {name.decode(): value.decode() for name, value in fields.items()} for fields in hashes
        )  # fmt: skip
        status = meta.get("status", "unknown")
        if status not in ENDED_STATUSES:
            raise RunnerError(
                "job_running",
                f"{pointer.job_id} has not ended ({status}): only an ended job can be archived; let it finish, or "
                f"`runner cancel {pointer.job_id}` first",
            )
        return Manifest(
            1, pointer.job_id, pointer.name, pointer.time, last[0][0].decode(), meta, claims, attempts,
            (done or b"").hex(), {},
        )  # fmt: skip

    def _refuse_growth(self, keys: JobKeys, folder: JobFolder) -> None:
        last = self._client.xrevrange(keys.log, count=1)
        if last and last[0][0].decode() != folder.manifest.last_id:
            raise RunnerError(
                "job_moved", f"{keys.job_id} has been reopened meanwhile: nothing was taken off the server"
            )

    def _entries(self, key: str) -> Iterator[Entry]:
        start = "-"
        while page := self._client.xrange(key, start, count=_PAGE):
            yield from page
            start = f"({page[-1][0].decode()}"

    def _results(self, keys: JobKeys) -> Iterator[Entry]:
        for raw_id, fields in self._entries(keys.res):
            ref = parse_reference(fields[b"p"])
            if ref is not None:
                fields = {**fields, b"p": ref.check(self._client.hget(keys.blobs, ref.sha256), keys.job_id)}
            yield raw_id, fields


def find_archived(data_dir: Path, directory: JobDirectory, wanted: str) -> JobFolder | None:
    """The archived job that `wanted` means, if no job on the server does; of `last`, whichever was submitted later."""
    archived = Archives(data_dir).all()
    if not archived:
        return None
    on_server = directory.jobs()
    ids = {one.job_id for one in on_server}
    candidates = [one for one in archived if one.manifest.job not in ids]
    if wanted == _LAST:
        newest = max((one.time for one in on_server), default=-1)
        return next((one for one in reversed(candidates) if one.manifest.announced_ms > newest), None)
    try:
        directory.find(wanted)
    except SinkError as error:
        if error.code != "job_not_found":
            raise
        return _match(candidates, wanted)
    return None


def find_finished(data_dir: Path, request: Request) -> JobFolder | None:
    """The archived job that a submit asks for again: same name, folder and identity."""
    for folder in reversed(Archives(data_dir).all()):
        if folder.manifest.name != request.spec.name:
            continue
        reader: Any = ArchiveServer(folder, PREFIX).reader()
        [(raw_id, fields)] = reader.xrange(JobKeys(folder.manifest.job, PREFIX).log, count=1)
        submitted = parse_log_entry(raw_id, fields).data
        is_here = submitted["base"] == str(request.spec_path.parent.resolve())
        if is_here and not request.identity.differences(Identity.from_json(submitted["identity"])):
            return folder
    return None


def _match(candidates: list[JobFolder], wanted: str) -> JobFolder | None:
    named = [one for one in candidates if one.manifest.name == wanted]
    if named:
        return named[-1]
    matches = [one for one in candidates if wanted and _begins(one.manifest.job, wanted)]
    if len(matches) > 1:
        raise SinkError("job_ambiguous", f"{wanted!r} fits {len(matches)} archived jobs: give more characters")
    return matches[0] if matches else None


def _begins(job_id: str, wanted: str) -> bool:
    return job_id.startswith(wanted) or job_id.removeprefix("job_").lower().startswith(wanted.lower())


def archived_already(folder: JobFolder) -> RunnerError:
    """What a verb says that would change an archived job."""
    return RunnerError(
        "job_archived",
        f"{folder.manifest.job} is archived in {folder.path}, so nothing about it can change any more; "
        "`runner submit --new` runs its file afresh",
    )

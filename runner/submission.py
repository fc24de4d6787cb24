"""Which job a `submit` means: a new one, one to go on with, or one that is done. Two submitters never make two jobs.

key (name, spec path) ──SET NX──▶ job id ──▶ log?   none: a submitter died, finish its submit
                                              unfinished, same identity: go on      other identity: refuse
                                              ended, same identity: done            other identity: a new job
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrunner.runner.errors import ExitCode, RunnerError
from streamrunner.runner.fold import JobState, fold
from streamrunner.runner.identity import Identity, submit_key_of
from streamrunner.runner.ids import new_job_id
from streamrunner.runner.job import JobContext
from streamrunner.sinks.directory import JobDirectory
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import JobLog
from streamrunner.sinks.reader import read_log

if TYPE_CHECKING:
    import redis

    from streamrunner.runner.inputs import InputScan
    from streamrunner.runner.intake import Report
    from streamrunner.runner.spec import JobSpec
    from streamrunner.sinks.server import LogServer

PREFIX = "sr"
# What may differ when an unfinished job goes on; the rest is its identity.
_MAY_CHANGE = ("engine", "events", "outputs", "limits", "stop_when", "priority")


@dataclass(frozen=True, slots=True)
class Submission:
    """The job that a submit means, as its log has it. `is_new` says whether this call made it."""

    job: JobContext
    state: JobState
    is_new: bool


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asks for: a checked spec, its scanned input, and where both come from."""

    spec_path: Path
    spec: JobSpec
    scan: InputScan
    identity: Identity
    force_new: bool


def make_request(
    spec_path: Path, spec: JobSpec, data_dir: Path, *, force_new: bool = False, report: Report | None = None
) -> Request:
    """Check every row of a spec's input and say what the job is. Raises as `scan_input` and `make_identity` do."""
    from streamrunner.runner.identity import make_identity
    from streamrunner.runner.inputs import scan_input
    from streamrunner.runner.intake import silent

    scan = scan_input(spec, spec_path.parent, data_dir, report or silent)
    identity = make_identity(spec, scan, data_dir / "cache", spec_path.parent)
    return Request(spec_path.resolve(), spec, scan, identity, force_new)


class Submitter:
    """Finds or makes the job of a request."""

    def __init__(self, server: LogServer, client: redis.Redis) -> None:
        self._server = server
        self._client = client
        self._directory = JobDirectory(client, PREFIX)

    def submit(self, request: Request) -> Submission:
        """Raises RunnerError (`job_changed`) if an unfinished job of this name and path differs from the request."""
        key = submit_key_of(request.spec.name, request.spec_path)
        fresh_id = new_job_id()
        owner = self._directory.reserve(key, fresh_id)
        if owner == fresh_id:
            return self._create(owner, request)
        state = self._fold(owner)
        if state is None:
            return self._create(owner, request)
        if not (request.force_new or (state.ended and self._differences(state, request))):
            return self._continue(owner, state, request)
        owner = self._directory.replace(key, owner, fresh_id)
        if owner == fresh_id:
            return self._create(owner, request)
        return self.submit(Request(request.spec_path, request.spec, request.scan, request.identity, force_new=False))

    def is_known(self, request: Request) -> bool:
        """Whether a job of this name and file is on the server, or was there and was not taken off."""
        return self._directory.owner(submit_key_of(request.spec.name, request.spec_path)) is not None

    def continue_archived(self, job_id: str) -> Submission:
        """A job that has ended and is read from its archive; nothing is written."""
        state = self._fold(job_id)
        if state is None:
            raise RunnerError("job_not_found", f"the archive of {job_id} holds no log")
        return Submission(_context(job_id, state), state, is_new=False)

    def _create(self, job_id: str, request: Request) -> Submission:
        scan, spec = request.scan, request.spec
        data: dict[str, Any] = {
            "name": spec.name,
            "rows": scan.rows,
            "ranges": len(scan.ranges),
            "seed": spec.sampling.seed if spec.sampling.seed is not None else secrets.randbits(63),
            "spec": spec.model_dump(mode="json", exclude_none=True),
            "identity": request.identity.to_json(),
            "base": str(request.spec_path.parent.resolve()),
            "invalid": scan.num_errors,
        }
        self._directory.announce(job_id, spec.name)
        self._log(job_id).submit(data, scan.rows, [asdict(one) for one in scan.ranges])
        state = self._fold(job_id)
        if state is None:
            raise RunnerError(
                "submit_lost",
                f"{job_id} was submitted but its log is gone: is somebody purging this server?",
                ExitCode.INTERNAL,
            )
        return Submission(_context(job_id, state), state, is_new=True)

    def _continue(self, job_id: str, state: JobState, request: Request) -> Submission:
        differences = self._differences(state, request)
        if differences:
            raise RunnerError(
                "job_changed",
                f"{job_id} is unfinished and differs from {request.spec_path.name}: {'; '.join(differences)}. "
                "Undo the change to go on with it, or `--new` to leave it and run a fresh job",
                ExitCode.INVALID,
            )
        changes = _changes(state.spec, request.spec)
        if not state.ended and (changes or state.paused):
            from streamrunner.runner.ids import new_ulid

            self._log(job_id).control(new_ulid(), "resume", {"changes": changes} if changes else {})
            state = self._fold(job_id) or state
        return Submission(_context(job_id, state), state, is_new=False)

    def _differences(self, state: JobState, request: Request) -> list[str]:
        return request.identity.differences(Identity.from_json(state.submission["identity"]))

    def _fold(self, job_id: str) -> JobState | None:
        return _fold(self._client, job_id)

    def _log(self, job_id: str) -> JobLog:
        return JobLog(self._server, JobKeys(job_id, PREFIX), "submit", patience_s=30.0)


def find_job(client: redis.Redis, job_id: str) -> JobContext:
    """A submitted job as its log has it. Raises RunnerError (`job_not_found`) if it has no log."""
    state = _fold(client, job_id)
    if state is None:
        raise RunnerError("job_not_found", f"{job_id} has no log: is somebody purging this server?")
    return _context(job_id, state)


def _fold(client: redis.Redis, job_id: str) -> JobState | None:
    state = fold(read_log(client, JobKeys(job_id, PREFIX)))
    return state if state.last_seq else None


def _context(job_id: str, state: JobState) -> JobContext:
    from streamrunner.runner.spec import JobSpec

    spec = JobSpec.model_validate(state.spec)
    base = Path(state.submission["base"])
    return JobContext(
        job_id, JobKeys(job_id, PREFIX), spec, int(state.submission["seed"]), base, state.submitted_ms // 1000
    )


def _changes(old: dict[str, Any], new: JobSpec) -> dict[str, Any]:
    wanted = new.model_dump(mode="json", exclude_none=True)
    if "priority" not in new.model_fields_set:
        # The verb may have given another one since: a file that is silent does not take it back.
        del wanted["priority"]
    return {name: wanted[name] for name in _MAY_CHANGE if name in wanted and wanted[name] != old.get(name)}

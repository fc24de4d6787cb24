"""`runner submit`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamrunner.runner.cli.common import Where, opened, where_options
from streamrunner.runner.errors import ExitCode, RunnerError
from streamrunner.runner.place import PREFIX
from streamrunner.runner.summary import state_as_json
from streamrunner.runner.terminal import clean

if TYPE_CHECKING:
    from streamrunner.runner.display import Display
    from streamrunner.runner.fold import JobState
    from streamrunner.runner.session import Session
    from streamrunner.runner.signals import StopFlag
    from streamrunner.runner.submission import Request, Submission
    from streamrunner.sinks.server import LogServer

_SHOWN_ERRORS = 5
_SAY_EVERY_S = 5.0


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--new", "force_new", is_flag=True, help="Run a fresh job even if this one is done or unfinished.")
@click.option("--quiet", "-q", is_flag=True, help="No progress, only the last line.")
@click.option("--json", "as_json", is_flag=True, help="The final state as one JSON object on stdout.")
@click.option(
    "--log-timeout", default=600.0, show_default=True, metavar="SECONDS", help="Wait this long for a log that is away."
)
@where_options
def submit(where: Where, spec: Path, force_new: bool, quiet: bool, as_json: bool, log_timeout: float) -> int:
    """Run a job, or go on with it: the same command again is the whole recovery procedure.

    \b
    runner submit job.yaml            run it, go on with it, attach to it, or learn that it is done
    runner submit job.yaml --new      run it afresh
    zcat rows.gz | runner submit job.yaml             with `input: {path: -}` in the job file

    Ctrl-C, SIGTERM and SIGHUP keep all that is done and exit with 75; after a kill -9 nothing finished is run twice.
    """
    from streamrunner.runner.display import Display
    from streamrunner.runner.signals import StopFlag

    stop = StopFlag()
    stop.install()
    with opened(where) as server, Display(quiet=quiet or as_json) as display:
        for notice in server.notices():
            display.say(f"note: {notice}")
        request = _request(spec, where, force_new, display, stop)
        return _run(server, where, request, stop, display, as_json, log_timeout)


class _Looking:
    """Says now and then how far the look at the rows is, and ends it when a signal comes: it may take minutes."""

    def __init__(self, display: Display, stop: StopFlag) -> None:
        self._display = display
        self._stop = stop
        self._next = time.monotonic() + _SAY_EVERY_S

    def __call__(self, doing: str, num_rows: int) -> None:
        if self._stop.is_set():
            raise RunnerError(
                "stopped_early",
                f"{self._stop.reason} while {doing}: nothing was submitted, run the same command again",
                ExitCode.STOPPED,
            )
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _SAY_EVERY_S
            self._display.say(f"{doing}{f': {num_rows:,} so far' if num_rows else ''} …")


def _request(path: Path, where: Where, force_new: bool, display: Display, stop: StopFlag) -> Request:
    from streamrunner.runner.spec import load_spec
    from streamrunner.runner.submission import make_request

    looking = _Looking(display, stop)
    request = make_request(path, load_spec(path), where.data_dir, force_new=force_new, report=looking)
    scan = request.scan
    for notice in scan.notices:
        display.say(f"note: {notice}")
    for error in scan.errors[:_SHOWN_ERRORS]:
        display.say(f"{error.where}: {error.message} [{error.code}]")
    if scan.num_errors:
        display.say(f"{scan.num_errors} of {scan.rows} rows cannot run; each becomes a failed row with its reason")
    return request


def _run(
    server: LogServer,
    where: Where,
    request: Request,
    stop: StopFlag,
    display: Display,
    as_json: bool,
    log_timeout: float,
) -> int:
    from streamrunner.runner.session import Session, SessionOptions

    server, submission = _submission(server, where, request)
    job_id = submission.job.job_id
    session = Session(submission.job, server, SessionOptions(where.data_dir, log_timeout), stop, display)
    if submission.state.ended:
        session.export()
        return _close(job_id, submission.state, as_json, f"{job_id} is already done: ")
    display.say(_greeting(submission))
    for notice in _size_notices(server, where, request) if submission.is_new else ():
        display.say(f"note: {notice}")
    state = _guarded_run(session, stop, display)
    return _close(job_id, state, as_json, "")


def _submission(server: LogServer, where: Where, request: Request) -> tuple[LogServer, Submission]:
    """The job that is meant, and where its log is: on the server, or in its archive if it was moved there."""
    from streamrunner.runner.archive import find_finished
    from streamrunner.runner.submission import Submitter
    from streamrunner.sinks.archive_server import ArchiveServer

    submitter = Submitter(server, server.client())
    folder = None if request.force_new or submitter.is_known(request) else find_finished(where.data_dir, request)
    if folder is None:
        return server, submitter.submit(request)
    files = ArchiveServer(folder, PREFIX)
    return files, Submitter(files, files.client()).continue_archived(folder.manifest.job)


def _size_notices(server: LogServer, where: Where, request: Request) -> list[str]:
    """Whether the job's log may become larger than its server."""
    import shutil

    from redis.exceptions import RedisError

    from streamrunner.runner.log_size import Room, forecast_size, memory_left, size_notices

    try:
        with server.client() as client:
            info: Any = client.info("memory")
    except RedisError:
        return []  # a user without INFO: what is not known cannot be warned of
    disk = shutil.disk_usage(where.data_dir).free if server.local else None
    size = forecast_size(request.spec, request.scan.ranges)
    return size_notices(size, Room(memory_left(info), disk), server.address)


def _guarded_run(session: Session, stop: StopFlag, display: Display) -> JobState:
    """A log that fails while we stop is no news: the lease runs out by itself and the same command continues."""
    from streamrunner.sinks.errors import SinkError

    try:
        return session.run()
    except SinkError as error:
        if not stop.is_set():
            raise
        display.say(f"note: {error.message}")
        return session.state


def _greeting(submission: Submission) -> str:
    state, job = submission.state, submission.job
    if submission.is_new:
        return f"{job.job_id} {state.name}: {state.num_rows} rows"
    return f"{job.job_id} {state.name}: going on with {state.open_rows} open rows of {state.num_rows}"


def _close(job_id: str, state: JobState, as_json: bool, prefix: str) -> int:
    code = _exit_code(state)
    if as_json:
        click.echo(json.dumps(state_as_json(job_id, state), ensure_ascii=False))
        return code
    counts = f"{state.completed} completed, {state.failed} failed"
    for name, count in (("cancelled", state.cancelled), ("expired", state.expired)):
        counts += f", {count} {name}" if count else ""
    if not state.ended:
        how = "paused" if state.paused else "stopped"
        counts += f", {state.open_rows} open: {how}, run the same command again to continue"
        if state.pause_reason:
            counts += f" ({clean(state.pause_reason)})"
    elif state.limit is not None:
        counts += f": {clean(state.reason or state.limit)}"
    outputs = ", ".join(clean(str(one["path"])) for one in state.spec.get("outputs", ()))
    click.echo(f"{prefix}{counts}" + (f" → {outputs}" if outputs and state.ended else ""))
    return code


def _exit_code(state: JobState) -> int:
    if not state.ended:
        return ExitCode.STOPPED
    if state.status == "completed":
        return ExitCode.FAILED_ROWS if state.completed < state.num_rows else ExitCode.OK
    if state.limit is not None or state.status == "expired":
        return ExitCode.LIMIT
    return ExitCode.CANCELLED if state.status == "cancelled" else ExitCode.INVALID

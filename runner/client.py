"""Jobs from a program or a notebook: submit, look, read results and events, control.

A `Client` writes to the log and reads from it. Rows are run by whoever works on the job: a `runner worker`, a `runner
submit` of the same file, or `Job.run` in this very process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from streamrunner.runner.control import Controller
from streamrunner.runner.errors import RunnerError
from streamrunner.runner.event_stream import Source, Watch, WatchOptions
from streamrunner.runner.follower import ABANDONED_S
from streamrunner.runner.job_status import JobStatus, read_status
from streamrunner.runner.place import PREFIX, Place
from streamrunner.runner.result_stream import ResultOptions, ResultPages, Results, abandoned
from streamrunner.runner.view import View
from streamrunner.sinks.directory import JobDirectory
from streamrunner.sinks.errors import LogUnreachable
from streamrunner.sinks.keys import JobKeys

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable

    import redis

    from streamrunner.runner.job_events import EndedEvent
    from streamrunner.runner.spec import JobSpec
    from streamrunner.sinks.server import LogServer

T = TypeVar("T")


class Client:
    """One log and its jobs; thread-safe. Opens the log on first use and holds it until `close` (or the `with` ends).

    redis_url, data_dir: as for `runner`; RUNNER_REDIS_URL and RUNNER_DATA_DIR otherwise. log_timeout_s: how long a log
    that is away is waited for. Methods raise RunnerError and SinkError, both with a stable `code`.
    """

    def __init__(
        self,
        *,
        redis_url: str | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        log_timeout_s: float = 600.0,
    ) -> None:
        self._place = Place.of(redis_url, data_dir)
        self._guard = threading.Lock()
        self._opened: tuple[LogServer, redis.Redis] | None = None
        self.log_timeout_s = log_timeout_s

    @property
    def data_dir(self) -> Path:
        """Where the private server, spooled input and converted models are."""
        return self._place.data_dir

    @property
    def server(self) -> LogServer:
        """The log's server, opened if need be."""
        return self._open()[0]

    def submit(
        self,
        spec: str | os.PathLike[str] | Mapping[str, Any] | JobSpec,
        *,
        base_dir: str | os.PathLike[str] | None = None,
        new: bool = False,
        wait: bool = False,
    ) -> Job:
        """Check a job and every row of its input, and write it to the log; nothing is computed here.

        spec: a job file, or what would stand in one, as a dict or JobSpec (it needs a `name`; paths are relative to
        base_dir, the current folder by default). The same name from the same place again is the same job: it is
        returned as it is, finished or not. new: a fresh job in any case. wait: until it has ended, as `Job.wait`.
        Raises RunnerError (`invalid_spec`, `unknown_key`, `job_changed`, those of the input), EngineError for an
        unknown model.
        """
        from streamrunner.runner.submission import Submitter, make_request

        checked, path = _checked_spec(spec, base_dir)
        request = make_request(path, checked, self.data_dir, force_new=new)
        submission = self.ask(lambda client: Submitter(self.server, client).submit(request))
        job = Job(self, submission.job.job_id, checked.name)
        if wait:
            job.wait()
        return job

    def job(self, job: str = "last") -> Job:
        """A job by id, unique prefix of it, name, or `last`. Raises SinkError (`job_not_found`, `job_ambiguous`)."""
        pointer = self.ask(lambda client: JobDirectory(client, PREFIX).find(job))
        return Job(self, pointer.job_id, pointer.name)

    def jobs(self) -> list[Job]:
        """All jobs of the log, oldest first."""
        pointers = self.ask(lambda client: JobDirectory(client, PREFIX).jobs())
        return [Job(self, one.job_id, one.name) for one in pointers]

    def ask(self, question: Callable[[redis.Redis], T]) -> T:
        """Put a question to the server; once more if it had gone away meanwhile. Raises LogUnreachable."""
        from redis.exceptions import ConnectionError as Disconnected
        from redis.exceptions import TimeoutError as TimedOut

        server, client = self._open()
        try:
            return question(client)
        except (Disconnected, TimedOut, OSError):
            server.revive()
        try:
            return question(client)
        except (Disconnected, TimedOut, OSError) as error:
            raise LogUnreachable(f"the log at {server.address} does not answer: {error}") from error

    def close(self) -> None:
        """Give up the log; a private server ends soon after its last user."""
        with self._guard:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened[1].close()
            opened[0].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        from streamrunner.sinks.address import mask_url

        return f"<Client of {mask_url(self._place.redis_url) if self._place.redis_url else self.data_dir}>"

    def _open(self) -> tuple[LogServer, redis.Redis]:
        with self._guard:
            if self._opened is None:
                server = self._place.open()
                self._opened = server, server.client()
            return self._opened


class Job:
    """One job of a client's log. It holds no state: every method looks."""

    def __init__(self, client: Client, job_id: str, name: str) -> None:
        self.client = client
        self.id = job_id
        self.name = name

    def status(self) -> JobStatus:
        """Where the job is now: rows, tokens, rates, time left.

        Raises SinkError (`job_not_found`) once it is purged.
        """
        self.client.ask(lambda _: self._controller.settle())
        return self.client.ask(lambda client: read_status(client, self._keys, self.name))

    def results(
        self,
        *,
        rows: Literal["all", "completed", "failed"] = "all",
        order: Literal["completion", "input"] = "completion",
        follow: bool = True,
        worker_timeout_s: float | None = ABANDONED_S,
    ) -> Results:
        """Iterate over the lines of OpenAI's batch output, as dicts, each row once: those there are, then those to
        come.

        rows: all of them, those with a result, or those without (failed, cancelled, expired). order: as they end, or as
        they stand in the input (then a row waits for those before it). follow: False gives what there is now and stops.
        A row that is retried while this waits comes again with its new result. Raises RunnerError (`job_abandoned`)
        where rows are open and no worker has held the job for worker_timeout_s.
        """
        return Results(lambda: self.result_pages(rows, order, follow=follow, worker_timeout_s=worker_timeout_s))

    def events(
        self,
        *,
        since: str | None = None,
        snapshot: bool = False,
        types: Collection[str] | None = None,
        rows: Collection[int] | None = None,
        tokens: bool = True,
        follow: bool = True,
        worker_timeout_s: float | None = ABANDONED_S,
        timeout_s: float | None = None,
    ) -> Watch:
        """Iterate over the job's events; see `watch`."""
        view = View(types, rows, tokens=tokens)
        return Watch(
            Source(self.open_log, owned=False),
            view,
            self.watch_options(since, snapshot, follow, worker_timeout_s, timeout_s),
        )

    def wait(self, timeout_s: float | None = None, *, worker_timeout_s: float | None = ABANDONED_S) -> JobStatus:
        """Return once the job has ended, however it did.

        Raises TimeoutError after timeout_s, and RunnerError (`job_abandoned`) when no worker has held the unfinished
        job for worker_timeout_s (None: wait for one for ever).
        """
        options = self.watch_options(None, False, True, worker_timeout_s, timeout_s)
        with Watch(Source(self.open_log, owned=False), View(("ended",), tokens=False), options) as watched:
            for _ in watched:
                continue
        return check_waited(self.status(), watched.end, worker_timeout_s)

    def cancel(self, rows: Iterable[int] | None = None) -> JobStatus:
        """Stop the job, or some of its rows, for good: what has ended is kept, what is open ends as cancelled.

        Raises RunnerError (`job_ended`, `no_such_row`).
        """
        if rows is None:
            self._controller.cancel()
        else:
            self._controller.cancel_rows(rows)
        return self.status()

    def retry(self, rows: Iterable[int] = (), *, codes: Iterable[str] = ()) -> int:
        """Give rows without a result (failed, cancelled, expired) another attempt, also after the job has ended.

        rows, codes: only these rows, only those that failed with these codes. Returns how many; somebody has to run
        them. Raises RunnerError (`row_not_retriable`, `job_cancelling`, `retry_busy`).
        """
        from streamrunner.runner.retry import Wanted

        return self._controller.retry(Wanted(frozenset(codes), tuple(range(row, row + 1) for row in rows)))

    def pause(self) -> JobStatus:
        """Stop the job for now; its workers keep all tokens. Raises RunnerError (`job_ended`)."""
        self._controller.pause()
        return self.status()

    def resume(self) -> JobStatus:
        """Lift a pause. Raises RunnerError (`job_ended`)."""
        self._controller.resume()
        return self.status()

    def run(self, *, progress: bool = False) -> JobStatus:
        """Work on the job in this process until it has ended, as `runner submit` does, and write its outputs.

        The engine is loaded here, and nowhere else in this module. If somebody else works on the job, watch, and take
        over if they go. Ctrl-C keeps all that is done and raises KeyboardInterrupt; run again to go on. progress: show
        it on stderr.
        """
        from streamrunner.runner.local_run import run_here

        run_here(self.client, self.id, progress=progress)
        return self.status()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<Job {self.name!r} {self.id}>"

    # ── shared with the asynchronous twin ───────────────────────────────────────────────────────────────────────────

    def watch_options(
        self, since: str | None, snapshot: bool, follow: bool, worker_timeout_s: float | None, timeout_s: float | None
    ) -> WatchOptions:
        """The options of a watch that waits for the log as long as the client does."""
        return WatchOptions(since, snapshot, follow, worker_timeout_s, self.client.log_timeout_s, timeout_s)

    def result_pages(self, rows: Any, order: Any, *, follow: bool, worker_timeout_s: float | None) -> ResultPages:
        """The reader behind `results`."""
        from streamrunner.runner.selection import Selection

        options = ResultOptions(Selection(rows, order), follow, worker_timeout_s, self.client.log_timeout_s)
        return ResultPages(self.client.server, self._keys, options)

    @property
    def _keys(self) -> JobKeys:
        return JobKeys(self.id, PREFIX)

    def open_log(self) -> tuple[LogServer, JobKeys]:
        """The log's server, opened if need be, and the job's keys."""
        return self.client.server, self._keys

    @property
    def _controller(self) -> Controller:
        return Controller(self.client.server, self._keys, "client")


def check_waited(status: JobStatus, end: EndedEvent | None, worker_timeout_s: float | None) -> JobStatus:
    """The status of a job that was waited for. Raises what a wait that did not see the end has to say."""
    if status.ended:
        return status
    if end is None:
        raise TimeoutError(f"{status.id} has not ended in time")
    raise abandoned(status.id, worker_timeout_s or 0.0)


def _checked_spec(spec: Any, base_dir: Any) -> tuple[JobSpec, Path]:
    """The spec, and the path that says which job it is and what its own paths are relative to."""
    from streamrunner.runner.spec import JobSpec, check_spec, load_spec

    if not isinstance(spec, (Mapping, JobSpec)):
        if base_dir is not None:
            raise RunnerError("invalid_spec", "base_dir is for dicts: paths in a job file are relative to that file")
        path = Path(spec)
        return load_spec(path), path.resolve()
    checked = spec if isinstance(spec, JobSpec) else check_spec(dict(spec), "the spec")
    # A name that no file has, so that a dict is never taken for a file of the same name.
    return checked, Path(base_dir or ".").resolve() / "<python>"

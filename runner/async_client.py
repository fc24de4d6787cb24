"""The asynchronous twin of `client`: the same methods, awaited; events and waiting need no thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, Self

from streamrunner.runner.client import Client, Job, check_waited
from streamrunner.runner.event_stream import AsyncWatch, Source
from streamrunner.runner.follower import ABANDONED_S
from streamrunner.runner.result_stream import AsyncResults
from streamrunner.runner.view import View

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Mapping

    from streamrunner.runner.job_status import JobStatus
    from streamrunner.runner.spec import JobSpec


class AsyncClient:
    """`Client` for an event loop; `async with AsyncClient() as client:`."""

    def __init__(
        self,
        *,
        redis_url: str | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        log_timeout_s: float = 600.0,
    ) -> None:
        self.blocking = Client(redis_url=redis_url, data_dir=data_dir, log_timeout_s=log_timeout_s)

    async def submit(
        self,
        spec: str | os.PathLike[str] | Mapping[str, Any] | JobSpec,
        *,
        base_dir: str | os.PathLike[str] | None = None,
        new: bool = False,
        wait: bool = False,
    ) -> AsyncJob:
        """Write a job to the log; see `Client.submit`."""
        job = AsyncJob(await asyncio.to_thread(self.blocking.submit, spec, base_dir=base_dir, new=new))
        if wait:
            await job.wait()
        return job

    async def job(self, job: str = "last") -> AsyncJob:
        """A job by id, unique prefix of it, name, or `last`; see `Client.job`."""
        return AsyncJob(await asyncio.to_thread(self.blocking.job, job))

    async def jobs(self) -> list[AsyncJob]:
        """All jobs of the log, oldest first."""
        return [AsyncJob(one) for one in await asyncio.to_thread(self.blocking.jobs)]

    async def aclose(self) -> None:
        """Give up the log."""
        await asyncio.to_thread(self.blocking.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Async{repr(self.blocking)[1:]}"


class AsyncJob:
    """`Job` for an event loop; `blocking` is the job itself."""

    def __init__(self, blocking: Job) -> None:
        self.blocking = blocking

    @property
    def id(self) -> str:
        """The job's id."""
        return self.blocking.id

    @property
    def name(self) -> str:
        """The job's name."""
        return self.blocking.name

    async def status(self) -> JobStatus:
        """Where the job is now; see `Job.status`."""
        return await asyncio.to_thread(self.blocking.status)

    def results(
        self,
        *,
        rows: Literal["all", "completed", "failed"] = "all",
        order: Literal["completion", "input"] = "completion",
        follow: bool = True,
        worker_timeout_s: float | None = ABANDONED_S,
    ) -> AsyncResults:
        """`async for line in job.results()`; see `Job.results`. A thread reads, half a second at a time."""
        job = self.blocking
        return AsyncResults(lambda: job.result_pages(rows, order, follow=follow, worker_timeout_s=worker_timeout_s))

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
    ) -> AsyncWatch:
        """`async for event in job.events()`; see `awatch`."""
        job = self.blocking
        options = job.watch_options(since, snapshot, follow, worker_timeout_s, timeout_s)
        return AsyncWatch(Source(job.open_log, owned=False), View(types, rows, tokens=tokens), options)

    async def wait(self, timeout_s: float | None = None, *, worker_timeout_s: float | None = ABANDONED_S) -> JobStatus:
        """Return once the job has ended; see `Job.wait`."""
        watched = self.events(
            types=("ended",), tokens=False, worker_timeout_s=worker_timeout_s, timeout_s=timeout_s
        )  # fmt: skip
        async with watched:
            async for _ in watched:
                continue
        return check_waited(await self.status(), watched.end, worker_timeout_s)

    async def cancel(self, rows: Iterable[int] | None = None) -> JobStatus:
        """Stop the job, or some of its rows, for good; see `Job.cancel`."""
        return await asyncio.to_thread(self.blocking.cancel, rows)

    async def retry(self, rows: Iterable[int] = (), *, codes: Iterable[str] = ()) -> int:
        """Give rows without a result another attempt; see `Job.retry`."""
        return await asyncio.to_thread(self.blocking.retry, rows, codes=codes)

    async def pause(self) -> JobStatus:
        """Stop the job for now; see `Job.pause`."""
        return await asyncio.to_thread(self.blocking.pause)

    async def resume(self) -> JobStatus:
        """Lift a pause; see `Job.resume`."""
        return await asyncio.to_thread(self.blocking.resume)

    async def run(self, *, progress: bool = False) -> JobStatus:
        """Work on the job in a thread of this process; see `Job.run`. Cancelling the wait does not stop the work."""
        return await asyncio.to_thread(self.blocking.run, progress=progress)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncJob) and other.blocking == self.blocking

    def __hash__(self) -> int:
        return hash(self.blocking)

    def __repr__(self) -> str:
        return f"<Async{repr(self.blocking)[1:]}"

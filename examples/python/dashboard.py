# dashboard.py [JOB]: an event loop that follows a job's progress and its results side by side.
import asyncio
import sys

from streamrunner.runner import AsyncClient, AsyncJob


async def show_progress(job: AsyncJob) -> None:
    async for event in job.events(snapshot=True, tokens=False, types=["progress", "request.failed", "job.*"]):
        print(event.type, event.custom_id or "")


async def show_results(job: AsyncJob) -> None:
    async for line in job.results():
        print(line["custom_id"], "failed" if line["error"] else "done")


async def main() -> None:
    async with AsyncClient() as client:
        job = await client.job(*sys.argv[1:])
        await asyncio.gather(show_progress(job), show_results(job))
        print(await job.wait())


asyncio.run(main())

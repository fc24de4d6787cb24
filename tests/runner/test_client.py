"""Jobs from Python: what a notebook does with `Client` and its asynchronous twin."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from raw_job import RawJob

from streamrunner.runner import AsyncClient, AsyncJob, Client, Job, RunnerError, SinkError, TokensEvent
from streamrunner.runner.spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streamrunner.sinks.embedded.server import EmbeddedServer


def capitals(model: Path, **more: Any) -> dict[str, Any]:
    return {
        "name": "capitals", "model": str(model), "outputs": [], "sampling": {"max_tokens": 6, "seed": 7},
        "engine": {"max_model_len": 256},
        "requests": [{"prompt": f"The capital of country {number} is"} for number in range(3)],
        **more,
    }  # fmt: skip


@pytest.fixture
def client(data_dir: Path) -> Iterator[Client]:
    with Client(data_dir=data_dir) as client:
        yield client


@pytest.fixture
def raw(embedded: EmbeddedServer) -> RawJob:
    """A job as a worker leaves it in the log, known by the name `raw`."""
    job = RawJob(embedded)
    job.raw.xadd("sr:jobs", {"job": job.id, "name": "raw"})
    return job


def rows_of(lines: Any) -> list[str]:
    return [line["custom_id"] for line in lines]


# ── submitting and running ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_dict_is_submitted_run_here_and_read(client: Client, tiny_model: Path, tmp_path: Path) -> None:
    job = client.submit(capitals(tiny_model, outputs=[{"path": "out.jsonl"}]), base_dir=tmp_path)
    assert job.status().status == "validating"
    status = job.run()
    assert (status.status, status.ended, status.request_counts.completed, status.request_counts.open) == (
        "completed", True, 3, 0,
    )  # fmt: skip
    lines = list(job.results(order="input"))
    assert rows_of(lines) == ["row-0", "row-1", "row-2"]
    assert lines[0]["response"]["body"]["usage"]["completion_tokens"] == 6
    assert len((tmp_path / "out.jsonl").read_bytes().splitlines()) == 3
    assert job.wait().ended
    assert [event.type for event in job.events()][-2:] == ["job.ended", "ended"]
    # Once more is no more work.
    assert job.run().request_counts.completed == 3


def test_submitting_the_same_again_is_the_same_job_and_computes_nothing(
    client: Client, tiny_model: Path, tmp_path: Path
) -> None:
    spec = capitals(tiny_model)
    job = client.submit(spec, base_dir=tmp_path)
    assert client.submit(JobSpec.model_validate(spec), base_dir=tmp_path) == job
    assert client.submit(spec, base_dir=tmp_path, new=True) != job
    with pytest.raises(RunnerError) as caught:
        client.submit(capitals(tiny_model, sampling={"max_tokens": 7}), base_dir=tmp_path)
    assert caught.value.code == "job_changed"
    assert [one.name for one in client.jobs()] == ["capitals", "capitals"]


def test_a_file_is_the_job_that_the_command_line_would_make_of_it(bench: Any, chat_row: Any) -> None:
    bench.write_rows([chat_row(1), chat_row(2)])
    bench.write_job()
    with Client(data_dir=bench.data_dir) as client:
        job = client.submit(bench.job)
        done = bench.submit()
        assert done.returncode == 0, done.stderr
        assert client.job().id == job.id == client.job("t").id
        assert sorted(rows_of(job.results())) == ["n1", "n2"]


@pytest.mark.parametrize(
    ("change", "code"),
    [({"modle": "x"}, "unknown_key"), ({"requests": []}, "invalid_spec"), ({"name": 7}, "invalid_spec")],
)
def test_a_bad_spec_is_told_in_words(client: Client, tiny_model: Path, change: dict[str, Any], code: str) -> None:
    with pytest.raises(RunnerError) as caught:
        client.submit(capitals(tiny_model, **change))
    assert caught.value.code == code


def test_results_and_tokens_come_while_another_thread_runs_the_job(
    client: Client, tiny_model: Path, tmp_path: Path
) -> None:
    job = client.submit(capitals(tiny_model), base_dir=tmp_path)
    running = threading.Thread(target=job.run)
    running.start()
    lines = list(job.results(worker_timeout_s=60))
    running.join(60)
    assert sorted(rows_of(lines)) == ["row-0", "row-1", "row-2"]
    deltas = [
        delta for event in job.events(types=["tokens"]) if isinstance(event, TokensEvent) for delta in event.deltas
    ]
    assert sum(len(delta.token_ids) for delta in deltas) == 18


def test_ctrl_c_keeps_what_is_done_and_running_again_goes_on(client: Client, tiny_model: Path, tmp_path: Path) -> None:
    job = client.submit(capitals(tiny_model), base_dir=tmp_path)

    def interrupt() -> None:
        for _ in job.events(types=["worker.joined"], timeout_s=60):
            os.kill(os.getpid(), signal.SIGINT)
            return

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        job.run()
    thread.join(10)
    assert signal.getsignal(signal.SIGINT) == before
    assert not job.status().ended
    assert job.run().request_counts.completed == 3


def test_submitting_and_reading_loads_no_engine(data_dir: Path, tiny_model: Path, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom streamrunner.runner import Client\n"
        f"with Client(data_dir={str(data_dir)!r}) as client:\n"
        f"    job = client.submit({capitals(tiny_model)!r}, base_dir={str(tmp_path)!r})\n"
        "    print(job.status(), len(list(job.results(follow=False))), len(list(job.events(follow=False))))\n"
        "print(sorted({'torch', 'transformers', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    status, imported = done.stdout.splitlines()
    assert status.endswith("validating, 0 completed of 3> 0 1")
    assert imported == "[]"


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_status_speaks_openais_names(client: Client, raw: RawJob) -> None:
    raw.join()
    raw.flush(done=0)
    status = client.job("raw").status()
    assert status.raw["request_counts"] == {"total": 4, "completed": 1, "failed": 0, "cancelled": 0, "expired": 0}
    assert status.usage["output_tokens"] == 1
    assert not status.ended
    assert repr(status) == f"<JobStatus 'raw' {raw.id}: in_progress, 1 completed of 4>"
    with pytest.raises(TypeError):
        status.raw["name"] = "else"  # type: ignore[index]


def test_results_of_a_running_job_come_as_rows_end_each_once(client: Client, raw: RawJob) -> None:
    raw.join()
    raw.flush(done=2)
    raw.flush(done=0)
    job = client.job("raw")
    assert rows_of(job.results(follow=False)) == ["r2", "r0"]
    results = job.results()
    assert rows_of([next(results), next(results)]) == ["r2", "r0"]
    raw.flush(done=3)
    raw.raw.client_kill_filter(_type="normal", skipme=True)
    assert next(results)["custom_id"] == "r3"
    raw.flush(done=1)
    raw.log.end("completed")
    assert rows_of(results) == ["r1"]
    assert rows_of(job.results(order="input")) == ["r0", "r1", "r2", "r3"]
    assert rows_of(job.results(rows="failed")) == []


def test_results_in_the_order_of_the_input_wait_for_open_rows(client: Client, raw: RawJob) -> None:
    raw.join()
    raw.flush(done=1)
    raw.flush(done=0)
    with client.job("raw").results(order="input") as results:
        assert rows_of([next(results), next(results)]) == ["r0", "r1"]
        raw.flush(done=3)
        raw.flush(done=2)
        assert rows_of([next(results), next(results)]) == ["r2", "r3"]


def test_a_killed_server_repeats_no_result(client: Client, embedded: EmbeddedServer, raw: RawJob) -> None:
    raw.join()
    raw.flush(done=0)
    results = client.job("raw").results()
    assert next(results)["custom_id"] == "r0"
    assert embedded.pid is not None
    os.kill(embedded.pid, signal.SIGKILL)
    raw.flush(done=1)
    assert next(results)["custom_id"] == "r1"
    assert client.job("raw").status().request_counts.completed == 2


def test_waiting_for_a_job_that_nobody_runs_is_told(client: Client, raw: RawJob) -> None:
    job = client.job("raw")
    for wait in (lambda: job.wait(worker_timeout_s=0.0), lambda: list(job.results(worker_timeout_s=0.0))):
        with pytest.raises(RunnerError) as caught:
            wait()
        assert caught.value.code == "job_abandoned"
        assert "runner worker" in caught.value.message
    raw.join()
    with pytest.raises(TimeoutError, match="has not ended in time"):
        job.wait(0.1)


def test_waiting_ends_with_the_job(client: Client, raw: RawJob) -> None:
    raw.join()
    threading.Timer(0.2, raw.cancel).start()
    assert client.job("raw").wait(20).status == "cancelled"


def test_a_job_that_is_not_there_is_named(client: Client, raw: RawJob) -> None:
    job = client.job("raw")
    for look in (lambda: client.job("nosuch"), job.status):
        with pytest.raises(SinkError) as caught:
            look()
        assert caught.value.code == "job_not_found"
        raw.raw.delete(raw.keys.meta)


# ── control ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pause_resume_and_cancel(client: Client, raw: RawJob) -> None:
    raw.join()
    job = client.job("raw")
    assert job.pause().paused
    assert not job.resume().paused
    assert job.cancel().status == "cancelled"
    assert job.cancel().request_counts.cancelled == 4
    with pytest.raises(RunnerError) as caught:
        job.pause()
    assert caught.value.code == "job_ended"


def test_rows_are_cancelled_alone_and_retried(client: Client, tiny_model: Path, tmp_path: Path) -> None:
    job = client.submit(capitals(tiny_model), base_dir=tmp_path)
    assert job.cancel([1]).request_counts.cancelled == 1
    assert job.cancel().status == "cancelled"
    assert sorted(line["error"]["code"] for line in job.results()) == [
        "batch_cancelled", "batch_cancelled", "request_cancelled",
    ]  # fmt: skip
    assert job.retry(codes=["request_cancelled"]) == 1
    assert job.retry([0]) == 1
    assert job.status().request_counts.open == 2
    with pytest.raises(RunnerError) as caught:
        job.retry([7])
    assert caught.value.code == "row_not_retriable"


def test_representations_hold_no_credentials() -> None:
    assert repr(Client(redis_url="redis://me:secret@example.org:6379/0")) == (
        "<Client of redis://***@example.org:6379/0>"
    )
    assert repr(Job(Client(), "job_1", "<b>")) == "<Job '<b>' job_1>"


# ── the asynchronous twin ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_asynchronous_twin_does_the_same(data_dir: Path, raw: RawJob) -> None:
    raw.join()
    raw.flush(done=0)

    async def use() -> list[str]:
        async with AsyncClient(data_dir=data_dir) as client:
            job = await client.job("raw")
            assert await client.jobs() == [job]
            assert (await job.status()).request_counts.completed == 1
            assert (await job.pause()).paused
            assert not (await job.resume()).paused
            results = job.results()
            seen = [(await anext(results))["custom_id"]]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(results), 0.1)
            await asyncio.to_thread(raw.flush, done=3)
            seen.append((await anext(results))["custom_id"])
            with pytest.raises(TimeoutError):
                await job.wait(0.1)
            assert await job.retry(codes=["nosuch"]) == 0
            cancelled = await job.cancel()
            assert cancelled.status == (await job.wait()).status == "cancelled"
            seen += [event.type async for event in job.events(types=["job.*", "ended"])]
            await results.aclose()
            return seen

    assert asyncio.run(use()) == [
        "r0", "r3", "job.submitted", "job.started", "job.paused", "job.resumed", "job.cancel_requested", "job.ended",
        "ended",
    ]  # fmt: skip


def test_an_abandoned_iterator_does_not_hold_up_the_loop(data_dir: Path, raw: RawJob) -> None:
    raw.join()

    async def use() -> AsyncJob:
        client = AsyncClient(data_dir=data_dir)
        job = await client.job("raw")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(job.results()), 0.05)
        return job

    assert asyncio.run(asyncio.wait_for(use(), 10)).name == "raw"


def test_submitting_asynchronously(data_dir: Path, tiny_model: Path, tmp_path: Path) -> None:
    async def use() -> tuple[str, int]:
        async with AsyncClient(data_dir=data_dir) as client:
            job = await client.submit(capitals(tiny_model), base_dir=tmp_path)
            status = await job.run()
            return status.status, len([line async for line in job.results()])

    assert asyncio.run(use()) == ("completed", 3)

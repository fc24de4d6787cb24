"""`watch` and `awatch` on real servers: nothing twice, nothing silently missing, whatever happens in between."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from raw_job import WHOLE, RawJob, shown, word

from streamrunner.runner import awatch, event_stream, watch
from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.sinks.embedded.server import EmbeddedServer
    from streamrunner.sinks.server import LogServer


@pytest.fixture
def job(log_server: LogServer) -> RawJob:
    return RawJob(log_server)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_BLOCK_MS", 50)


# ── from the start to the end ───────────────────────────────────────────────────────────────────────────────────────


def test_a_watch_gives_every_event_then_ends(job: RawJob) -> None:
    job.run_through()
    watched = job.watch()
    assert shown(watched) == WHOLE
    assert watched.end is not None
    assert watched.end.to_json()["data"] == {"status": "cancelled", "reason": "by request", "abandoned": False}
    assert watched.state.cancelled == 2
    assert list(watched) == []


def test_a_watch_that_was_there_first_gives_the_same(job: RawJob) -> None:
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.extend(shown(job.watch())))
    thread.start()
    job.run_through()
    thread.join(20)
    assert seen == WHOLE


def test_an_asynchronous_watch_gives_the_same(job: RawJob) -> None:
    async def read() -> list[str]:
        return [word(event) async for event in job.awatch()]

    async def both() -> list[str]:
        reading = asyncio.create_task(read())
        await asyncio.to_thread(job.run_through)
        return await asyncio.wait_for(reading, 20)

    assert asyncio.run(both()) == WHOLE


def test_without_follow_a_watch_stops_at_the_present_end(job: RawJob) -> None:
    job.join()
    assert shown(job.watch(follow=False)) == ["job.submitted", "job.started", "worker.joined", "range.claimed"]
    run_the_rest = job.watch(follow=False)
    job.cancel()
    assert shown(run_the_rest)[-2:] == ["job.ended", "ended"]


def test_results_come_with_their_choices(job: RawJob) -> None:
    job.run_through()
    [first, _] = job.watch(types=["request.completed"])
    assert first.data["choices"] == [{"index": 0, "text": "answer 0"}]
    assert (first.row, first.custom_id) == (0, "r0")


def test_events_cannot_be_changed(job: RawJob) -> None:
    event = next(job.watch())
    with pytest.raises(AttributeError):
        event.type = "else"  # type: ignore[misc]
    with pytest.raises(TypeError):
        event.data["rows"] = 7  # type: ignore[index]


# ── cursors and snapshots ───────────────────────────────────────────────────────────────────────────────────────────


def test_any_cursor_goes_on_right_behind_its_event(job: RawJob) -> None:
    job.run_through()
    events = list(job.watch())
    for at, event in enumerate(events[:-1]):
        assert shown(job.watch(since=event.cursor)) == WHOLE[at + 1 :]


def test_a_cursor_of_a_filtered_watch_serves_an_unfiltered_one(job: RawJob) -> None:
    job.run_through()
    [first, _] = job.watch(types=["request.completed"])
    assert shown(job.watch(since=first.cursor)) == WHOLE[8:]


def test_a_snapshot_is_the_fold_and_what_follows_is_new(job: RawJob) -> None:
    job.join()
    job.token(0, 0)
    job.token(1, 0)
    job.token(0, 1, done=0)
    watched = job.watch(snapshot=True)
    snapshot = next(watched)
    assert snapshot.data["request_counts"] == {"total": 4, "completed": 1, "failed": 0, "cancelled": 0, "expired": 0}
    # Of what was before, only the tokens of rows that are still open.
    assert word(next(watched)) == "tokens w:1.0"
    job.token(1, 1, done=1)
    job.cancel()
    assert shown(watched) == ["tokens w:1.1", "request.completed 1", "job.cancel_requested", "job.ended", "ended"]
    assert watched.state.completed == 2


def test_a_snapshots_cursor_goes_on_behind_it(job: RawJob) -> None:
    job.join()
    job.flush(done=0)
    cursor = next(job.watch(snapshot=True)).cursor
    job.flush(done=1)
    assert shown(job.watch(since=cursor, follow=False)) == ["request.completed 1"]


def test_a_cursor_that_nobody_printed_is_refused(job: RawJob) -> None:
    with pytest.raises(SinkError) as caught:
        next(job.watch(since="nonsense"))
    assert caught.value.code == "bad_cursor"


# ── filters ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"types": ["tokens"]}, WHOLE[4:7]),
        ({"types": ["request.*"]}, WHOLE[7:9]),
        ({"types": "job.ended"}, ["job.ended"]),
        ({"tokens": False}, WHOLE[:4] + WHOLE[7:]),
        ({"rows": [1], "types": ["tokens", "request.*"]}, ["tokens w:1.0", "request.completed 1"]),
        ({"rows": range(1), "types": ["tokens"]}, ["tokens w:0.0", "tokens w:0.1"]),
        ({"rows": {3}}, [*WHOLE[:4], *WHOLE[9:]]),
    ],
)
def test_filters(embedded: EmbeddedServer, filters: dict[str, Any], expected: list[str]) -> None:
    job = RawJob(embedded)
    job.run_through()
    assert shown(job.watch(**filters)) == expected


def test_a_newer_writers_events_and_fields_pass_and_newer_versions_are_told_once(job: RawJob) -> None:
    entry = {"type": "job.dreamt", "v": "1", "time": "1", "by": "w", "data": '{"of":"sheep"}', "new": "field"}
    job.raw.xadd(job.keys.log, entry, id="2-0")
    job.raw.xadd(job.keys.log, {**entry, "v": "2"}, id="3-0")
    job.raw.xadd(job.keys.log, {**entry, "v": "2"}, id="4-0")
    job.raw.xadd(job.keys.log, entry, id="5-0")
    job.raw.xadd(job.keys.steps("w"), {"v": "1", "t": "1", "d": '[[0,1,0,0,[5],"a",null,"new"]]'}, id="1-1")
    seen = list(job.watch(follow=False))
    assert shown(seen) == ["job.submitted", "job.dreamt", "notice", "job.dreamt"]
    assert seen[1].data["of"] == "sheep"
    assert "version 2" in seen[2].data["message"]
    assert "upgrade streamrunner" in seen[2].data["message"]


# ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_end_is_told_at_once(job: RawJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_BLOCK_MS", 60_000)
    job.join()
    watched = job.watch(types=["ended", "notice"])
    threading.Timer(0.1, job.flush).start()
    assert next(watched).type == "notice"
    threading.Timer(0.1, job.cancel).start()
    assert next(watched).type == "ended"


def test_a_job_that_nobody_holds_any_more_ends_the_watch(job: RawJob) -> None:
    job.join()
    job.leave()
    [*_, ended] = job.watch(worker_timeout_s=0.0)
    assert ended.type == "ended"
    assert ended.data == {"status": "in_progress", "reason": None, "abandoned": True}


def test_a_live_worker_keeps_a_silent_watch_going(job: RawJob) -> None:
    job.join()
    watched = job.watch(worker_timeout_s=0.0, types=["notice"])
    threading.Timer(0.4, job.flush).start()
    assert next(watched).type == "notice"


def test_the_end_is_known_from_a_cursor_behind_the_last_event(job: RawJob) -> None:
    job.run_through()
    events = list(job.watch())
    assert shown(job.watch(since=events[-2].cursor)) == ["ended"]


# ── asyncio manners ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cancelled_wait_loses_no_event(job: RawJob) -> None:
    job.join()

    async def read() -> list[str]:
        watched = job.awatch(types=["notice", "job.ended"])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(watched), 0.15)
        await asyncio.to_thread(job.flush)
        first = word(await anext(watched))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(watched), 0.15)
        await asyncio.to_thread(job.cancel)
        return [first, *[word(event) async for event in watched]]

    assert asyncio.run(read()) == ["notice", "job.ended"]


def test_many_asynchronous_watches_share_one_loop(job: RawJob) -> None:
    async def read() -> list[list[str]]:
        async def one() -> list[str]:
            return [word(event) async for event in job.awatch()]

        tasks = [asyncio.create_task(one()) for _ in range(20)]
        await asyncio.to_thread(job.run_through)
        return await asyncio.wait_for(asyncio.gather(*tasks), 30)

    assert asyncio.run(read()) == [WHOLE] * 20


# ── as users call it ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_is_found_by_name_in_the_place_of_the_environment(
    embedded: EmbeddedServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = RawJob(embedded)
    job.raw.xadd("sr:jobs", {"job": job.id, "name": "capitals"})
    job.run_through()
    monkeypatch.setenv("RUNNER_DATA_DIR", str(data_dir))
    assert shown(watch("capitals")) == WHOLE
    with watch("last", data_dir=data_dir) as events:
        assert next(events).type == "job.submitted"

    async def read() -> list[str]:
        async with awatch(job.id[:-1], data_dir=data_dir) as events:
            return [word(event) async for event in events]

    assert asyncio.run(read()) == WHOLE
    with pytest.raises(SinkError) as caught:
        list(watch("nosuch"))
    assert caught.value.code == "job_not_found"


def test_watching_imports_no_engine() -> None:
    program = (
        "import sys\nfrom streamrunner.runner import watch, awatch\n"
        "try:\n    next(watch('x', redis_url='unix:///nowhere'))\nexcept Exception as error:\n    print(error.code)\n"
        "print(sorted({'torch', 'transformers', 'numba', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["log_unreachable", "[]"]


def test_events_and_watch_of_the_command_line_read_the_same(
    embedded: EmbeddedServer, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from streamrunner.runner.cli.fail import guarded
    from streamrunner.runner.cli.main import cli

    def runner(*arguments: str) -> tuple[int, list[Any]]:
        code = guarded(partial(cli, [*arguments, "--data-dir", str(data_dir)], standalone_mode=False))
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    job = RawJob(embedded)
    job.raw.xadd("sr:jobs", {"job": job.id, "name": "capitals"})
    job.run_through()
    code, lines = runner("events", "last", "--json", "--follow")
    assert code == 0
    assert [line["type"] for line in lines] == [word.split()[0] for word in WHOLE[:-1]]
    assert lines[7]["data"]["choices"][0]["text"] == "answer 0"
    code, rest = runner("events", "last", "--json", "--since", lines[6]["cursor"], "--row", "1", "--type", "request.*")
    assert [(line["type"], line["data"]["row"]) for line in rest] == [("request.completed", 1)]
    code, [snapshot] = runner("events", "last", "--json", "--snapshot")
    assert snapshot["data"]["request_counts"]["cancelled"] == 2
    code, states = runner("watch", "last", "--json")
    assert code == 0
    assert states[-1]["status"] == "cancelled"


def test_a_watch_can_be_given_a_time(job: RawJob) -> None:
    job.join()
    watched = job.watch(timeout_s=0.2, types=["job.submitted"])
    assert shown(watched) == ["job.submitted"]
    assert watched.end is None

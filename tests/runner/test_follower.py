"""Readers on real servers that are killed, trimmed or lose writes: nothing twice, nothing silently missing."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from raw_job import WHOLE, RawJob, shown, word

from streamrunner.runner import event_stream
from streamrunner.sinks.blob import reference_to
from streamrunner.sinks.errors import LogUnreachable, SinkError

if TYPE_CHECKING:
    from streamrunner.sinks.embedded.server import EmbeddedServer
    from streamrunner.sinks.server import LogServer


@pytest.fixture
def job(log_server: LogServer) -> RawJob:
    return RawJob(log_server)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_BLOCK_MS", 50)


# ── gaps ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_hole_in_the_log_is_a_gap(job: RawJob) -> None:
    job.join()
    job.raw.xdel(job.keys.log, "2-0", "3-0")
    [_, gap, claimed] = job.watch(follow=False, types=["gap", "job.submitted", "range.claimed"])
    assert (gap.type, gap.data["stream"], gap.data["first"], gap.data["last"]) == ("gap", "log", 2, 3)
    assert claimed.type == "range.claimed"


def test_trimmed_tokens_are_a_gap_and_flushes_without_tokens_are_none(job: RawJob) -> None:
    job.join()
    watched = job.watch(types=["tokens"])
    job.token(0, 0)
    assert word(next(watched)) == "tokens w:0.0"
    for at in range(1, 4):
        job.flush()  # a flush without tokens: its number is missing in the stream, and nothing is lost
        job.token(0, at)
    assert [word(next(watched)) for _ in range(3)] == ["tokens w:0.1", "tokens w:0.2", "tokens w:0.3"]
    cursor = watched
    for at in range(4, 10):
        job.token(0, at)
    job.raw.xtrim(job.keys.steps("w"), minid="1-12", approximate=False)
    gap = next(cursor)
    assert gap.type == "gap"
    assert (gap.data["stream"], gap.data["num_entries"]) == ("w", 4)
    assert [word(next(watched)) for _ in range(2)] == ["tokens w:0.8", "tokens w:0.9"]


def test_a_late_reader_is_told_what_retention_took(job: RawJob) -> None:
    job.join()
    for at in range(6):
        job.token(0, at)
    job.raw.xtrim(job.keys.steps("w"), minid="1-5", approximate=False)
    [gap, *rest] = job.watch(types=["tokens"], follow=False)
    assert (gap.type, gap.data["num_entries"]) == ("gap", 4)
    assert shown(rest) == ["tokens w:0.4", "tokens w:0.5"]
    assert shown(job.watch(types=["tokens"], follow=False, since=gap.cursor)) == ["tokens w:0.4", "tokens w:0.5"]


def test_tokens_that_are_all_gone_are_a_gap(job: RawJob) -> None:
    job.run_through()
    job.raw.delete(job.keys.steps("w"))
    [gap] = job.watch(types=["tokens"])
    assert (gap.type, gap.data["stream"], gap.data["num_entries"]) == ("gap", "w", None)


def test_a_large_result_that_is_gone_is_left_out_of_its_event(job: RawJob) -> None:
    job.join()
    ref = reference_to(b'{"choices":[]}')
    job.raw.hset(job.keys.blobs, ref.sha256, b'{"choices":[]}')
    job.flush(done=0, payload=ref.encode())
    job.flush(done=1)
    assert all("choices" in event.data for event in job.watch(types=["request.completed"], follow=False))
    job.raw.delete(job.keys.blobs)
    [gone, here] = job.watch(types=["request.completed"], follow=False)
    assert (gone.row, "choices" in gone.data) == (0, False)
    assert (here.row, "choices" in here.data) == (1, True)


def test_the_streams_of_workers_that_come_later_are_read(job: RawJob) -> None:
    job.join("a")
    job.token(0, 0, "a")
    watched = job.watch(types=["tokens"])
    assert word(next(watched)) == "tokens a:0.0"
    job.leave("a")
    job.join("b")
    job.token(0, 1, "b")
    assert word(next(watched)) == "tokens b:0.1"
    job.join("a")
    job.token(0, 2, "a")
    event = next(watched)
    assert word(event) == "tokens a:0.2"
    assert shown(job.watch(types=["tokens"], since=event.cursor, follow=False)) == []


def test_a_cursor_does_not_grow_with_the_workers_that_have_left(job: RawJob) -> None:
    watched = job.watch(tokens=True)
    for number in range(12):
        job.join(f"w{number}")
        job.token(0, number, f"w{number}")
        job.leave(f"w{number}")
    job.cancel()
    events = list(watched)
    assert sum(event.type == "tokens" for event in events) == 12
    assert len(events[-1].cursor) < 120


# ── a server that goes away ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_killed_server_in_the_middle_costs_neither_a_gap_nor_a_repeat(embedded: EmbeddedServer) -> None:
    job = RawJob(embedded)
    job.join()
    watched = job.watch(types=["tokens", "request.*", "job.*"], rows=[0, 1])
    job.token(0, 0)
    job.token(2, 0)
    seen = [word(next(watched)) for _ in range(3)]
    for at in (1, 2, 3):
        assert embedded.pid is not None
        os.kill(embedded.pid, signal.SIGKILL)
        job.token(1, at)
        seen.append(word(next(watched)))
    os.kill(embedded.pid, signal.SIGKILL)
    job.raw = embedded.client()
    job.flush(done=1)
    job.cancel()
    seen += shown(watched)
    assert seen == [
        "job.submitted", "job.started", "tokens w:0.0", "tokens w:1.1", "tokens w:1.2", "tokens w:1.3",
        "request.completed 1", "job.cancel_requested", "job.ended",
    ]  # fmt: skip


def test_an_asynchronous_watch_survives_a_killed_server(embedded: EmbeddedServer) -> None:
    job = RawJob(embedded)

    async def read() -> list[str]:
        seen: list[str] = []
        async for event in job.awatch(types=["notice", "job.ended"]):
            seen.append(word(event))
            if event.type == "notice":
                await asyncio.to_thread(kill_and_go_on)
        return seen

    def kill_and_go_on() -> None:
        assert embedded.pid is not None
        os.kill(embedded.pid, signal.SIGKILL)
        job.cancel()

    job.join()
    job.flush()
    assert asyncio.run(asyncio.wait_for(read(), 20)) == ["notice", "job.ended"]


def test_a_broken_connection_between_the_read_and_its_results_loses_nothing(
    job: RawJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run_through()
    broken = iter([True])

    from streamrunner.runner import line

    perform = line.perform

    def breaks_once(client: Any, commands: Any) -> Any:
        if commands[0][0] == "XRANGE" and ":res" in commands[0][1] and next(broken, False):
            raise ConnectionError("reset by peer")
        return perform(client, commands)

    monkeypatch.setattr(line, "perform", breaks_once)
    assert shown(job.watch()) == WHOLE


def test_a_lost_tail_is_told_and_everything_comes_again(job: RawJob) -> None:
    job.join()
    watched = job.watch()
    before = [word(next(watched)) for _ in range(4)]
    job.raw.xdel(job.keys.log, "4-0")
    job.raw.client_kill_filter(_type="normal", skipme=True)
    resync = next(watched)
    assert resync.type == "resync"
    assert "lost its last writes" in resync.data["reason"]
    assert [word(next(watched)) for _ in range(3)] == before[:3]
    assert watched.state.status == "in_progress"


def test_a_cursor_behind_a_lost_tail_is_told_too(job: RawJob) -> None:
    job.join()
    cursor = list(job.watch(follow=False))[-1].cursor
    job.raw.xdel(job.keys.log, "4-0")
    events = shown(job.watch(since=cursor, types=["job.submitted"], follow=False))
    assert events == ["resync", "job.submitted"]
    assert shown(job.watch(since=cursor, snapshot=True, types=["x"], follow=False)) == ["resync", "snapshot"]


def test_a_lost_tail_is_told_also_where_no_connection_broke(job: RawJob) -> None:
    """As a pool or a Cluster client may see a failover: entry 4 is another one, and the reader had read the old one."""
    job.join()
    watched = job.watch()
    before = [word(next(watched)) for _ in range(4)]
    entry = {"type": "notice", "v": "1", "time": "5000000000000", "by": "w", "data": "{}"}
    job.raw.xdel(job.keys.log, "4-0")
    job.raw.xadd(job.keys.log, entry, id="4-1")
    assert word(next(watched)) == "resync"
    assert [word(next(watched)) for _ in range(4)] == [*before[:3], "notice"]


def test_a_later_run_of_the_server_that_lost_nothing_is_no_news(job: RawJob) -> None:
    job.join()
    watched = job.watch()
    for _ in range(4):
        next(watched)
    job.raw.xadd(job.keys.log, {"type": "notice", "v": "1", "time": "5", "by": "w", "data": "{}"}, id="5-1")
    assert word(next(watched)) == "notice"


def test_a_server_that_stays_away_is_named_in_the_end(job: RawJob, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = job.watch(log_timeout_s=0.0)
    next(watched)

    def gone() -> None:
        raise LogUnreachable("no server at redis://nowhere")

    monkeypatch.setattr(job.server, "revive", gone)
    job.raw.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(LogUnreachable, match="does not answer"):
        list(watched)


def test_a_reader_without_the_right_to_read_is_told_so(debian_redis: str) -> None:
    from streamrunner.sinks.server import ExternalServer

    job = RawJob(ExternalServer(debian_redis))
    job.raw.acl_setuser("blind", enabled=True, passwords=["+p"], keys=["sr:jobs"], commands=["+@all"])
    blind = RawJob.__new__(RawJob)
    blind.server, blind.id = ExternalServer(debian_redis.replace("unix://", "unix://blind:p@")), job.id
    with pytest.raises(SinkError) as caught:
        next(blind.watch())
    assert caught.value.code == "log_denied"


def test_a_job_that_was_purged_meanwhile_is_no_endless_wait(job: RawJob) -> None:
    watched = job.watch()
    next(watched)
    job.raw.delete(job.keys.log, job.keys.meta)
    with pytest.raises(SinkError) as caught:
        list(watched)
    assert caught.value.code == "job_not_found"


def test_a_wait_has_no_read_timeout_of_its_own(log_server: LogServer) -> None:
    """redis-py 8 gives up reads after 5 s unless told otherwise; an idle job may be silent for hours."""
    blocking: Any = log_server.client(blocking=True)
    for client in (blocking, log_server.async_client()):
        options = client.connection_pool.connection_kwargs
        assert options["socket_timeout"] is None
        assert "path" in options or options["socket_keepalive_options"]


# ── slow and many ───────────────────────────────────────────────────────────────────────────────────────────────────


_FILL = """
for i = 1, ARGV[1] do
  redis.call('XADD', KEYS[1], (i + 4) .. '-0', 'type', 'progress', 'v', '1', 'time', i * 2, 'by', 'w', 'data', '{}')
  redis.call('XADD', KEYS[2], '1-' .. i, 'v', '1', 't', math.floor(i / 2), 'd', '[[0,1,0,' .. i .. ',[7],"ab"]]')
end
"""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_memory_is_bounded_over_200_000_events(embedded: EmbeddedServer) -> None:
    """The token stream runs far ahead of the log in the server's time, so that one of them always has to wait."""
    job = RawJob(embedded)
    job.join()
    job.raw.eval(_FILL, 2, job.keys.log, job.keys.steps("w"), 100_000)
    watched = job.watch(follow=False)
    for _ in range(5_000):
        next(watched)
    before, most = resident_bytes(), 0
    counted = 5_000
    for counted, _ in enumerate(watched, 5_001):
        if counted % 5_000 == 0:
            most = max(most, resident_bytes())
    assert counted == 200_004
    assert most - before < 16 << 20

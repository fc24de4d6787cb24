"""Public reports about reading streams and about servers, each tried on the log. Numbers: the table in README.md."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from proxy import Command, Proxy
from test_append_faults import completed

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.event_stream import AsyncWatch, Source, Watch, WatchOptions
from streamrunner.runner.spec import load_spec
from streamrunner.runner.view import View
from streamrunner.sinks.address import mask_url
from streamrunner.sinks.log import Flush
from streamrunner.sinks.merge import Cursor
from streamrunner.sinks.reader import read_log
from streamrunner.sinks.server import ExternalServer

if TYPE_CHECKING:
    from desk import Desk

pytestmark = pytest.mark.redis

NOTICE = [("notice", {"code": "c", "message": "m"})]


def desk_source(desk: Desk) -> Source:
    return Source.of(desk.server, desk.keys.job_id)


def num_clients(desk: Desk) -> int:
    return len(desk.client.client_list())


async def cancelled_reads(desk: Desk, times: int) -> list[Any]:
    """Wait for an entry that does not come, again and again, then read one that is there."""
    client: Any = desk.server.async_client()
    for _ in range(times):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.002):
                await client.xread({desk.keys.log: "$"}, block=0)
    found = [await client.ping(), len(await client.xrange(desk.keys.log)), num_clients(desk)]
    await client.aclose()
    return found


def test_02_a_cancelled_wait_never_hands_its_reply_to_the_next_command(desk: Desk) -> None:
    """redis-py #2624, #2665: a cancelled command left its reply in the socket, and the next caller read that one:
    users saw what belonged to others."""
    desk.join()
    answer, length, _ = asyncio.run(cancelled_reads(desk, 5))
    assert answer is True
    assert length == len(desk.types())


def test_03_cancelled_waits_leave_no_connections_behind(desk: Desk) -> None:
    """redis-py #4121: each cancellation within a pipeline cost a slot of the pool for good."""
    before = num_clients(desk)
    *_, after = asyncio.run(cancelled_reads(desk, 200))
    assert after <= before + 2, "its own connection, and one that the server has yet to drop"


def test_05_a_wait_longer_than_any_socket_timeout_is_no_error(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """redis-py #3138, open-webui #27104, girder #3829: BLOCK beyond the client's own timeout ended the listener."""
    monkeypatch.setattr("streamrunner.sinks.connect.COMMAND_TIMEOUT", 0.1)
    with desk.server.client(blocking=True) as reader:
        assert not reader.xread({desk.keys.log: "$"}, block=400)


def test_21_no_reader_leaves_anything_that_could_block_trimming(desk: Desk) -> None:
    """prefect #18606: the group of a reader that was gone kept the stream from being trimmed, until memory was full."""
    desk.join()
    list(Watch(desk_source(desk), View(), WatchOptions(follow=False)))
    for key in (desk.keys.log, desk.keys.res, desk.keys.steps("w")):
        if desk.client.exists(key):
            assert desk.client.xinfo_groups(key) == []


def test_25_nothing_is_missed_or_repeated_between_history_and_live(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """upstash realtime #23, agentscope #2123, bullmq #2874: events between the replay of the
    history and the first live read were lost, or came twice."""
    monkeypatch.setattr("streamrunner.runner.event_stream._BLOCK_MS", 100)
    lease = desk.join()
    stop = threading.Event()

    def write() -> None:
        for n in range(1, 400):
            desk.log.flush(lease, Flush(n, b"", "", NOTICE, []))
        desk.log.control("1", "cancel")
        desk.log.end("cancelled")
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    seqs = [event.seq for event in Watch(desk_source(desk), View(), WatchOptions()) if hasattr(event, "seq")]
    writer.join()
    assert [seq for seq in seqs if seq is not None] == list(range(1, len(desk.types()) + 1))


def test_36_many_viewers_of_one_process_hold_one_connection_each_and_no_pool(desk: Desk) -> None:
    """suna #2733, lion-reader #874: viewers took the connections that the application itself needed."""
    desk.join()

    async def look() -> int:
        watches = [AsyncWatch(desk_source(desk), View(), WatchOptions()) for _ in range(10)]
        before = num_clients(desk)
        for one in watches:
            await anext(one)
        grown = num_clients(desk) - before
        for one in watches:
            await one.aclose()
        return grown

    assert asyncio.run(look()) <= 2 * 10
    assert desk.log.beat(desk.join("x"))["s"] == "OK"


def test_37_a_long_history_is_read_in_pages(desk: Desk) -> None:
    """socket.io-redis-streams-adapter #47: one XRANGE without COUNT over everything took the server's memory."""
    lease = desk.join()
    for n in range(1, 4):
        desk.log.flush(lease, Flush(n, b"", "", NOTICE * 900, []))
    ranges: list[bytes] = []

    def judge(command: Command) -> None:
        if command.name == "XRANGE":
            ranges.append(command.raw.upper())

    with Proxy(desk.process.url, judge) as proxy:
        client = ExternalServer(proxy.url).client()
        entries = list(read_log(client, desk.keys))
    assert len(entries) == len(desk.types()) > 2700
    assert len(ranges) > 1
    assert all(b"COUNT" in one for one in ranges)


def test_39_a_cursor_into_what_is_gone_is_told_and_not_skipped(desk: Desk) -> None:
    """scale-agentex #385, PostHog #94344, #101104: an expired key passed for "finished", a trimmed cursor skipped
    silently."""
    desk.join()
    events = list(Watch(desk_source(desk), View(), WatchOptions(follow=False)))
    cursor = next(event.cursor for event in reversed(events) if hasattr(event, "cursor"))
    desk.client.xtrim(desk.keys.log, maxlen=0, approximate=False)
    desk.client.xadd(desk.keys.log, {"type": "notice", "v": 1, "time": 1, "by": "x", "data": "{}"}, id="90-0")
    assert Cursor.parse(cursor)
    told = list(Watch(desk_source(desk), View(), WatchOptions(follow=False, since=cursor)))
    assert {event.type for event in told} & {"resync", "gap"}


def test_41_progress_is_the_fold_and_does_not_ask_the_server_for_lag(desk: Desk) -> None:
    """redis #13957, valkey #1952: a group's lag was wrong after a trim, and progress with it."""
    lease = desk.join()
    claimed = desk.claim(lease)
    desk.finish(lease, 1, 0, claimed)
    desk.client.xtrim(desk.keys.work, maxlen=1, approximate=False)
    meta = desk.client.hgetall(desk.keys.meta)
    assert int(meta[b"completed"]) == len(desk.ended_rows()) == 1


def test_63_a_password_is_masked_wherever_an_address_is_shown() -> None:
    """honcho #866, whiteboard #1316: the password of the Redis URL stood in the logs."""
    for url in ("redis://u:s3cret@h:1/0", "unix:///s?password=s3cret", "redis+sentinel://:s3cret@h/m"):
        assert "s3cret" not in mask_url(url)
        assert "***" in mask_url(url)


def test_64_a_job_file_runs_no_code(tmp_path: Path) -> None:
    """D-FINE #354: `!!python/object/apply` in a settings file ran whatever it named."""
    path, mark = tmp_path / "job.yaml", tmp_path / "ran"
    path.write_text(
        f"name: t\nmodel: !!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['{mark}']]\n"
    )
    with pytest.raises(RunnerError):
        load_spec(path)
    assert not mark.exists()
    assert "pickle" not in Path(sys.modules["streamrunner.sinks.wire"].__file__ or "").read_text("utf-8")


def test_22_a_waiter_learns_the_end_though_its_event_was_trimmed(desk: Desk) -> None:
    """bullmq #2517: MAXLEN removed "completed" events that nobody had read, and the waiter hung."""
    lease = desk.join()
    claimed = desk.claim(lease)
    desk.log.flush(lease, Flush(1, b"", "", [], [completed(0, claimed)]))
    desk.log.control("1", "cancel")
    desk.log.end("cancelled")
    desk.client.xtrim(desk.keys.log, maxlen=0, approximate=False)
    told = [event.type for event in Watch(desk_source(desk), View(), WatchOptions())]
    assert told[-1] == "ended"

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.merge import PAGE, Cursor, Item
from streamrunner.sinks.reader import LogReader, read_log, read_steps
from streamrunner.sinks.wire import LogEntry, StepEntry

if TYPE_CHECKING:
    from streamrunner.sinks.server import LogServer

_ids = itertools.count()


class Streams:
    """Writes raw entries as sr_v1 would, with times of its own choice."""

    def __init__(self, server: LogServer) -> None:
        self.client: Any = server.client()
        self.keys = JobKeys(f"job_reader{next(_ids)}")
        self._seq = itertools.count(1)

    def log(self, kind: str, time: int, data: str = "{}") -> None:
        fields = {"type": kind, "v": "1", "time": time, "by": "w", "data": data}
        self.client.xadd(self.keys.log, fields, id=f"{next(self._seq)}-0")

    def joined(self, worker: str, time: int) -> None:
        self.log("worker.joined", time, f'{{"worker":"{worker}"}}')

    def step(self, worker: str, n: int, time: int) -> None:
        self.client.xadd(
            self.keys.steps(worker), {"v": "1", "t": time, "d": f'[[0,1,0,{n - 1},[{n}],"t{n}"]]'}, id=f"1-{n}"
        )


@pytest.fixture
def streams(log_server: LogServer) -> Streams:
    return Streams(log_server)


def names(items: list[Item]) -> list[str]:
    return [
        f"{item.entry.worker}{item.entry.n}" if isinstance(item.entry, StepEntry) else f"log{item.entry.seq}"
        for item in items
    ]


def read_all(reader: LogReader) -> list[Item]:
    found: list[Item] = []
    while page := reader.poll():
        found += page
    return found


def test_tokens_come_before_the_event_that_ends_their_row(streams: Streams) -> None:
    streams.joined("a", 10)
    streams.step("a", 1, 11)
    streams.step("a", 2, 12)
    streams.log("request.completed", 12)
    assert names(read_all(LogReader(streams.client, streams.keys, tokens=True))) == ["log1", "a1", "a2", "log2"]


def test_without_tokens_only_the_log_is_read(streams: Streams) -> None:
    streams.joined("a", 10)
    streams.step("a", 1, 11)
    assert names(read_all(LogReader(streams.client, streams.keys))) == ["log1"]


def test_streams_of_several_workers_are_merged_by_time_over_many_pages(streams: Streams) -> None:
    streams.joined("a", 0)
    streams.joined("b", 0)
    for n in range(1, 2 * PAGE + 10):
        streams.step("a", n, 10 * n)
        streams.step("b", n, 10 * n + 5)
        if n % 3 == 0:
            streams.log("progress", 10 * n + 7)
    items = read_all(LogReader(streams.client, streams.keys, tokens=True))
    times = [item.entry.time for item in items]
    assert times == sorted(times)
    assert len(items) == len(set(names(items))) == 2 + 2 * (2 * PAGE + 9) + (2 * PAGE + 9) // 3


def test_any_cursor_continues_right_behind_its_line(streams: Streams) -> None:
    streams.joined("a", 0)
    streams.joined("b", 1)
    for n in range(1, 30):
        streams.step(random.Random(n).choice("ab"), n, 10 * n)
        streams.log("progress", 10 * n)
    whole = read_all(LogReader(streams.client, streams.keys, tokens=True))
    for at in range(len(whole)):
        cursor = Cursor.parse(str(whole[at].cursor))
        rest = read_all(LogReader(streams.client, streams.keys, cursor=cursor, tokens=True))
        assert names(rest) == names(whole[at + 1 :])


def test_a_follower_sees_what_comes_later_without_gap_or_repeat(streams: Streams) -> None:
    streams.joined("a", 0)
    reader = LogReader(streams.client, streams.keys, tokens=True)
    seen = names(reader.poll())
    for n in range(1, 6):
        streams.step("a", n, n)
        seen += names(reader.poll(block_ms=100))
    assert seen == ["log1", "a1", "a2", "a3", "a4", "a5"]


def test_a_lost_tail_is_noticed(streams: Streams) -> None:
    streams.joined("a", 0)
    streams.log("progress", 1)
    reader = LogReader(streams.client, streams.keys)
    read_all(reader)
    assert reader.check() is None
    streams.client.xdel(streams.keys.log, "2-0")
    resync = reader.check()
    assert resync is not None
    assert "2-0" in resync.reason


@pytest.mark.parametrize("text", ["", "zzz", "bm90IGpzb24", "WzEsMl0", "////"])
def test_a_cursor_that_nobody_printed_is_refused(text: str) -> None:
    with pytest.raises(SinkError) as caught:
        Cursor.parse(text)
    assert caught.value.code == "bad_cursor"


def test_pages_of_the_log_and_of_steps_miss_nothing(streams: Streams) -> None:
    for n in range(1, 2 * PAGE + 2):
        streams.log("progress", n)
        streams.step("a", n, n)
    assert [entry.seq for entry in read_log(streams.client, streams.keys)] == list(range(1, 2 * PAGE + 2))
    assert [entry.n for entry in read_steps(streams.client, streams.keys, "a")] == list(range(1, 2 * PAGE + 2))
    assert next(read_log(streams.client, streams.keys, after="5-0")).seq == 6


def test_an_entry_of_a_newer_release_is_refused_by_name(streams: Streams) -> None:
    streams.client.xadd(streams.keys.log, {"type": "t", "v": "2", "time": 1, "by": "w", "data": "{}"}, id="1-0")
    with pytest.raises(SinkError, match="upgrade"):
        read_all(LogReader(streams.client, streams.keys))
    assert LogEntry.__doc__

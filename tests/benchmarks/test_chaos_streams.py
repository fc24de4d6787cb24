"""The raw reader: pages, goes on where it stopped, and never shows a terminal without the tokens before it."""

from __future__ import annotations

import json
from typing import Any

from chaos_kit.streams import Delta, StreamReader, choice_deltas, find_job
from chaos_kit.workload import NUM_ROWS, make_rows, read_lines, write_job

EVENT = {"v": "1", "by": "w", "time": "5"}


class FakeRedis:
    """Streams as lists; XRANGE with exclusive starts and counts, as the server does it."""

    def __init__(self) -> None:
        self.streams: dict[str, list[tuple[str, dict[str, str]]]] = {}

    def add(self, name: str, entry_id: str, **fields: str) -> None:
        self.streams.setdefault(f"sr:{{job_1}}:{name}", []).append((entry_id, fields))

    def xrange(self, key: str, start: str, end: str, count: int) -> list[Any]:
        entries = self.streams.get(key, [])
        ids = [entry_id for entry_id, _ in entries]
        first = 0 if start == "-" else ids.index(start.removeprefix("(")) + 1
        return entries[first : first + count]

    def xrevrange(self, key: str) -> list[Any]:
        return self.streams.get(key, [])[::-1]


def joined(redis: FakeRedis) -> None:
    redis.add("log", "1-0", type="job.submitted", data='{"rows":2}', **EVENT)
    redis.add("log", "2-0", type="worker.joined", data='{"worker":"w","pid":7}', **EVENT)


def test_events_tokens_and_payloads_are_read_once_each() -> None:
    redis, reader = FakeRedis(), StreamReader("job_1")
    joined(redis)
    redis.add("steps:w", "1-1", v="1", t="6", d='[[0,1,0,0,[11,12],"ab"],[1,1,0,0,[13],"c",[[]]]]')
    redis.add("log", "3-0", type="request.completed", data='{"row":0,"custom_id":"a"}', **EVENT)
    redis.add("res", "3-0", v="1", p='{"choices":[]}')
    reader.poll(redis)  # type: ignore[arg-type]
    streams = reader.poll(redis)  # type: ignore[arg-type]
    assert [event.type for event in streams.events] == ["job.submitted", "worker.joined", "request.completed"]
    assert [event.seq for event in streams.terminals] == [3]
    assert streams.num_rows == 2
    assert streams.payloads == {"3-0": {"choices": []}}
    assert streams.deltas == [Delta(6, "w", 0, 1, 0, 0, (11, 12), "ab"), Delta(6, "w", 1, 1, 0, 0, (13,), "c")]


def test_reading_goes_on_where_it_stopped() -> None:
    redis, reader = FakeRedis(), StreamReader("job_1")
    joined(redis)
    reader.poll(redis)  # type: ignore[arg-type]
    redis.add("steps:w", "1-1", v="1", t="6", d='[[0,1,0,0,[11],"a"]]')
    reader.poll(redis)  # type: ignore[arg-type]
    redis.add("steps:w", "1-2", v="1", t="7", d='[[0,1,0,1,[12],"b"]]')
    assert [delta.text for delta in reader.poll(redis).deltas] == ["a", "b"]  # type: ignore[arg-type]


def test_long_streams_are_read_page_by_page() -> None:
    redis, reader = FakeRedis(), StreamReader("job_1")
    joined(redis)
    for n in range(2500):
        redis.add("steps:w", f"1-{n}", v="1", t="6", d=f'[[0,1,0,{n},[1],"x"]]')
    deltas = reader.poll(redis).deltas  # type: ignore[arg-type]
    assert [delta.at for delta in deltas] == list(range(2500))


def test_deltas_of_a_choice_come_claim_by_claim() -> None:
    redis, reader = FakeRedis(), StreamReader("job_1")
    joined(redis)
    redis.add("steps:w", "1-1", v="1", t="9", d='[[0,2,0,0,[1],"new"],[0,1,0,0,[1],"old"],[0,1,1,0,[1],"other"]]')
    found = choice_deltas(reader.poll(redis))  # type: ignore[arg-type]
    assert [delta.text for delta in found[0, 0]] == ["old", "new"]
    assert [delta.text for delta in found[0, 1]] == ["other"]


def test_the_newest_job_of_a_name_is_found() -> None:
    redis = FakeRedis()
    redis.streams["sr:jobs"] = [("1-0", {"job": f"job_{n}", "name": name}) for n, name in enumerate("aba")]
    assert find_job(redis, "a") == "job_2"
    assert find_job(redis, "z") is None


def test_half_of_the_rows_have_two_choices_and_stop_strings(tmp_path: Any) -> None:
    rows = make_rows(32)
    assert len({row["custom_id"] for row in rows}) == NUM_ROWS == 64
    assert len({row["body"]["messages"][0]["content"] for row in rows}) == 64
    assert sum(row["body"].get("n") == 2 and bool(row["body"]["stop"]) for row in rows) == 32
    job = json.loads(write_job(tmp_path, "j", seed=3, max_tokens=32).read_text())
    assert job["sampling"] == {"temperature": 0.8, "seed": 3}
    assert len((tmp_path / job["input"]["path"]).read_text().splitlines()) == 64
    assert read_lines(tmp_path / job["outputs"][0]["path"]) == []

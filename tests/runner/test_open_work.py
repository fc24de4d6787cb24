from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.runner.open_work import OpenWork
from streamrunner.runner.row_work import Kind, RowWork, sum_by_kind
from streamrunner.runner.spec import SamplingSpec
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import JobLog

if TYPE_CHECKING:
    from streamrunner.sinks.embedded.server import EmbeddedServer

_ids = itertools.count()
SHORT, LONG = RowWork(100, 1, 16), RowWork(4000, 2, 500)


@pytest.fixture
def keys(embedded: EmbeddedServer) -> JobKeys:
    """Three ranges: 64 short rows, 3 long ones, and 70 of which nothing is noted."""
    keys = JobKeys(f"job_open{next(_ids)}")
    ranges: list[dict[str, Any]] = [
        {"first": 0, "count": 64, "work": sum_by_kind([SHORT] * 64)},
        {"first": 64, "count": 3, "work": sum_by_kind([LONG] * 3)},
        {"first": 67, "count": 70, "bytes": 70_000},
    ]
    JobLog(embedded, keys, "t").submit({"name": "t"}, 137, ranges)
    return keys


def close(server: EmbeddedServer, keys: JobKeys, *rows: int) -> None:
    client: Any = server.client()
    for row in rows:
        client.setbit(keys.done, row, 1)


def open_work(server: EmbeddedServer, keys: JobKeys) -> OpenWork:
    return OpenWork(server.client(), keys, SamplingSpec(n=3, max_tokens=20))


def test_open_rows_are_counted_by_kind_with_what_they_ask(embedded: EmbeddedServer, keys: JobKeys) -> None:
    found = open_work(embedded, keys).waiting([])
    assert found[SHORT.kind] == (64, 6400, 64, 1024)
    assert found[LONG.kind] == (3, 12000, 6, 3000)
    # Nothing noted: the job's own sampling, and the bytes of the range.
    assert found[Kind(10, 5)] == (70, 70_000, 210, 4200)


@pytest.mark.parametrize("rows", [[0], [63], [64, 66], [67, 136], list(range(137)), list(range(60, 70))])
def test_rows_with_their_ending_do_not_count(embedded: EmbeddedServer, keys: JobKeys, rows: list[int]) -> None:
    close(embedded, keys, *rows)
    found = open_work(embedded, keys).waiting([])
    assert sum(one.rows for one in found.values()) == pytest.approx(137 - len(rows))


def test_rows_in_flight_are_taken_off_their_range(embedded: EmbeddedServer, keys: JobKeys) -> None:
    found = open_work(embedded, keys).waiting(["2-0", "2-0", "1-0", "unknown"])
    assert (found[SHORT.kind].rows, found[LONG.kind].rows) == (63, 1)
    assert LONG.kind not in open_work(embedded, keys).waiting(["2-0"] * 3)


def test_a_row_that_was_split_off_counts_once(embedded: EmbeddedServer, keys: JobKeys) -> None:
    client: Any = embedded.client()
    client.xadd(keys.work, {"range": '{"first":32,"count":32,"work":{}}'})
    found = open_work(embedded, keys).waiting([])
    assert sum(one.rows for one in found.values()) == pytest.approx(137)


def test_asked_again_at_once_it_costs_nothing(embedded: EmbeddedServer, keys: JobKeys) -> None:
    work = open_work(embedded, keys)
    work.waiting([])
    work._next = float("inf")
    close(embedded, keys, 0)
    assert work.waiting([])[SHORT.kind].rows == 64


def test_rows_ended_since_the_last_count_are_taken_off(embedded: EmbeddedServer, keys: JobKeys) -> None:
    work = open_work(embedded, keys)
    work.waiting([], 100)
    work._next = float("inf")
    assert sum(one.rows for one in work.waiting([], 110).values()) == pytest.approx(127)
    assert work.waiting([], 300) == {}


def test_ranges_that_come_later_count_too(embedded: EmbeddedServer, keys: JobKeys) -> None:
    work = open_work(embedded, keys)
    work.waiting([])
    work._next = 0.0
    client: Any = embedded.client()
    client.xadd(keys.work, {"range": '{"first":137,"count":10,"bytes":10000}'})
    assert work.waiting([])[Kind(10, 5)].rows == 80

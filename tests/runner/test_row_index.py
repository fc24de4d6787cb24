"""Where rows have their endings, also in jobs that were reopened; and which rows a reader gets, in which order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrunner.runner.row_index import RowIndex, pack_id, unpack_id
from streamrunner.runner.selection import Selection
from streamrunner.sinks.wire import LogEntry

USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class Log:
    """Entries with contiguous seqs."""

    def __init__(self, num_rows: int) -> None:
        self.index, self.seq, self.counts = RowIndex(), 0, dict.fromkeys(("completed", "failed", "cancelled"), 0)
        self.add("job.submitted", name="t", rows=num_rows, spec={})

    def add(self, kind: str, **data: Any) -> bool:
        self.seq += 1
        return self.index.apply([LogEntry(self.seq, 0, kind, 1, 0, "w", data)]).reopened

    def end(self, row: int, kind: str = "completed", attempt: int = 1) -> bool:
        return self.add(f"request.{kind}", row=row, attempt=attempt, usage=USAGE)

    def finish(self, status: str) -> None:
        counts = {"completed": 0, "failed": 0, "cancelled": 0, "expired": 0}
        self.add("job.ended", status=status, reason=None, counts=counts)

    def rows(self, *selection: Any) -> list[int]:
        found: list[int] = Selection(*selection).ended_rows(self.index).tolist()
        return found


def test_rows_are_found_by_when_they_ended_and_by_where_they_stand() -> None:
    log = Log(4)
    for row in (3, 0, 2):
        log.end(row)
    assert log.rows() == [3, 0, 2]
    assert log.rows("all", "input") == [0, 2, 3]
    assert [log.index.is_ended(row) for row in range(4)] == [True, False, True, True]


def test_rows_that_share_the_ending_of_their_job_come_last_or_in_their_place() -> None:
    log = Log(4)
    log.end(2)
    log.finish("cancelled")
    assert log.rows() == [2, 0, 1, 3]
    assert log.rows("all", "input") == [0, 1, 2, 3]
    assert log.rows("completed") == [2]
    assert log.rows("failed") == [0, 1, 3]


def test_a_retried_row_is_open_again_and_counts_once_under_its_new_attempt() -> None:
    log = Log(3)
    log.end(0)
    log.end(1, "failed")
    log.end(2)
    log.finish("completed")
    assert log.add("job.reopened", rows=1) is False
    assert log.add("request.retried", row=1, attempt=2) is True
    assert log.rows() == [0, 2]
    assert log.rows("failed") == []
    log.end(1, attempt=2)
    assert log.rows() == [0, 2, 1]
    assert log.index.attempts.tolist() == [1, 2, 1]


def test_rows_keep_the_ending_they_shared_when_others_are_retried() -> None:
    log = Log(3)
    log.end(0, "failed")
    log.finish("cancelled")
    log.add("job.reopened", rows=1)
    log.add("request.retried", row=0, attempt=2)
    assert log.rows("all", "input") == [1, 2]
    log.end(0, attempt=2)
    assert log.rows() == [0, 1, 2]


def test_a_second_ending_of_a_row_is_told_like_a_reopening() -> None:
    log = Log(2)
    assert log.end(0) is False
    assert log.end(0, attempt=2) is True


@pytest.mark.parametrize("text", ["1-0", "77-3", f"{2**43}-{2**20 - 1}"])
def test_an_id_survives_being_one_number(text: str) -> None:
    seq, _, gen = text.partition("-")
    assert unpack_id(pack_id(int(seq), int(gen))) == text


@given(st.lists(st.tuples(st.integers(1, 2**40), st.integers(0, 99))))
def test_packed_ids_sort_as_ids_do(ids: list[tuple[int, int]]) -> None:
    assert sorted(ids) == [one for _, one in sorted((pack_id(*one), one) for one in ids)]

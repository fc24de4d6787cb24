from __future__ import annotations

from typing import Any

import pytest

from streamrunner.runner.row_work import Kind, RowWork, row_work, sum_by_kind
from streamrunner.runner.rows import Row
from streamrunner.runner.spec import SamplingSpec

SAMPLING = SamplingSpec(n=2, max_tokens=100)
PARTS: list[Any] = [{"type": "text", "text": "four"}, {"type": "image_url"}]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Row(0, "a", "completion", prompt="twelve chars"), RowWork(12, 2, 100)),
        (Row(0, "a", "completion", prompt="x", overrides={"n": 1, "max_tokens": 7}), RowWork(1, 1, 7)),
        (Row(0, "a", "chat", messages=({"content": "abc"}, {"content": None}, {"content": PARTS})), RowWork(7, 2, 100)),
        (Row(0, "a", "completion", prompt="x", overrides={"max_tokens": None}), RowWork(1, 2, 2048)),
    ],
)
def test_what_a_row_asks_is_its_prompt_its_choices_and_their_limit(row: Row, expected: RowWork) -> None:
    assert row_work(row, SAMPLING) == expected


def test_rows_of_a_kind_are_summed_and_kinds_kept_apart() -> None:
    assert sum_by_kind([RowWork(100, 1, 16), RowWork(120, 2, 20), RowWork(1000, 1, 16)]) == [
        [2, 220, 3, 56], [1, 1000, 1, 16],
    ]  # fmt: skip
    assert RowWork(100, 1, 16).kind == Kind(7, 5)

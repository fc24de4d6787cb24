from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from streamrunner.runner.flight import ChoiceRun, RowRun
from streamrunner.runner.spec_control import StopRule
from streamrunner.runner.stop_rules import Fired, StopGuard


def run(row: int, *texts: str, finish: str = "stop") -> RowRun:
    choices = [ChoiceRun(f"{row}.{i}", text=text, finish_reason=finish) for i, text in enumerate(texts)]
    numbered: Any = SimpleNamespace(index=row)
    params: Any = None
    return RowRun(numbered, "1-0", 1, 1, [], params, choices)


def guard(**rule: Any) -> StopGuard:
    return StopGuard([StopRule.model_validate({"window": 4, "min_rows": 2, "share": 0.5, **rule})])


def judge(watcher: StopGuard, *texts: str, **how: Any) -> list[Fired | None]:
    return [watcher.take(run(i, text, **how)) for i, text in enumerate(texts)]


def test_a_rule_fires_at_its_share_of_the_window_and_names_rows() -> None:
    found = judge(guard(regex="(?i)as an ai"), "fine", "As an AI I cannot", "fine", "fine")
    assert found[0] is None
    assert found[1] is not None
    assert found[1].rows == [1]
    assert found[1].message.startswith("stop_when (regex '(?i)as an ai', share 0.5): 1 of the last 2 rows look so")


def test_nothing_fires_before_there_are_enough_rows() -> None:
    assert judge(guard(empty=True, min_rows=3), "", " \n") == [None, None]


def test_old_rows_leave_the_window() -> None:
    found = judge(guard(empty=True, share=0.75), "", "a", "a", "a", "", "", "")
    assert [one is not None for one in found] == [False] * 6 + [True]


def test_a_rule_that_fired_begins_again_over_new_rows() -> None:
    found = judge(guard(empty=True), "", "", "a", "")
    assert [one is not None for one in found] == [False, True, False, True]


def test_rows_that_were_cut_by_length_count_as_such() -> None:
    assert judge(guard(finish_reason="length"), "a", "b", finish="length")[1] is not None
    assert judge(guard(finish_reason="length"), "a", "b") == [None, None]


def test_a_row_looks_so_if_any_of_its_choices_does() -> None:
    watcher = guard(empty=True, min_rows=1)
    assert watcher.take(run(7, "text", "")) is not None


def test_every_rule_sees_every_row() -> None:
    rules = [{"empty": True, "share": 1.0}, {"regex": "x", "share": 1.0}]
    watcher = StopGuard([StopRule.model_validate({"window": 2, "min_rows": 2, **rule}) for rule in rules])
    assert [one is not None for one in judge(watcher, "x", "x")] == [False, True]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({}, "one of `regex`"),
        ({"regex": "a", "empty": True}, "one of `regex`"),
        ({"regex": "(", "share": 0.5}, "no regular expression"),
        ({"empty": True, "share": 0.0}, "greater than 0"),
        ({"empty": True, "window": 10, "min_rows": 20}, "never has that many"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused_in_words(rule: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        StopRule.model_validate({"share": 0.5, **rule})

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from streamrunner.runner import ids
from streamrunner.runner.ids import new_job_id, new_ulid

if TYPE_CHECKING:
    import pytest


def test_an_id_is_a_ulid_that_can_be_typed_and_stand_in_a_file_name() -> None:
    assert re.fullmatch(r"job_[0-7][0-9a-hjkmnp-tv-z]{25}", new_job_id())


def test_a_thousand_ids_made_at_once_differ() -> None:
    assert len({new_ulid() for _ in range(1000)}) == 1000


def test_ids_sort_by_the_time_they_were_made_at(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns()
    made = []
    for later_ms in (0, 1, 60_000, 10**10, 10**12):
        monkeypatch.setattr(ids.time, "time_ns", lambda at=now_ns + later_ms * 10**6: at)
        made.append(new_ulid())
    assert made == sorted(made)


def test_the_time_can_be_read_from_the_first_ten_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids.time, "time_ns", lambda: 1_469_918_176_385 * 10**6)
    assert new_ulid()[:10] == "01aryz6s41"  # the example of the ULID specification

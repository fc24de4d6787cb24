from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamrunner.runner.unique import CustomIds, Repeated, repeated


def noted(ids: list[str | None]) -> CustomIds:
    found = CustomIds()
    for one in ids:
        found.add(one)
    return found


@given(st.lists(st.one_of(st.none(), st.text(max_size=2))))
def test_rows_are_suspected_exactly_when_they_share_an_id(ids: list[str | None]) -> None:
    groups = sorted(noted(ids).suspects().values())
    named = [one for one in ids if one is not None]
    wanted = {one for one in named if named.count(one) > 1}
    assert groups == sorted([row for row, one in enumerate(ids) if one == name] for name in wanted)


def test_rows_whose_ids_only_share_a_hash_are_not_accused() -> None:
    assert repeated([(0, "a"), (5, "b")]) == []
    assert repeated([(0, "a"), (5, "b"), (7, "a")]) == [Repeated("a", [0, 7])]


def test_a_million_ids_take_eight_bytes_each() -> None:
    ids = noted([f"request-{number}" for number in range(1000)])
    assert ids.suspects() == {}
    assert ids.num_bytes == 8000

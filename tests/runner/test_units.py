from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrunner.runner.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1073741824", 1 << 30),
        ("2GiB", 2 << 30),
        ("5 MB", 5 * 10**6),
        ("1.5kib", 1536),
        (" 3tb ", 3 * 10**12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("1s", 1.0), ("2 m", 120.0), ("0.5h", 1800.0), ("1d", 86400.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "GiB", "2 bananas", "-1GiB", "1e9", "1,5GB", "2GiB2", "٣GiB", "1.GB", "nan"])
def test_what_is_no_size_is_answered_with_one(text: str) -> None:
    with pytest.raises(ValueError, match="such as 2GiB or 512MiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "5", "1 fortnight", "-1s", "1s 500ms", "1GiB"])
def test_what_is_no_duration_is_answered_with_one(text: str) -> None:
    with pytest.raises(ValueError, match="500ms, 1s or 2m"):
        parse_seconds(text)


@pytest.mark.parametrize("parse", [parse_bytes, parse_seconds])
def test_amounts_beyond_all_measure_are_refused(parse: Callable[[str], float]) -> None:
    for unit in ("b", "s"):
        with pytest.raises(ValueError):
            parse("9" * 400 + unit)
    with pytest.raises(ValueError, match="more than there is"):
        parse("9" * 17 + ("d" if parse is parse_seconds else "tb"))


@given(st.text(max_size=12))
def test_any_text_is_an_amount_or_a_value_error(text: str) -> None:
    for parse in (parse_bytes, parse_seconds):
        try:
            assert parse(text) >= 0
        except ValueError:
            continue

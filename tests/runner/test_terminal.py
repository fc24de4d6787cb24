from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrunner.runner.terminal import clean


@pytest.mark.parametrize(
    ("hostile", "harmless"),
    [
        ("plain text\n\twith lines", "plain text\n\twith lines"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]52;c;ZXZpbA==\x07clip", "clip"),
        ("\x1b]0;title\x1b\\after", "after"),
        ("\x1bP+q544e\x1b\\after", "after"),
        ("\x9b31mred", "red"),
        ("a\rb\x08c\x00d", "abcd"),
        ("no \udcff utf-8", "no  utf-8"),
        ("\ud83d\ude00", ""),
        ("日本語 🌊 é", "日本語 🌊 é"),
    ],
)
def test_escapes_go_and_text_stays(hostile: str, harmless: str) -> None:
    assert clean(hostile) == harmless


@given(st.text(alphabet=st.sampled_from("\x1b\x9b\x9d[]PX^_\\;0123mHJ\x07\x08\r\x00ab\n\t")))
def test_nothing_that_a_terminal_obeys_is_left(hostile: str) -> None:
    left = clean(hostile)
    assert all(char in "\n\t" or (ord(char) >= 32 and not 127 <= ord(char) < 160) for char in left)


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_what_is_left_can_be_written(text: str) -> None:
    clean(text).encode("utf-8")


@given(st.text())
def test_cleaning_twice_changes_nothing(text: str) -> None:
    assert clean(clean(text)) == clean(text)

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrunner.runner.strict_json import parse_strict

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)
# Pieces that JSON texts are made of; put together at random, most of them make no JSON at all.
PIECES = st.sampled_from([
    b"{", b"}", b"[", b"]", b":", b",", b" ", b"\t", b"\n", b"\r", b'"', b'"a"', b'"b"', b'"a":', b'"a" :',
    b'"\\u0061":', b'":"', b'"\\":"', b'"\\u003a"', b'"\\u0022:"', b'"\\ud83d\\ude00"', b'"\\ud83d"', b'"\\ude00"',
    b'"\xc3\xa9"', b"\xff", b"\xe2\x80\xa8", b"\x00", b"\\", b"1", b"-0", b"1.5", b"1e9", b"1e999", b"01", b"1.",
    b"99999999999999999999", b"NaN", b"-Infinity", b"null", b"true", b'{"a":1,"a":2}', b'{"a":":","a":1}',
    b'{"a":1,"b":2}',
])  # fmt: skip


def strictly(raw: bytes) -> Any:
    """The plain way to say what is JSON: the standard library's reader, duplicates and constants refused."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    def refuse(name: str) -> None:
        raise ValueError(name)

    value = json.loads(raw.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    return value


def same(one: Any, other: Any) -> bool:
    """Equal in value, type and key order."""
    return repr(one) == repr(other)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]), st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : ")]))
def test_whatever_json_writes_is_read_back_the_same(
    value: Any, ascii_only: bool, indent: int | None, separators: tuple[str, str]
) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only, indent=indent, separators=separators).encode()
    assert same(parse_strict(raw), value)


@given(st.lists(PIECES, max_size=12).map(b"".join))
def test_it_accepts_what_is_strict_json_and_nothing_else(raw: bytes) -> None:
    try:
        expected = strictly(raw)
    except (ValueError, AssertionError):
        with pytest.raises(ValueError):
            parse_strict(raw)
    else:
        assert same(parse_strict(raw), expected)


@given(st.from_regex(rb"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True))
def test_numbers_are_those_of_python(raw: bytes) -> None:
    expected = json.loads(raw)
    if isinstance(expected, float) and math.isinf(expected):
        with pytest.raises(ValueError, match="too large"):
            parse_strict(raw)
    else:
        assert same(parse_strict(raw), expected)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' stands twice"),
        (b'{"a":1,"\\u0061":2}', "the key 'a' stands twice"),
        (b'{"a":1,"a":"\\u0022:"}', "the key 'a' stands twice"),
        (b'{"a" :1,"a" :":"}', "the key 'a' stands twice"),
        (b'{"a":":","a":1}', "the key 'a' stands twice"),
        (b'{"a":1,"a":"\\u003a"}', "the key 'a' stands twice"),
        (b'{"a":1,"a":"\\u003A"}', "the key 'a' stands twice"),
        (b'[NaN]', "NaN is no JSON number"),
        (b'{"t": Infinity}', "Infinity is no JSON number"),
        (b"[1e999]", "a number is too large"),
        (b'["\\ud800"]', "half a character"),
        (b'{"\\udc00": 1}', "half a character"),
        (b'["\\ud800\\ud800\\udc00"]', "half a character"),
        (b'["\xed\xa0\x80"]', "utf-8"),
        (b'["\xc0\xaf"]', "utf-8"),
        (b"[1] [2]", "Extra data"),
        (b"", "Expecting value"),
        (b"\xef\xbb\xbf[]", "BOM"),
        (b"9" * 5000, "digits"),
    ],
)  # fmt: skip
def test_the_reason_is_told(raw: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_strict(raw)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a" :', b"}]")])
@pytest.mark.parametrize("depth", [66, 1_000, 100_000])
def test_depth_that_would_break_a_reader_is_refused(opening: bytes, closing: bytes, depth: int) -> None:
    with pytest.raises(ValueError, match="nested more than 64 deep"):
        parse_strict(opening * depth + b"1" + closing * depth)


@pytest.mark.parametrize("blank", [b"", b" "])
def test_the_limit_of_depth_is_the_same_however_the_text_is_written(blank: bytes) -> None:
    fits = (b'{"a"' + blank + b":") * 63 + b"1" + b"}" * 63
    assert json.loads(fits) == parse_strict(fits)
    with pytest.raises(ValueError, match="nested"):
        parse_strict(b"[" + fits + b"]")

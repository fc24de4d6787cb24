"""JSON as RFC 8259 has it: no NaN, no duplicate keys, no lone surrogates, no depth that breaks the reader.

msgspec reads three times as fast, but lets the last of two equal keys win and gives no reasons: whatever it refuses, or
what might have such keys, is read again by the standard library. Both accept the same texts.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import msgspec

# Deeper than any request, and far from Python's recursion limit.
_MAX_DEPTH = 64
_TOO_DEEP = -(1 << 62)
_BLANK_BEFORE_COLON = re.compile(rb"[ \t\r\n]:")

_decode_fast = msgspec.json.Decoder().decode


def parse_strict(raw: bytes) -> Any:
    """Raises ValueError (UnicodeDecodeError for bytes that are no UTF-8) with a short reason."""
    try:
        value = _decode_fast(raw)
    except (msgspec.MsgspecError, RecursionError):
        return _parse_slowly(raw)
    if isinstance(value, dict | list) and not _has_unique_keys(raw, value):
        return _parse_slowly(raw)
    return value


def _has_unique_keys(raw: bytes, value: Any) -> bool:
    """Whether it is certain that no key was given twice, nor the depth exceeded.

    Every key in the text has a colon behind it: if there are no more colons than keys in the value, none is lost. Where
    texts hold colons too, those behind a quotation mark are counted.
    """
    num_keys = _num_keys(value, _MAX_DEPTH - 1)
    if num_keys == raw.count(b":"):
        return True
    return num_keys == raw.count(b'":') and _BLANK_BEFORE_COLON.search(raw) is None


def _num_keys(value: Any, depth: int) -> int:
    """Keys of all objects; far below zero if containers go deeper than `depth`."""
    if depth == 0:
        return _TOO_DEEP
    count = 0
    if type(value) is dict:
        count = len(value)
        value = value.values()
    for one in value:
        kind = type(one)
        if kind is dict or kind is list:
            count += _num_keys(one, depth - 1)
    return count


def _parse_slowly(raw: bytes) -> Any:
    text = raw.decode("utf-8")
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} deep") from error
    _check(value, _MAX_DEPTH)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _check(value: Any, depth: int) -> None:
    if depth == 0:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float):
        if value in (float("inf"), float("-inf")):
            raise ValueError("a number is too large")
    elif isinstance(value, dict):
        for name, one in value.items():
            _check_text(name)
            _check(one, depth - 1)
    elif isinstance(value, list):
        for one in value:
            _check(one, depth - 1)


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"a text holds half a character (surrogate {text[error.start]!a})") from error

"""JSON as RFC 8259 has it: no NaN, no duplicate keys, no lone surrogates, no depth that breaks the reader.

msgspec reads three times as fast, but lets the last of two equal keys win and gives no reasons: whatever it refuses, or
what might have such keys, is read again by the standard library. Both accept the same texts.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import msgspec

# Deeper than any request, and far from Python's recursion limit.
_MAX_DEPTH = 64

_decode_fast = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def parse_strict(raw: bytes) -> Any:
    """Raises ValueError (UnicodeDecodeError for bytes that are no UTF-8) with a short reason."""
    try:
        value = _decode_fast(raw)
        if _has_every_key(value, raw) and _is_shallow(value, raw):
            return value
    except (msgspec.MsgspecError, OverflowError, RecursionError):
        pass
    return _parse_slowly(raw)


def _has_every_key(value: Any, raw: bytes) -> bool:
    """Whether it is certain that no key was given twice, so that nothing of the text is missing in the value.

    A text has a colon for every key, and those in its strings; written anew, a value that lost a key has fewer. Only an
    escaped colon would be counted once and not twice.
    """
    return raw.count(b":") == _encode(value).count(b":") and b"\\u003" not in raw


def _is_shallow(value: Any, raw: bytes) -> bool:
    return raw.count(b"[") + raw.count(b"{") < _MAX_DEPTH or _is_within(value, _MAX_DEPTH)


def _is_within(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(_is_within(one, depth - 1) for one in inner)


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

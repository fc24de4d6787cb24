"""JSON as RFC 8259 has it: no NaN, no duplicate keys, no lone surrogates, no depth that breaks the reader."""

from __future__ import annotations

import json
from typing import Any, NoReturn

# Deeper than any request, and far from Python's recursion limit.
_MAX_DEPTH = 64


def parse_strict(raw: bytes) -> Any:
    """Raises ValueError (UnicodeDecodeError for bytes that are no UTF-8) with a short reason."""
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

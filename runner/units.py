"""Sizes and durations as people write them: `2GiB`, `500ms`."""

from __future__ import annotations

import re

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z", re.ASCII)
_BYTES = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
# Beyond it a float skips whole numbers.
_MOST = float(1 << 53)
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_bytes(text: str) -> int:
    """Bytes in `2GiB`, `512MB` or `1073741824`. Raises ValueError with the remedy."""
    return int(_parse(text, _BYTES, "a size such as 2GiB or 512MiB"))


def parse_count(text: str) -> int:
    """How many in `5M`, `200k` or `1000`. Raises ValueError with the remedy."""
    return int(_parse(text, _COUNTS, "a number such as 5000, 200k or 5M"))


def parse_seconds(text: str) -> float:
    """Seconds in `500ms`, `1s`, `2m` or `1h`. Raises ValueError with the remedy."""
    return _parse(text, _SECONDS, "a duration with its unit, such as 500ms, 1s or 2m")


def format_seconds(seconds: float) -> str:
    """A duration with its two largest units: `8 s`, `3 min 20 s`, `2 h 5 min`, `1 d 4 h`."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    for size, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {name}" if rest else "")
    raise AssertionError(whole)


def _parse(text: str, units: dict[str, float] | dict[str, int], what: str) -> float:
    found = _QUANTITY.match(text)
    if found is None or found[2].lower() not in units:
        raise ValueError(f"write {what}")
    amount = float(found[1]) * units[found[2].lower()]
    if amount > _MOST:
        raise ValueError(f"{text[:20]} is more than there is: write {what}")
    return amount

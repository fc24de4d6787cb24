"""Identifiers that sort by time: ULIDs (48 bits of milliseconds, 80 random bits, Crockford base 32)."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 26
_RANDOM_BITS = 80


def new_ulid() -> str:
    """26 lower-case characters; later ones sort behind earlier ones (to the millisecond)."""
    value = (time.time_ns() // 1_000_000) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    return "".join(_ALPHABET[value >> 5 * place & 31] for place in reversed(range(_LENGTH)))


def new_job_id() -> str:
    """`job_<ulid>`."""
    return f"job_{new_ulid()}"

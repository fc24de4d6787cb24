"""One result, as every output format takes it, and the id that tells whose result it is."""

from __future__ import annotations

import re
from typing import NamedTuple

# In an array of 64-bit numbers: a million rows cost 8 MB.
ATTEMPT_BITS = 16
_LINE_ID = re.compile(rb"batch_req_([0-9A-Za-z]+)_(\d+)_(\d+)")


class RowAttempt(NamedTuple):
    """What one result answers; attempts count from 1."""

    row: int
    attempt: int


class ResultRecord(NamedTuple):
    """One row's result.

    custom_id: as JSON. status: completed, failed, cancelled or expired. status_code and body: of the response, 0 and
    empty where there is none. error: as JSON, `null` where the response says it all.
    """

    row: int
    attempt: int
    custom_id: bytes
    status: str
    status_code: int
    body: bytes
    error: bytes


class LineId(NamedTuple):
    """A result's id taken apart; `owner` is the ULID of its job."""

    owner: bytes
    row: int
    attempt: int


def line_id(owner: bytes, row: int, attempt: int) -> bytes:
    """`batch_req_<job>_<row>_<attempt>`."""
    return b"batch_req_%b_%d_%d" % (owner, row, attempt)


def parse_line_id(text: bytes) -> LineId | None:
    """None for what `line_id` did not make."""
    found = _LINE_ID.fullmatch(text)
    return None if found is None else LineId(found[1], int(found[2]), int(found[3]))


def pack(row: int, attempt: int) -> int:
    """Row and attempt as one number."""
    return row << ATTEMPT_BITS | attempt


def unpack(packed: int) -> RowAttempt:
    """The inverse of `pack`."""
    return RowAttempt(packed >> ATTEMPT_BITS, packed & (1 << ATTEMPT_BITS) - 1)

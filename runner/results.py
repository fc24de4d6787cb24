"""Result lines from the log: every row of a job exactly once, in the order in which rows got their ending.

Rows that were open when the job ended come last, with the job's ending as their error; they are taken from this
reader's own fold and not from the live bitmap, which a retry clears.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.runner.fold import OPEN, JobState
from streamrunner.runner.inputs import RangeSpec, read_range
from streamrunner.runner.response import ended_line, result_line
from streamrunner.runner.rows import parse_row
from streamrunner.sinks.reader import read_payloads
from streamrunner.sinks.wire import LogEntry, decode_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import redis

    from streamrunner.runner.spec import JobSpec
    from streamrunner.sinks.keys import JobKeys

_TERMINAL = frozenset({"request.completed", "request.failed"})


class ResultLine(NamedTuple):
    """One line of output (no newline) and the row it answers."""

    row: int
    attempt: int
    line: bytes


def result_lines(client: redis.Redis, keys: JobKeys, job_id: str, entries: Iterable[LogEntry]) -> Iterator[ResultLine]:
    """The lines of those entries that end a row."""
    terminals = [entry for entry in entries if entry.type in _TERMINAL]
    if not terminals:
        return
    payloads = read_payloads(client, keys, terminals)
    for entry in terminals:
        data = entry.data
        yield ResultLine(data["row"], data["attempt"], result_line(job_id, entry.type, data, payloads[entry.id]))


def open_row_lines(
    client: redis.Redis, keys: JobKeys, job_id: str, state: JobState, spec: JobSpec
) -> Iterator[ResultLine]:
    """Lines for the rows that share the ending of their job (cancelled, expired, failed)."""
    if OPEN not in state.rows:
        return
    code, message = _ENDINGS[state.status]
    raw: Any = client
    for _, fields in raw.xrange(keys.work):
        found = RangeSpec(**decode_json(fields[b"range"]))
        if OPEN not in state.rows[found.first : found.first + found.count]:
            continue
        for index, custom_id in _custom_ids(found, spec):
            if state.rows[index] == OPEN:
                error = {"code": code, "message": state.reason or message}
                yield ResultLine(index, 1, ended_line(job_id, index, custom_id, error))


def _custom_ids(found: RangeSpec, spec: JobSpec) -> Iterator[tuple[int, str]]:
    for index, line, raw in read_range(found):
        yield index, parse_row(raw, index, line, spec).custom_id or f"row-{index}"


_ENDINGS = {
    "cancelled": ("batch_cancelled", "the job was cancelled before this row finished"),
    "expired": ("batch_expired", "the job expired before this row finished"),
    "failed": ("batch_failed", "the job failed before this row finished"),
}

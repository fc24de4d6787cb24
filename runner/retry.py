"""Which rows of a job get another attempt, and the one call that opens them again.

    log ──fold──▶ rows that ended without a result ──(--codes, --rows)──▶ their lines, range by range ──▶ sr_v1_retry

A row belongs to the range of its latest attempt. A completed row is never run again.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.fold import CANCELLED, COMPLETED, EXPIRED, FAILED, OPEN, JobState
from streamrunner.runner.ids import new_ulid
from streamrunner.runner.inputs import RangeSpec, read_range
from streamrunner.runner.rows import parse_row
from streamrunner.runner.spec import JobSpec
from streamrunner.sinks.log import JobLog, RetriedCounts, RetriedRange
from streamrunner.sinks.reader import read_log
from streamrunner.sinks.wire import LogEntry, decode_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import redis

    from streamrunner.sinks.keys import JobKeys

# A call of this many rows holds up the server for about a second; more rows are several calls.
_ROWS_PER_CALL = 100_000
_TRIES = 5
_SHARED_CODES = {"cancelled": "batch_cancelled", "expired": "batch_expired", "failed": "batch_failed"}
_OUTCOME_NAMES = {OPEN: "still open", COMPLETED: "completed"}
_OUTCOMES = {"failed": FAILED, "cancelled": CANCELLED, "expired": EXPIRED}


class Wanted(NamedTuple):
    """What the user asks for: error codes (none: all), and rows (none: all that ended without a result)."""

    codes: frozenset[str] = frozenset()
    rows: tuple[range, ...] = ()


class Ending(NamedTuple):
    """How a row had ended: its custom_id (None if only the input says it) and error code."""

    custom_id: str | None
    code: str


class Ended:
    """The rows of a job that ended without a result, by a fold over its log."""

    def __init__(self, entries: Iterable[LogEntry]) -> None:
        self.state = JobState()
        self._own: dict[int, Ending] = {}
        for entry in entries:
            self._take(entry)
        self._shared = _SHARED_CODES.get(self.state.status, "")

    def _take(self, entry: LogEntry) -> None:
        self.state.apply(entry)
        if entry.type in ("request.failed", "request.cancelled", "request.expired"):
            self._own[entry.data["row"]] = Ending(entry.data["custom_id"], entry.data["error"]["code"])
        elif entry.type == "request.retried":
            self._own.pop(entry.data["row"], None)

    def ending(self, row: int) -> Ending | None:
        """How a row ended; None if it is open or completed."""
        if row in self._own:
            return self._own[row]
        outcome = self.outcome(row)
        if outcome in (OPEN, COMPLETED):
            return None
        return Ending(None, next(_SHARED_CODES[name] for name, one in _OUTCOMES.items() if one == outcome))

    def outcome(self, row: int) -> int:
        """What became of a row, with the job's ending for those that share it."""
        found = self.state.rows[row]
        return _OUTCOMES.get(self.state.status, found) if found == OPEN else found

    def chosen(self, wanted: Wanted) -> list[int]:
        """The rows to run again, ascending. Raises RunnerError (`row_not_retriable`) for one that is named and open,
        completed or not there.
        """
        for row in chain.from_iterable(wanted.rows):
            self._check_named(row)
        rows = sorted(set(chain.from_iterable(wanted.rows))) if wanted.rows else range(self.state.num_rows)
        return [row for row in rows if (one := self.ending(row)) and (not wanted.codes or one.code in wanted.codes)]

    def _check_named(self, row: int) -> None:
        if row >= self.state.num_rows:
            last = self.state.num_rows - 1
            raise RunnerError("row_not_retriable", f"there is no row {row}: the job's rows are 0-{last}")
        if self.ending(row) is None:
            how = _OUTCOME_NAMES[self.outcome(row)]
            raise RunnerError("row_not_retriable", f"row {row} is {how}: only rows without a result are run again")


class Retrier:
    """Opens rows of one job again. `log` writes, `client` reads."""

    def __init__(self, client: redis.Redis, keys: JobKeys, log: JobLog) -> None:
        self._client: Any = client
        self._keys = keys
        self._log = log

    def retry(self, wanted: Wanted) -> int:
        """Give the wanted rows another attempt; returns how many. Raises RunnerError (`row_not_retriable`,
        `job_cancelling`, `retry_busy`, and those of `read_range`).
        """
        command_id = new_ulid()
        for _ in range(_TRIES):
            ended = Ended(read_log(self._client, self._keys))
            rows = ended.chosen(wanted)
            if self._open_again(command_id, ended, rows):
                return len(rows)
        raise RunnerError("retry_busy", "somebody else retries rows of this job over and over: try again later")

    def _open_again(self, command_id: str, ended: Ended, rows: Sequence[int]) -> bool:
        seq = ended.state.last_seq
        for first in range(0, len(rows), _ROWS_PER_CALL):
            part = rows[first : first + _ROWS_PER_CALL]
            outcomes = [ended.outcome(row) for row in part]
            counts = RetriedCounts(*(outcomes.count(one) for one in (FAILED, CANCELLED, EXPIRED)))
            reply = self._log.retry(f"{command_id}.{first}", seq, list(self._ranges(ended, part)), counts)
            if reply["s"] == "CANCELLING":
                raise RunnerError("job_cancelling", "the job is being cancelled: retry its rows once it has ended")
            if reply["s"] != "OK":
                return False
            seq = int(reply["seq"])
        return True

    def _ranges(self, ended: Ended, rows: Sequence[int]) -> Iterator[RetriedRange]:
        spec = JobSpec.model_validate(ended.state.spec)
        for found in original_ranges(self._client, self._keys, ended.state.submission["ranges"]):
            first = bisect_left(rows, found["first"])
            last = bisect_left(rows, found["first"] + found["count"])
            if first < last:
                yield _retried_range(found, ended, rows[first:last], spec)


def original_ranges(client: Any, keys: JobKeys, count: int) -> list[dict[str, Any]]:
    """The ranges that the job was submitted with; they cover each row once."""
    return [decode_json(fields[b"range"]) for _, fields in client.xrange(keys.work, count=count)]


def _retried_range(found: dict[str, Any], ended: Ended, rows: Collection[int], spec: JobSpec) -> RetriedRange:
    names = {row: one.custom_id for row in rows if (one := ended.ending(row))}
    if None in names.values():
        names |= custom_ids(RangeSpec(**found), spec)
    events = [
        {"row": row, "custom_id": names[row], "attempt": ended.state.attempts.get(row, 1) + 1} for row in rows
    ]  # fmt: skip
    return RetriedRange({**found, "attempts": {str(one["row"]): one["attempt"] for one in events}}, events)


def custom_ids(found: RangeSpec, spec: JobSpec) -> dict[int, str]:
    """The custom_id of each row of a range, from the input. Raises RunnerError as `read_range` does."""
    return {
        index: parse_row(raw, index, line, spec).custom_id or f"row-{index}" for index, line, raw in read_range(found)
    }

"""Results from the log: every row of a job exactly once, in whatever order a reader wants them.

    log    … 41 42 43 44 45 …        Rows are asked for in batches. Entries that stand near each other are read as one
    res    … 41 .. 43 44 45 …        page, and all pages of a batch in one round trip.

A row that was open when its job ended has that ending as its error. Which rows those are comes from the reader's own
fold and not from the live bitmap, which a retry clears.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.runner.fold import CANCELLED, EXPIRED, FAILED, OPEN
from streamrunner.runner.inputs import RangeSpec, read_range
from streamrunner.runner.response import BODY_EVENTS, decode_ending, ending_record, result_record
from streamrunner.runner.row_index import seq_of, unpack_id
from streamrunner.runner.rows import parse_row
from streamrunner.runner.spec import JobSpec
from streamrunner.sinks.blob import parse_reference
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.wire import check_version, decode_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import redis

    from streamrunner.runner.row_index import RowIndex
    from streamrunner.sinks.keys import JobKeys
    from streamrunner.sinks.outputs.record import ResultRecord
    from streamrunner.sinks.wire import Fields

BATCH = 1_000
# Reading this many entries too many costs less than asking for one more page.
_GAP = 32
_PAYLOAD = b"p"


class _Span(NamedTuple):
    """Entries from the first to the last id, as Redis writes them."""

    first: str
    last: str


class ResultReader:
    """Makes results of one job's rows. `index` is folded by somebody else, up to wherever rows are asked for."""

    def __init__(self, client: redis.Redis, keys: JobKeys, index: RowIndex) -> None:
        self._client: Any = client
        self._keys = keys
        self._index = index

    def records(self, rows: Sequence[int]) -> Iterator[ResultRecord]:
        """Results in the order of `rows`, all of which have ended; those that share the job's ending must ascend.

        Raises SinkError (`results_missing`) if the log no longer holds a payload, RunnerError (`input_changed`,
        `input_missing`) if the input is gone that names a row which shares the job's ending.
        """
        shared = self._shared_endings([row for row in rows if not self._index.entries[row]])
        for first in range(0, len(rows), BATCH):
            batch = rows[first : first + BATCH]
            found = self._read([entry for row in batch if (entry := self._index.entries[row])])
            for row in batch:
                entry = self._index.entries[row]
                yield self._whole(found[entry]) if entry else next(shared)

    def _whole(self, record: ResultRecord) -> ResultRecord:
        """A large body is fetched when its turn comes: a batch of them is more than anybody wants to hold."""
        ref = parse_reference(record.body)
        if ref is None:
            return record
        blob = self._client.hget(self._keys.blobs, ref.sha256)
        return record._replace(body=ref.check(blob, self._keys.job_id))

    def _read(self, entries: Iterable[int]) -> dict[int, ResultRecord]:
        wanted = {unpack_id(entry).encode(): entry for entry in sorted(entries)}
        pipe = self._client.pipeline(transaction=False)
        for span in spans_of(wanted.values()):
            pipe.xrange(self._keys.log, span.first, span.last)
            pipe.xrange(self._keys.res, span.first, span.last)
        pages = iter(pipe.execute()) if wanted else iter(())
        found: dict[int, ResultRecord] = {}
        for log_page, res_page in zip(pages, pages, strict=True):
            payloads = {raw_id: fields[_PAYLOAD] for raw_id, fields in res_page if raw_id in wanted}
            for raw_id, fields in log_page:
                if raw_id in wanted:
                    found[wanted[raw_id]] = self._record(raw_id, fields, payloads.get(raw_id, b""))
        return found

    def _record(self, raw_id: bytes, fields: Fields, payload: bytes) -> ResultRecord:
        check_version("log entry", raw_id, fields)
        kind, event = fields[b"type"], decode_ending(fields[b"data"])
        if kind in BODY_EVENTS and not payload:
            raise SinkError(
                "results_missing",
                f"the log of {self._keys.job_id} no longer holds the result of row {event.row}: `retention: results` "
                "has let it go, or its server lost it; an output that was written before has it",
            )
        return result_record(kind, event, payload)

    def _shared_endings(self, rows: Sequence[int]) -> Iterator[ResultRecord]:
        state = self._index.state
        for row, custom_id in self._custom_ids(rows):
            outcome = self._index.outcome(row)
            name, code, message = _SHARED[outcome]
            reason = state.reason if state.ended and state.rows[row] == OPEN else state.shared_reasons.get(outcome)
            error = {"code": code, "message": reason or message}
            yield ending_record(row, self._index.attempts[row], custom_id, name, error)

    def _custom_ids(self, rows: Sequence[int]) -> Iterator[tuple[int, str]]:
        """The names of ascending rows, from their part of the input."""
        spec = JobSpec.model_validate(self._index.state.spec)
        ranges = [RangeSpec(**decode_json(fields[b"range"])) for _, fields in self._client.xrange(self._keys.work)]
        place = 0
        # A retried row stands in a range of its own besides: sorted, each is met before the rows behind it.
        for found in sorted(ranges, key=lambda one: one.first):
            end = bisect_left(rows, found.first + found.count, place)
            wanted = set(rows[place:end])
            if not wanted:
                continue
            for index, line, raw in read_range(found):
                if index in wanted:
                    yield index, parse_row(raw, index, line, spec).custom_id or f"row-{index}"
            place = end


def spans_of(entries: Iterable[int]) -> Iterator[_Span]:
    """Ascending packed ids as few spans: neighbours share one, far ones do not."""
    first = last = 0
    for entry in entries:
        if not first:
            first = entry
        elif seq_of(entry) - seq_of(last) > _GAP:
            yield _Span(unpack_id(first), unpack_id(last))
            first = entry
        last = entry
    if first:
        yield _Span(unpack_id(first), unpack_id(last))


_SHARED = {
    FAILED: ("failed", "batch_failed", "the job failed before this row finished"),
    CANCELLED: ("cancelled", "batch_cancelled", "the job was cancelled before this row finished"),
    EXPIRED: ("expired", "batch_expired", "the job expired before this row finished"),
}

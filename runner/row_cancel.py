"""End one row alone: it keeps what others have paid for, and its place in the outputs says that it was cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.ids import new_ulid
from streamrunner.runner.inputs import RangeSpec
from streamrunner.runner.response import failed_payload
from streamrunner.runner.retry import custom_ids
from streamrunner.sinks.log import JobLog, Reply, RowToCancel
from streamrunner.sinks.wire import decode_json

if TYPE_CHECKING:
    import redis

    from streamrunner.runner.spec import JobSpec
    from streamrunner.sinks.keys import JobKeys

_TRIES = 5


class RowCanceller:
    """Cancels rows of one job. `log` writes, `client` reads."""

    def __init__(self, client: redis.Redis, keys: JobKeys, log: JobLog) -> None:
        self._client: Any = client
        self._keys = keys
        self._log = log

    def cancel(self, row: int, num_rows: int, spec: JobSpec) -> Reply:
        """End the row; the reply says OK, or CLOSED if it has its ending already.

        Raises RunnerError (`no_such_row`, `job_ended`, and those of `read_range`).
        """
        if row >= num_rows:
            raise RunnerError("no_such_row", f"there is no row {row}: the job's rows are 0-{num_rows - 1}")
        command_id = new_ulid()
        for _ in range(_TRIES):
            reply = self._log.cancel_row(command_id, self._describe(row, spec))
            if reply["s"] != "STALE":
                return reply
        raise RunnerError("retry_busy", "somebody else retries this row over and over: try again later")

    def _describe(self, row: int, spec: JobSpec) -> RowToCancel:
        found = self._client.hget(self._keys.attempts, str(row))
        attempt = int(found) if found else 1
        range_id, of = self._range(row, attempt)
        name = custom_ids(of, spec)[row]
        error = {"code": "request_cancelled", "message": "this row was cancelled by request", "param": None}
        data = {"row": row, "custom_id": name, "attempt": attempt, "range": range_id, "error": error}
        return RowToCancel(row, attempt, range_id, data, failed_payload(error))

    def _range(self, row: int, attempt: int) -> tuple[str, RangeSpec]:
        """The newest range that has the row for this attempt: splits and retries make newer ones."""
        for raw_id, fields in reversed(self._client.xrange(self._keys.work)):
            of = RangeSpec(**decode_json(fields[b"range"]))
            is_in = of.first <= row < of.first + of.count
            if is_in and (of.attempts.get(str(row)) if of.attempts else 1) == attempt:
                return raw_id.decode(), of
        raise RunnerError("no_such_row", f"the log has no range with row {row}: is somebody purging this server?")

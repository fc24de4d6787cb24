"""What may be asked of a job: cancel, pause, resume, another priority, rows cancelled or run again.

Each is an event, the same one twice is one; the command line and `Job` both speak through here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from streamrunner.runner.errors import ExitCode, RunnerError
from streamrunner.runner.ids import new_ulid
from streamrunner.runner.settle import may_be_due, settle
from streamrunner.sinks.directory import JobDirectory
from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamrunner.runner.retry import Wanted
    from streamrunner.sinks.keys import JobKeys
    from streamrunner.sinks.log import JobLog
    from streamrunner.sinks.server import LogServer

# How long a worker may take to flush what is finished and end the job; then the job is ended over its head.
_GRACE_S = 0.8
_LOOK_S = 0.05
_PATIENCE_S = 10.0


class Controller:
    """Speaks to one job. Raises RunnerError (`job_ended`) where that is too late, LogUnreachable."""

    def __init__(self, server: LogServer, keys: JobKeys, by: str) -> None:
        self._server = server
        self._keys = keys
        self._by = by
        self._reader: Any = server.reader()

    def pause(self) -> None:
        """Stop the job for now: its workers keep all tokens."""
        self._command("pause")

    def resume(self) -> None:
        """Lift a pause."""
        self._command("resume")

    def prefer(self, priority: int) -> None:
        """Let workers take jobs of a higher number first."""
        self._command("change", {"changes": {"priority": priority}})

    def cancel(self) -> str:
        """End the job: finished rows are kept, open ones end as cancelled; returns its status.

        Cancelling what is cancelled already is no error.
        """
        status = str(self._command("cancel")["status"])
        return status if status == "cancelled" else self._await_end()

    def cancel_rows(self, rows: Iterable[int]) -> dict[int, bool]:
        """End these rows as cancelled; says of each whether it was open. Raises RunnerError (`no_such_row`) too."""
        from streamrunner.runner.row_cancel import RowCanceller
        from streamrunner.runner.submission import find_job

        client, log = self._server.client(), self._log()
        job = find_job(client, self._keys.job_id)
        canceller, num_rows = RowCanceller(client, self._keys, log), int(self._meta()["rows"])
        found: dict[int, bool] = {}
        for row in rows:
            reply = canceller.cancel(row, num_rows, job.spec)
            if reply["s"] == "ENDED":
                raise self._job_ended(reply["status"], "cancel")
            if reply.get("open") == 0 and not self._has_live_worker():
                # It was the last one, and nobody is there to notice.
                log.end("completed")
            found[row] = reply["s"] == "OK"
        return found

    def settle(self) -> dict[str, str]:
        """End the job if it ought to have ended and has no worker to do it: cancelled, at a limit, or without rows.

        Returns the job's derived figures.
        """
        meta = self._meta()
        if not may_be_due(meta):
            return meta
        from redis.exceptions import RedisError

        client: Any = self._server.client()
        try:
            has_ended = settle(meta, int(client.time()[0]) * 1000, self._has_live_worker, self._log)
        except (SinkError, RedisError):
            return meta  # it may only read, or the log is away: whoever asks hears of that if it matters
        return self._meta() if has_ended else meta

    def retry(self, wanted: Wanted) -> int:
        """Give rows without a result another attempt; returns how many.

        Raises RunnerError (`row_not_retriable`, `job_cancelling`, `retry_busy`, and those of reading the input).
        """
        from streamrunner.runner.retry import Retrier

        return Retrier(self._server.client(), self._keys, self._log()).retry(wanted)

    def _command(self, kind: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
        reply: dict[str, Any] = self._log().control(new_ulid(), kind, data)
        if reply["s"] == "ENDED" and not (kind == "cancel" and reply["status"] == "cancelled"):
            raise self._job_ended(reply["status"], kind)
        return reply

    def _log(self) -> JobLog:
        from streamrunner.sinks.log import JobLog

        return JobLog(self._server, self._keys, self._by, patience_s=_PATIENCE_S)

    def _job_ended(self, status: str, kind: str) -> RunnerError:
        what = "whose priority to change" if kind == "change" else f"to {kind}"
        return RunnerError("job_ended", f"{self._keys.job_id} has ended ({status}): nothing {what}", ExitCode.INVALID)

    def _await_end(self) -> str:
        """Wait for the worker to end the job; a worker that is gone, loads or hangs does not hold that up."""
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and self._has_live_worker():
            meta = self._meta()
            if "ended" in meta:
                return meta["status"]
            time.sleep(_LOOK_S)
        return str(self._log().end("cancelled", "cancelled by request")["status"])

    def _has_live_worker(self) -> bool:
        names = [name[2:] for name, value in self._meta().items() if name.startswith("w:") and value == "joined"]
        return any(self._reader.exists(self._keys.lease(name)) for name in names)

    def _meta(self) -> dict[str, str]:
        return JobDirectory(self._reader, self._keys.prefix).meta(self._keys.job_id)

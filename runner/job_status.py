"""Where a job is, for programs: what `runner status --json` prints, with names."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.runner.summary import summarize
from streamrunner.sinks.directory import JobDirectory, JobPointer
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.wire import decode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrunner.sinks.keys import JobKeys

ENDED = frozenset({"completed", "failed", "cancelled", "expired"})


class RequestCounts(NamedTuple):
    """Rows by their ending, under OpenAI's names; `total` includes open rows."""

    total: int
    completed: int
    failed: int
    cancelled: int
    expired: int

    @property
    def open(self) -> int:
        """Rows that still need an ending."""
        return self.total - self.completed - self.failed - self.cancelled - self.expired


class JobStatus:
    """One look at a job. `raw` holds everything that `runner status --json` prints; it does not change afterwards."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw: Mapping[str, Any] = MappingProxyType(raw)

    @property
    def id(self) -> str:
        """The job's id."""
        return str(self.raw["id"])

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.raw["name"])

    @property
    def status(self) -> str:
        """In OpenAI's words: validating, in_progress, cancelling, completed, failed, expired, cancelled."""
        return str(self.raw["status"])

    @property
    def paused(self) -> bool:
        """Whether somebody has paused the job."""
        return bool(self.raw["paused"])

    @property
    def ended(self) -> bool:
        """Whether nothing more can happen to the job."""
        return self.status in ENDED

    @property
    def reason(self) -> str | None:
        """Why the job ended as it did, where there is more to say than its status."""
        reason: str | None = self.raw["reason"]
        return reason

    @property
    def request_counts(self) -> RequestCounts:
        """Rows by their ending."""
        return RequestCounts(**self.raw["request_counts"])

    @property
    def usage(self) -> Mapping[str, int]:
        """`input_tokens`, `output_tokens` and `total_tokens` of the completed rows."""
        return MappingProxyType(self.raw["usage"])

    @property
    def output_tokens_per_s(self) -> float:
        """The living workers' rate."""
        return float(self.raw["output_tokens_per_s"])

    @property
    def eta_s(self) -> float | None:
        """Seconds that the open rows will take; None while nothing is known."""
        eta_s: float | None = self.raw["eta_s"]
        return eta_s

    def __repr__(self) -> str:
        counts = self.request_counts
        state = f"{self.status}, paused" if self.paused else self.status
        failed = f", {counts.failed} failed" if counts.failed else ""
        return f"<JobStatus {self.name!r} {self.id}: {state}, {counts.completed} completed{failed} of {counts.total}>"


def read_status(reader: Any, keys: JobKeys, name: str) -> JobStatus:
    """Look at a job; `reader` is any client that makes short reads.

    Raises SinkError (`job_not_found`) if the server does not know it (any more).
    """
    meta = JobDirectory(reader, keys.prefix).meta(keys.job_id)
    if not meta:
        raise SinkError("job_not_found", f"{keys.job_id} is no longer on this server: it was purged or archived")
    joined = [name[2:] for name, value in meta.items() if name.startswith("w:") and value == "joined"]
    living = [worker for worker in joined if reader.exists(keys.lease(worker))]
    progress = {name: dict(decode_json(meta.get(f"p:{name}", "{}"))) for name in living}
    return JobStatus(summarize(JobPointer(keys.job_id, name, 0), meta, progress))

"""A job on a server that may be killed, for what went wrong elsewhere."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from test_append_faults import INFO, completed

from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import ClaimedRange, Flush, JobLog, WorkerLease, claimed_range
from streamrunner.sinks.reader import read_log
from streamrunner.sinks.server import ExternalServer

if TYPE_CHECKING:
    from redis_process import RedisProcess

_ids = itertools.count()


class Desk:
    """A job of ranges with two rows each."""

    def __init__(self, process: RedisProcess, num_ranges: int = 3) -> None:
        self.process = process
        self.server = ExternalServer(process.url)
        self.keys = JobKeys(f"job_field{next(_ids)}")
        self.client: Any = process.client()
        self.log = self.another()
        self.rows = 2 * num_ranges
        data = {"name": "t", "rows": self.rows, "ranges": num_ranges, "spec": {}, "identity": {}}
        self.log.submit(data, self.rows, [{"first": 2 * i, "count": 2} for i in range(num_ranges)])

    def another(self) -> JobLog:
        return JobLog(self.server, self.keys, "w", patience_s=10)

    def join(self, worker: str = "w") -> WorkerLease:
        token = f"token-{worker}-{next(_ids)}"
        return WorkerLease(worker, self.log.join(worker, token, INFO)["epoch"], token)

    def claim(self, lease: WorkerLease, *known: str) -> ClaimedRange:
        return claimed_range(self.log.claim(lease, known))

    def finish(self, lease: WorkerLease, n: int, row: int, claimed: ClaimedRange, steps: bytes = b"") -> Any:
        return self.log.flush(lease, Flush(n, steps, "", [], [completed(row, claimed)]))

    def types(self) -> list[str]:
        return [entry.type for entry in read_log(self.client, self.keys)]

    def ended_rows(self) -> list[int]:
        return [one.data["row"] for one in read_log(self.client, self.keys) if one.type == "request.completed"]

    def expire(self, lease: WorkerLease) -> None:
        """What 15 s without a heartbeat do."""
        self.client.delete(self.keys.lease(lease.worker))

    def consumers(self) -> list[str]:
        return [one["name"].decode() for one in self.client.xinfo_consumers(self.keys.work, "workers")]

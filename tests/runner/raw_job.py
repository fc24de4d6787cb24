"""A job written entry by entry, as a worker writes it, and its events as words; for tests of readers."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from streamrunner.runner.event_stream import AsyncWatch, Source, Watch, WatchOptions
from streamrunner.runner.view import View
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import Flush, JobLog, Terminal, WorkerLease

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamrunner.runner.job_events import Event
    from streamrunner.sinks.server import LogServer

INFO = {"host": "h", "pid": 1, "fingerprint": {}}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_ids = itertools.count()


# What `RawJob.run_through` writes.
WHOLE = [
    "job.submitted", "job.started", "worker.joined", "range.claimed", "tokens w:0.0", "tokens w:1.0", "tokens w:0.1",
    "request.completed 0", "request.completed 1", "job.cancel_requested", "job.ended", "ended",
]  # fmt: skip


class RawJob:
    """A job of some rows in one range, written as a worker writes it."""

    def __init__(self, server: LogServer, rows: int = 4, spec: dict[str, Any] | None = None) -> None:
        self.server = server
        self.id = f"job_stream{next(_ids)}"
        self.keys = JobKeys(self.id)
        self.log = JobLog(server, self.keys, "t", patience_s=10.0)
        self.log.submit(
            {"name": "t", "rows": rows, "ranges": 1, "spec": spec or {}}, rows, [{"first": 0, "count": rows}]
        )
        self.raw: Any = server.client()
        self._workers: dict[str, tuple[WorkerLease, int]] = {}
        self.range = ""

    def join(self, worker: str = "w") -> None:
        reply = self.log.join(worker, "token", INFO)
        lease = WorkerLease(worker, reply["epoch"], "token")
        self._workers[worker] = (lease, 1)
        claimed = self.log.claim(lease, [])
        if claimed["s"] == "OK":
            self.range, self.claim = claimed["range"], int(claimed["claim"])

    def flush(
        self,
        worker: str = "w",
        *,
        step: Any = None,
        done: int | None = None,
        trim: str = "",
        payload: bytes | None = None,
    ) -> None:
        lease, n = self._workers[worker]
        self._workers[worker] = (lease, n + 1)
        steps = b"" if step is None else json.dumps([step]).encode()
        events = () if step is not None or done is not None else (("notice", {"code": "c", "message": "m"}),)
        terminals = [] if done is None else [self._terminal(done, payload)]
        reply = self.log.flush(lease, Flush(n, steps, trim, events, terminals))
        assert reply["s"] == "OK", reply

    def token(self, row: int, at: int, worker: str = "w", **more: Any) -> None:
        self.flush(worker, step=[row, 1, 0, at, [at], f"t{at}"], **more)

    def leave(self, worker: str = "w") -> None:
        self.log.leave(self._workers[worker][0], "SIGTERM")

    def cancel(self) -> None:
        self.log.control(f"c{next(_ids)}", "cancel")
        self.log.end("cancelled", "by request")

    def watch(self, **options: Any) -> Watch:
        return Watch(Source.of(self.server, self.id), *_split(options))

    def awatch(self, **options: Any) -> AsyncWatch:
        return AsyncWatch(Source.of(self.server, self.id), *_split(options))

    def _terminal(self, row: int, payload: bytes | None = None) -> Terminal:
        data = {"row": row, "custom_id": f"r{row}", "attempt": 1, "range": self.range, "claim": self.claim}
        data |= {"finish_reasons": ["stop"], "usage": USAGE}
        payload = payload or json.dumps({"choices": [{"index": 0, "text": f"answer {row}"}]}).encode()
        return Terminal(row, self.range, self.claim, "request.completed", data, payload, 1, 1)

    def run_through(self) -> None:
        """Three flushes of tokens, two rows done, the rest cancelled."""
        self.join()
        self.token(0, 0)
        self.token(1, 0)
        self.token(0, 1, done=0)
        self.flush(done=1)
        self.cancel()


def _split(options: dict[str, Any]) -> tuple[View, WatchOptions]:
    view = {name: options.pop(name) for name in ("types", "rows", "tokens") if name in options}
    return View(**view), WatchOptions(**options)


def shown(events: Iterable[Event]) -> list[str]:
    """An event as one word: its type, and what tells it from others of that type."""
    return [word(event) for event in events]


def word(event: Event) -> str:
    line = event.to_json()
    if event.type == "tokens":
        return f"tokens {line['by']}:" + ",".join(f"{one['row']}.{one['at']}" for one in line["data"]["deltas"])
    return f"{event.type} {event.row}" if event.row is not None else event.type

"""Jobs: spec, inputs, worker, state (a fold over the log), watcher and command line.

For programs: `Client` and its jobs, `watch` and `awatch`, each with an asynchronous twin. Names are loaded on use; only
`Job.run` loads the engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamrunner.runner.async_client import AsyncClient, AsyncJob
    from streamrunner.runner.client import Client, Job
    from streamrunner.runner.errors import RunnerError
    from streamrunner.runner.event_stream import AsyncWatch, Watch, awatch, watch
    from streamrunner.runner.job_events import (
        EndedEvent,
        Event,
        GapEvent,
        LogEvent,
        ResyncEvent,
        SnapshotEvent,
        TokenDelta,
        TokensEvent,
    )
    from streamrunner.runner.job_status import JobStatus, RequestCounts
    from streamrunner.runner.live_text import LiveText
    from streamrunner.sinks.errors import LogUnreachable, SinkError

_HOME = {
    "async_client": ("AsyncClient", "AsyncJob"),
    "client": ("Client", "Job"),
    "errors": ("RunnerError",),
    "event_stream": ("AsyncWatch", "Watch", "awatch", "watch"),
    "job_events": (
        "EndedEvent", "Event", "GapEvent", "LogEvent", "ResyncEvent", "SnapshotEvent", "TokenDelta", "TokensEvent",
    ),
    "job_status": ("JobStatus", "RequestCounts"),
    "live_text": ("LiveText",),
}  # fmt: skip
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _HOME.items() for name in names}
_MODULE_OF |= dict.fromkeys(("LogUnreachable", "SinkError"), "streamrunner.sinks.errors")

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "AsyncWatch",
    "Client",
    "EndedEvent",
    "Event",
    "GapEvent",
    "Job",
    "JobStatus",
    "LiveText",
    "LogEvent",
    "LogUnreachable",
    "RequestCounts",
    "ResyncEvent",
    "RunnerError",
    "SinkError",
    "SnapshotEvent",
    "TokenDelta",
    "TokensEvent",
    "Watch",
    "awatch",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Load a public name on its first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)

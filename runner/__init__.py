"""Jobs: spec, inputs, worker, state (a fold over the log), watcher and command line.

For programs: `watch` and `awatch` follow a job's events. Names are loaded on use, and none of them imports the engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from streamrunner.runner.live_text import LiveText

_HOME = {
    "event_stream": ("AsyncWatch", "Watch", "awatch", "watch"),
    "job_events": (
        "EndedEvent", "Event", "GapEvent", "LogEvent", "ResyncEvent", "SnapshotEvent", "TokenDelta", "TokensEvent",
    ),
    "live_text": ("LiveText",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AsyncWatch",
    "EndedEvent",
    "Event",
    "GapEvent",
    "LiveText",
    "LogEvent",
    "ResyncEvent",
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
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)

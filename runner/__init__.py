"""Jobs: spec, inputs, worker, state (a fold over the log), watcher and command line."""

from __future__ import annotations

"""What a worker does while no row can move: told in the log, so that whoever watches knows why nothing moves."""

from __future__ import annotations

from typing import Any

RUNNING = "running"


def phase_progress(phase: str) -> dict[str, Any]:
    """The `progress` data of a worker that has no figures yet."""
    return {
        "phase": phase, "running": 0, "waiting": 0, "prompt_tokens": 0, "output_tokens": 0, "output_tokens_per_s": 0.0,
        "kv_cache_usage": 0.0, "queue_wait_ms": 0.0,
    }  # fmt: skip

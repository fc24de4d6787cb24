"""What `status` and `list` say of a job: OpenAI's batch object with tokens, rates and an estimate beside it.

Made from the derived `meta` hash and the newest `progress` events alone, so it costs the same for ten rows and for
ten million.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamrunner.runner.fold import JobState
    from streamrunner.sinks.directory import JobPointer

_COUNTERS = ("completed", "failed", "cancelled", "expired")


def summarize(
    pointer: JobPointer, meta: dict[str, str], progress: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """One job as a JSON-ready object; times are Unix seconds.

    progress: the newest `progress` data of each living worker.
    """
    counts = {name: int(meta.get(name, 0)) for name in _COUNTERS}
    total = int(meta.get("rows", 0))
    status = meta.get("status", "validating")
    rate = sum(float(one["output_tokens_per_s"]) for one in progress or ())
    prompt, completion = int(meta.get("prompt_tokens", 0)), int(meta.get("completion_tokens", 0))
    return {
        "id": pointer.job_id,
        "object": "batch",
        "name": pointer.name,
        "status": status,
        "paused": meta.get("paused") == "1",
        "reason": meta.get("reason") or None,
        "request_counts": {"total": total, **counts},
        "usage": {"input_tokens": prompt, "output_tokens": completion, "total_tokens": prompt + completion},
        "created_at": _seconds(meta, "created"),
        "in_progress_at": _seconds(meta, "started"),
        "ended_at": _seconds(meta, "ended"),
        "workers": sum(1 for name, value in meta.items() if name.startswith("w:") and value == "joined"),
        "running": sum(int(one["running"]) for one in progress or ()),
        "output_tokens_per_s": round(rate, 1),
        "eta_s": estimate_s(total - sum(counts.values()), counts["completed"], completion, rate),
    }


def estimate_s(open_rows: int, completed_rows: int, completion_tokens: int, tokens_per_s: float) -> float | None:
    """Seconds until the open rows are done, if they are as long as the completed ones; None while nothing is known."""
    if open_rows == 0:
        return 0.0
    if not completed_rows or tokens_per_s <= 0:
        return None
    return round(open_rows * completion_tokens / completed_rows / tokens_per_s, 1)


def _seconds(meta: dict[str, str], name: str) -> int | None:
    return int(meta[name]) // 1000 if name in meta else None


def state_as_json(job_id: str, state: JobState) -> dict[str, Any]:
    """What `submit --json` and `watch --json` print: a job as its log was read, with OpenAI's names."""
    return {
        "id": job_id,
        "name": state.name,
        "status": state.status,
        "paused": state.paused,
        "reason": state.reason,
        "request_counts": {
            "total": state.num_rows, "completed": state.completed, "failed": state.failed,
            "cancelled": state.cancelled, "expired": state.expired,
        },
        "usage": {
            "input_tokens": state.prompt_tokens, "output_tokens": state.completion_tokens,
            "total_tokens": state.prompt_tokens + state.completion_tokens,
        },
        "outputs": [one["path"] for one in state.spec.get("outputs", ())],
    }  # fmt: skip

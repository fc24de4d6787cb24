"""What `status` and `list` say of a job: OpenAI's batch object with tokens, rates and an estimate beside it.

Made from the derived `meta` hash and the newest `progress` of each worker alone, so it costs the same for ten rows and
for ten million.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from streamrunner.runner.fold import JobState
    from streamrunner.sinks.directory import JobPointer

_COUNTERS = ("completed", "failed", "cancelled", "expired")
_ENDED = ("completed", "failed", "cancelled", "expired")
_OF_A_WORKER = (
    "phase", "running", "waiting", "rows", "in_flight_rows", "in_flight_tokens", "prompt_tokens", "output_tokens",
    "rows_per_s", "prompt_tokens_per_s", "output_tokens_per_s", "kv_cache_usage",
)  # fmt: skip


def summarize(
    pointer: JobPointer, meta: dict[str, str], progress: Mapping[str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """One job as a JSON-ready object; times are Unix seconds.

    progress: the newest `progress` data of each living worker, {} for one that has said nothing yet.
    """
    counts = {name: int(meta.get(name, 0)) for name in _COUNTERS}
    total = int(meta.get("rows", 0))
    status = meta.get("status", "validating")
    prompt, completion = int(meta.get("prompt_tokens", 0)), int(meta.get("completion_tokens", 0))
    # A lease outlives its job by some seconds; whoever held it has nothing to do any more.
    known = {} if progress is None or status in _ENDED else progress
    done = status in _ENDED or (total > 0 and sum(counts.values()) == total)
    return {
        "id": pointer.job_id,
        "object": "batch",
        "name": pointer.name,
        "status": status,
        "paused": meta.get("paused") == "1",
        "reason": meta.get("reason") or None,
        "phase": None if status in _ENDED else phase_of(known.values()),
        "request_counts": {"total": total, **counts},
        "usage": {"input_tokens": prompt, "output_tokens": completion, "total_tokens": prompt + completion},
        "created_at": _seconds(meta, "created"),
        "in_progress_at": _seconds(meta, "started"),
        "ended_at": _seconds(meta, "ended"),
        "workers": [worker_summary(name, known[name]) for name in sorted(known)],
        **rates_of(known.values()),
        "eta_s": 0.0 if done else eta_s(known.values()),
    }


def worker_summary(worker: str, progress: Mapping[str, Any]) -> dict[str, Any]:
    """What one worker says of itself; figures are None until it says them."""
    return {"id": worker, **{name: progress.get(name) for name in _OF_A_WORKER}}


def rates_of(progress: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The workers' figures added up: rows and tokens in flight, and rates over the last half minute."""
    known = list(progress)

    def total(name: str) -> float:
        return sum(float(one.get(name) or 0) for one in known)

    return {
        "running": int(total("running")),
        "in_flight": {"rows": int(total("in_flight_rows")), "tokens": int(total("in_flight_tokens"))},
        "rows_per_s": round(total("rows_per_s"), 3),
        "input_tokens_per_s": round(total("prompt_tokens_per_s"), 1),
        "output_tokens_per_s": round(total("output_tokens_per_s"), 1),
    }


def phase_of(progress: Iterable[Mapping[str, Any]]) -> str | None:
    """What the workers do: `running` if one does, else what the first does before it can; None without a worker."""
    phases = [str(one.get("phase", "starting")) for one in progress]
    return "running" if "running" in phases else next(iter(phases), None)


def eta_s(progress: Iterable[Mapping[str, Any]]) -> float | None:
    """Seconds until the job is done, None while nothing is known.

    Each worker says how long it would need alone (`eta_s`), and how much of that is the end no other can shorten
    (`drain_s`): the rest is shared out by speed.
    """
    known = [(one["eta_s"] - one["drain_s"], one["drain_s"]) for one in progress if one.get("eta_s") is not None]
    if not known:
        return None
    shares = [shared for shared, _ in known if shared > 0]
    shared = 1.0 / sum(1.0 / one for one in shares) if len(shares) == len(known) else 0.0
    return round(float(shared + max(drain for _, drain in known)), 1)


def _seconds(meta: dict[str, str], name: str) -> int | None:
    return int(meta[name]) // 1000 if name in meta else None


def state_as_json(job_id: str, state: JobState) -> dict[str, Any]:
    """What `submit --json` and `watch --json` print: a job as its log was read, with OpenAI's names."""
    alive = {name: worker.progress for name, worker in state.workers.items() if worker.alive}
    return {
        "id": job_id,
        "name": state.name,
        "status": state.status,
        "paused": state.paused,
        "reason": state.reason,
        "phase": None if state.ended else phase_of(alive.values()),
        "request_counts": {
            "total": state.num_rows, "completed": state.completed, "failed": state.failed,
            "cancelled": state.cancelled, "expired": state.expired,
        },
        "usage": {
            "input_tokens": state.prompt_tokens, "output_tokens": state.completion_tokens,
            "total_tokens": state.prompt_tokens + state.completion_tokens,
        },
        "workers": [worker_summary(name, alive[name]) for name in sorted(alive)],
        **rates_of(alive.values()),
        "eta_s": 0.0 if state.ended else eta_s(alive.values()),
        "outputs": [one["path"] for one in state.spec.get("outputs", ())],
    }  # fmt: skip

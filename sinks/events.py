"""The event vocabulary: every type a job's log can hold, as pydantic models.

This is the public contract; `docs/schema/events.schema.json` is generated from it. A reader upcasts old versions on
read, so a model only ever describes the newest one. The log itself is written by `sr_v1` and read through `wire`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class EventModel(BaseModel):
    """Base of all event data: unknown fields are kept out of the contract."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Usage(EventModel):
    """Token counts as OpenAI names them."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)


class Counts(EventModel):
    """Rows by their ending: completed + failed + cancelled + expired = rows once the job has ended."""

    rows: int = Field(ge=0)
    completed: int = Field(ge=0)
    failed: int = Field(ge=0)
    cancelled: int = Field(ge=0)
    expired: int = Field(ge=0)


class ErrorBody(EventModel):
    """Why a row failed: a stable code, one sentence with the remedy, the parameter at fault."""

    code: str
    message: str
    param: str | None = None


class JobSubmitted(EventModel):
    """The first event: everything a worker needs to run the job."""

    name: str
    rows: int = Field(ge=1)
    ranges: int = Field(ge=1)
    seed: int
    spec: dict[str, Any]
    identity: dict[str, Any]
    base: str = Field(description="folder that relative paths of the spec start from")
    invalid: int = Field(ge=0, description="rows known at submit to be unusable; each becomes request.failed")


class JobStarted(EventModel):
    """The first worker joined."""


class JobPaused(EventModel):
    """Workers keep all tokens and leave; `reason` says why if a rule on the outputs asked."""

    reason: str | None = None


class JobResumed(EventModel):
    """The job goes on; `changes` names spec sections that are different from here on."""

    changes: dict[str, Any] = Field(default_factory=dict)


class JobChanged(EventModel):
    """Settings that differ from here on; whether the job is paused stays as it was."""

    changes: dict[str, Any]


class JobCancelRequested(EventModel):
    """Rows in flight are dropped, then the job ends cancelled."""


class JobReopened(EventModel):
    """An ended job goes on: the rows of the `request.retried` that follow are open, all others keep their ending."""

    rows: int = Field(ge=1, description="how many rows are open again")


class JobEnded(EventModel):
    """The last event, unless the job is reopened. Rows still open share the job's ending."""

    status: Literal["completed", "failed", "cancelled", "expired"]
    reason: str | None
    limit: str | None = Field(None, description="the key of `limits` that ended the job, if one did")
    counts: Counts
    usage: Usage


class WorkerJoined(EventModel):
    """A worker acquired its lease under a new epoch."""

    worker: str
    epoch: int = Field(ge=1)
    host: str
    pid: int
    fingerprint: dict[str, Any]


class WorkerPreempted(EventModel):
    """A worker stopped on purpose and gave its ranges back."""

    worker: str
    reason: str


class WorkerLost(EventModel):
    """A worker was found dead; its ranges can be claimed."""

    worker: str
    reason: str


class RangeClaimed(EventModel):
    """Rows [first, first + count) may be finished by this worker alone from here on."""

    range: str
    claim: int = Field(ge=1)
    worker: str
    epoch: int
    first: int
    count: int
    from_worker: str | None = Field(alias="from")


class RowEvent(EventModel):
    """What every event about one row carries."""

    row: int = Field(ge=0)
    custom_id: str
    attempt: int = Field(ge=1)
    range: str
    claim: int


class RequestCompleted(RowEvent):
    """The row has its result; the response body stands in `res` under the same id."""

    finish_reasons: list[Literal["stop", "length"]]
    usage: Usage


class RequestFailed(RowEvent):
    """The row cannot have a result, and says why."""

    error: ErrorBody


class RequestCancelled(RowEvent):
    """The row was cancelled alone; `claim` is 0 if no worker had it."""

    error: ErrorBody


class RequestRetried(EventModel):
    """The row is open again, as its attempt number `attempt`; its earlier ending no longer counts."""

    row: int = Field(ge=0)
    custom_id: str
    attempt: int = Field(ge=2)
    range: str = Field(description="the row belongs to this range from here on")


class Progress(EventModel):
    """Where a worker is: totals since it joined, rates over the last half minute, and how long the rest takes."""

    phase: str = Field(description="running; before that what it does instead, such as `loading the model`")
    running: int = Field(ge=0, description="sequences in the engine's batch")
    waiting: int = Field(ge=0, description="sequences in the engine behind them")
    rows: int = Field(default=0, ge=0, description="rows this worker completed; one row, however many choices")
    in_flight_rows: int = Field(default=0, ge=0)
    in_flight_tokens: int = Field(default=0, ge=0, description="output tokens of rows that have not ended")
    prompt_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=0)
    rows_per_s: float = Field(default=0.0, ge=0)
    prompt_tokens_per_s: float = Field(default=0.0, ge=0)
    output_tokens_per_s: float = Field(ge=0)
    kv_cache_usage: float = Field(ge=0, le=1)
    queue_wait_ms: float = Field(ge=0, description="time the engine waited for the writer")
    eta_s: float | None = Field(
        default=None, description="seconds until all open rows are done if this worker works alone; null while unknown"
    )
    drain_s: float | None = Field(default=None, description="the part of eta_s that more workers do not shorten")


class Notice(EventModel):
    """Something a person should know; nothing depends on it."""

    code: str
    message: str
    rows: list[int] | None = Field(None, description="rows to look at, where the notice is about some")


EVENT_MODELS: dict[str, type[EventModel]] = {
    "job.submitted": JobSubmitted,
    "job.started": JobStarted,
    "job.paused": JobPaused,
    "job.resumed": JobResumed,
    "job.changed": JobChanged,
    "job.cancel_requested": JobCancelRequested,
    "job.reopened": JobReopened,
    "job.ended": JobEnded,
    "worker.joined": WorkerJoined,
    "worker.preempted": WorkerPreempted,
    "worker.lost": WorkerLost,
    "range.claimed": RangeClaimed,
    "request.completed": RequestCompleted,
    "request.failed": RequestFailed,
    "request.cancelled": RequestCancelled,
    "request.retried": RequestRetried,
    "progress": Progress,
    "notice": Notice,
}


def validate_event(kind: str, data: dict[str, Any]) -> EventModel:
    """Check one event's data against the contract. Raises pydantic.ValidationError, or KeyError for an unknown type."""
    return EVENT_MODELS[kind].model_validate(data)


class _Entry(EventModel):
    v: Literal[1] = 1
    time: int = Field(description="Unix ms, by the server's clock")
    by: str = Field(description="worker id, or the command that asked")


def event_schema() -> dict[str, Any]:
    """JSON Schema of a whole log entry, one variant per type."""
    variants: list[Any] = []
    for kind, model in EVENT_MODELS.items():
        name = model.__name__ + "Entry"
        fields: dict[str, Any] = {"type": (Literal[kind], kind), "data": (model, ...)}
        variants.append(_entry_model(name, fields))
    union: Any = Annotated[Union[tuple(variants)], Field(discriminator="type")]  # noqa: UP007 - made at run time
    schema: dict[str, Any] = TypeAdapter(union).json_schema(by_alias=True)
    return schema


def _entry_model(name: str, fields: dict[str, Any]) -> type[BaseModel]:
    from pydantic import create_model

    return create_model(name, __base__=_Entry, **fields)

"""Whether a limit of the job file ends the job: asked by whoever runs the job, and by whoever looks at it.

A deadline ends a job `expired`, any other limit `cancelled`; finished rows are kept either way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from streamrunner.runner.spec_control import LimitsSpec

# Before so many rows have their ending, a share of failed ones says little.
MIN_ROWS_FOR_RATE = 20


class Tally(NamedTuple):
    """Where a job is. output_tokens: of completed rows, and those in flight where they are known. Times are Unix ms;
    clock_ms is when the job started or was last reopened, 0 before.
    """

    completed: int
    failed: int
    output_tokens: int
    now_ms: int
    clock_ms: int


class Breach(NamedTuple):
    """A limit that is reached: its key in `limits`, the status that the job ends with, and the reason in words."""

    limit: str
    status: str
    reason: str


def find_breach(limits: LimitsSpec, tally: Tally) -> Breach | None:
    """The first limit that the job has reached."""
    deadline_ms = limits.deadline_ms(tally.clock_ms) if tally.clock_ms else None
    if deadline_ms is not None and tally.now_ms >= deadline_ms:
        return Breach("deadline", "expired", f"the deadline {limits.deadline} has passed")
    if limits.max_output_tokens is not None and tally.output_tokens >= limits.max_output_tokens:
        made = f"{tally.output_tokens} output tokens are made, max_output_tokens is {limits.max_output_tokens}"
        return Breach("max_output_tokens", "cancelled", made)
    return _too_many_failed(limits, tally)


def _too_many_failed(limits: LimitsSpec, tally: Tally) -> Breach | None:
    if limits.max_failed is not None and tally.failed > limits.max_failed:
        return Breach("max_failed", "cancelled", f"{tally.failed} rows failed, max_failed is {limits.max_failed}")
    ended = tally.completed + tally.failed
    rate = limits.max_error_rate
    if rate is not None and ended >= MIN_ROWS_FOR_RATE and tally.failed > rate * ended:
        return Breach(
            "max_error_rate", "cancelled", f"{tally.failed} of {ended} rows failed, max_error_rate is {rate:g}"
        )
    return None

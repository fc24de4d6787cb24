"""Rows in flight: what the engine has produced for them so far, by choice.

Owned by the worker thread alone. A row's tokens here are a superset of its durable ones, which is why a worker
that had to join anew can append everything again from position 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.sinks.wire import StepDelta

if TYPE_CHECKING:
    from streamrunner.engine.constraints import Constraints
    from streamrunner.engine.output import OutputDelta
    from streamrunner.engine.params import SamplingParams
    from streamrunner.engine.step import TokenLogprob
    from streamrunner.runner.rows import Row


@dataclass(slots=True)
class ChoiceRun:
    """One sequence of a row: accepted tokens (no overshoot behind a stop string), text and how it ended."""

    request_id: str
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[tuple[TokenLogprob, ...]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def take(self, delta: OutputDelta) -> None:
        """Add what one step brought."""
        self.token_ids.extend(delta.token_ids)
        self.text += delta.text
        self.logprobs.extend(delta.logprobs or ())
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


class RowPlace(NamedTuple):
    """Which attempt of which row, and under whose claim: what every event about a row says."""

    row: int
    custom_id: str
    attempt: int
    range: str
    claim: int


@dataclass(slots=True)
class RowRun:
    """One row between its admission and its terminal event."""

    row: Row
    range: str
    claim: int
    attempt: int
    prompt_token_ids: list[int]
    params: SamplingParams
    choices: list[ChoiceRun]
    first_n: int | None = None
    constraints: Constraints | None = None
    prompt_logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    num_cached_tokens: int = 0

    @property
    def place(self) -> RowPlace:
        """How its events name it."""
        return RowPlace(self.row.index, self.row.custom_id, self.attempt, self.range, self.claim)

    @property
    def finished(self) -> bool:
        """Whether every choice has ended and the prompt is scored, if that is wanted."""
        return all(choice.finish_reason for choice in self.choices) and not self.needs_scores

    @property
    def needs_scores(self) -> bool:
        """Whether the prompt's log-probabilities are wanted and not there. They are not in the log: a row that goes on
        computes its prompt anew anyway."""
        return self.params.prompt_logprobs is not None and self.prompt_logprobs is None

    def delta(self, choice: int, delta: OutputDelta, at: int) -> StepDelta:
        """The step record of one output delta that begins at token `at`."""
        return StepDelta(
            self.row.index, self.claim, choice, at, list(delta.token_ids), delta.text, wire_logprobs(delta.logprobs)
        )

    def whole(self) -> list[StepDelta]:
        """Everything so far as deltas from position 0: what goes first under a new claim or epoch."""
        return [
            StepDelta(
                self.row.index,
                self.claim,
                index,
                0,
                list(choice.token_ids),
                choice.text,
                wire_logprobs(tuple(choice.logprobs)) if choice.logprobs else None,
            )
            for index, choice in enumerate(self.choices)
            if choice.token_ids
        ]


def request_id(row: int, choice: int, claim: int) -> str:
    """The engine's name of one sequence; never used twice, since claims only grow."""
    return f"{row}.{choice}.{claim}"


def wire_logprobs(logprobs: tuple[tuple[TokenLogprob, ...], ...] | None) -> list[Any] | None:
    """Per token `[[id, logprob, rank], …]`, the sampled token first."""
    if logprobs is None:
        return None
    return [[[one.token_id, one.logprob, one.rank] for one in token] for token in logprobs]

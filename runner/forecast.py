"""When a job will be done: the work that remains, over the pace of the last minute.

    open rows by kind × expected length (`lengths`)  ──┐
    rows in flight    × expected rest                ──┼──▶ steps and tokens ──× cost of a step (`pace`)──▶ seconds
    prompt characters × tokens a character           ──┘                       × how much slower the clock was

The end is counted apart: once no row waits, the batch thins out, and the last row takes as long as it takes, whatever
the rate was before and however many workers share the rest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from streamrunner.runner.lengths import Answer, LengthModel, Survival
from streamrunner.runner.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from streamrunner.runner.row_work import Kind, WorkSum

# The chance that none of the last rows is longer than we think: one half.
_NONE_LONGER = math.log(2.0)
_HALVINGS = 12
# With fewer tokens than that, rates are those of the first prompts.
_LEAST_TOKENS = 200


class Estimate(NamedTuple):
    """Seconds until the job is done if this worker works alone; `drain_s` of them no other worker can shorten."""

    total_s: float
    drain_s: float


class _Rest(NamedTuple):
    """Steps and tokens that remain."""

    output_tokens: float
    prompt_tokens: float
    num_drain_steps: float
    num_drain_tokens: float


class Forecast:
    """Learns from steps and ended answers; `estimate` puts both to what remains."""

    def __init__(self) -> None:
        self.lengths = LengthModel()
        self.pace = Pace()
        self._warm = False
        self._most_running = 1
        self._most_batched = 1
        self._output_tokens = 0
        self._prompt_tokens = 0
        self._admitted_chars = 0.0
        self._admitted_tokens = 0

    def take_step(self, output_tokens: int, prompt_tokens: int, running: int, step_ms: float) -> None:
        """Learn from one engine step; the first one compiles loops, and its time says nothing about the others."""
        if self._warm:
            self.pace.take(output_tokens, prompt_tokens, step_ms)
        self._warm = True
        self._output_tokens += output_tokens
        self._prompt_tokens += prompt_tokens
        self._most_running = max(self._most_running, running)
        self._most_batched = max(self._most_batched, output_tokens + prompt_tokens)

    def admitted(self, num_chars: int, prompt_tokens: int) -> None:
        """Note that a prompt goes into the engine, and how many tokens its characters were."""
        self._admitted_chars += num_chars
        self._admitted_tokens += prompt_tokens

    def estimate(
        self, waiting: Mapping[Kind, WorkSum], running: Iterable[Answer], unread_tokens: int, slowness: float = 1.0
    ) -> Estimate | None:
        """None while too little is known: no answer has ended, or hardly a token was made.

        unread_tokens: prompts that are in the engine without a token made for them yet.
        slowness: wall time over the engine's own time, of late.
        """
        running = list(running)
        if not (waiting or running):
            return Estimate(0.0, 0.0)
        cost = self.pace.cost()
        if cost is None or not self.lengths.num_ended or self._output_tokens < _LEAST_TOKENS:
            return None
        survivals = self.lengths.survivals(running, waiting)
        prompt_tokens = unread_tokens + self._waiting_prompts(waiting, unread_tokens)
        rest = self._rest(waiting, running, prompt_tokens, survivals)
        shared_tokens = rest.output_tokens - rest.num_drain_tokens
        num_steps = max(shared_tokens / self._most_running, (shared_tokens + rest.prompt_tokens) / self._most_batched)
        shared_ms = cost.of(num_steps, shared_tokens, rest.prompt_tokens)
        drain_ms = cost.of(rest.num_drain_steps, rest.num_drain_tokens, 0.0)
        return Estimate((shared_ms + drain_ms) * slowness / 1000, drain_ms * slowness / 1000)

    def _waiting_prompts(self, waiting: Mapping[Kind, WorkSum], unread_tokens: int) -> float:
        """Prompt tokens to compute for the rows that wait; what a cache gives is as likely as before."""
        if not self._admitted_chars:
            return 0.0
        per_char = self._admitted_tokens / self._admitted_chars
        read_tokens = self._admitted_tokens - unread_tokens
        computed = min(self._prompt_tokens / read_tokens, 1.0) if read_tokens > 0 else 1.0
        return sum(one.prompt_chars for one in waiting.values()) * per_char * computed

    def _rest(
        self,
        waiting: Mapping[Kind, WorkSum],
        running: list[Answer],
        prompt_tokens: float,
        survivals: dict[Kind, Survival],
    ) -> _Rest:
        alone = _running_rest(running, prompt_tokens, survivals)
        if not waiting:
            return alone
        output_tokens = sum(one.limit * survivals[kind].mean_share for kind, one in waiting.items())
        output_tokens += sum(_left(answer, survivals) for answer in running)
        # Prompts share the steps with answers: where they fill them, fewer answers run at a time.
        num_steps = max(output_tokens / self._most_running, (output_tokens + prompt_tokens) / self._most_batched)
        steps, tokens = self._drain(waiting, len(running), output_tokens / max(num_steps, 1.0), survivals)
        # Where hardly anything waits, those in flight are the drain.
        return _Rest(output_tokens, prompt_tokens, max(steps, alone.num_drain_steps), min(tokens, output_tokens))

    def _drain(
        self, waiting: Mapping[Kind, WorkSum], num_running: int, most: float, survivals: dict[Kind, Survival]
    ) -> tuple[float, float]:
        """Steps and tokens from the moment when no row waits: those then in flight are caught at random moments."""
        choices = sum(one.choices for one in waiting.values())
        num_last = min(most, choices + num_running)
        kinds = [(one.choices, one.limit / one.choices, survivals[kind]) for kind, one in waiting.items()]
        lengths = sum(number * limit * survival.mean_share for number, limit, survival in kinds)
        squares = sum(number * limit * limit * survival.mean_square for number, limit, survival in kinds)
        if not lengths:
            return 0.0, 0.0

        def num_longer(tokens: float) -> float:
            return (
                num_last
                / lengths
                * sum(
                    number * limit * survival.caught_exceeds(tokens / limit)
                    for number, limit, survival in kinds
                    if limit
                )
            )

        return _last_end(num_longer, max(limit for _, limit, _ in kinds)), num_last * squares / (2.0 * lengths)


def _last_end(num_longer: Callable[[float], float], most: float) -> float:
    """The tokens that as likely as not none of the rows exceeds."""
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if num_longer(middle) > _NONE_LONGER else (low, middle)
    return high


def _left(answer: Answer, survivals: dict[Kind, Survival]) -> float:
    if answer.limit <= 0:
        return 0.0
    return min(answer.limit * survivals[answer.kind].left(answer.made / answer.limit), answer.limit - answer.made)


def _running_rest(running: list[Answer], prompt_tokens: float, survivals: dict[Kind, Survival]) -> _Rest:
    """All that remains is in flight: the longest of them is the end."""
    tokens = sum(_left(answer, survivals) for answer in running)
    parts = [(answer.made / answer.limit, answer.limit, survivals[answer.kind]) for answer in running if answer.limit]

    def num_longer(tokens: float) -> float:
        return sum(survival.exceeds(share, tokens / limit) for share, limit, survival in parts)

    steps = _last_end(num_longer, max((limit for _, limit, _ in parts), default=0.0))
    return _Rest(tokens, prompt_tokens, steps, tokens)

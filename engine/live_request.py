"""A request while it runs: what its choices have so far, and what of that its reader has not seen yet.

Deltas are merged here, so a reader that lags costs the text it has missed and nothing else.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from streamrunner.engine.request_output import CompletionOutput, Logprob, RequestMetrics, RequestOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrunner.engine.errors import EngineError
    from streamrunner.engine.output import OutputDelta
    from streamrunner.engine.prompt import PreparedPrompt
    from streamrunner.engine.step import RequestStep, TokenLogprob


@dataclass(slots=True)
class LiveChoice:
    """One choice. `pieces`: text that came after the last snapshot; num_shown: tokens in it."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    pieces: list[str] = field(default_factory=list)
    num_shown: int = 0

    @property
    def num_new(self) -> int:
        """Tokens that no snapshot has shown."""
        return len(self.token_ids) - self.num_shown

    def take(self, delta: OutputDelta, token_text: Callable[[int], str]) -> None:
        """Add what one step brought."""
        self.token_ids += delta.token_ids
        if delta.text:
            self.pieces.append(delta.text)
        if delta.logprobs is not None:
            self._take_logprobs(delta, token_text)
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason

    def _take_logprobs(self, delta: OutputDelta, token_text: Callable[[int], str]) -> None:
        self.logprobs = [] if self.logprobs is None else self.logprobs
        for token in delta.logprobs or ():
            self.cumulative_logprob = (self.cumulative_logprob or 0.0) + token[0].logprob
            self.logprobs.append(by_token(token, token_text))

    def snapshot(self) -> CompletionOutput:
        """All so far, and what is new since the last snapshot."""
        delta_text, delta_token_ids = "".join(self.pieces), self.token_ids[self.num_shown :]
        self.text += delta_text
        self.pieces, self.num_shown = [], len(self.token_ids)
        return CompletionOutput(
            index=self.index,
            text=self.text,
            token_ids=self.token_ids.copy(),
            cumulative_logprob=self.cumulative_logprob,
            logprobs=None if self.logprobs is None else self.logprobs.copy(),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            delta_text=delta_text,
            delta_token_ids=delta_token_ids,
        )


def by_token(token: tuple[TokenLogprob, ...], token_text: Callable[[int], str]) -> dict[int, Logprob]:
    """Log-probabilities at one place as callers get them."""
    return {one.token_id: Logprob(one.logprob, one.rank, token_text(one.token_id)) for one in token}


class LiveRequest:
    """One prompt and its choices. `is_queued`: its reader has been told that there is something new."""

    __slots__ = (
        "_metrics",
        "_prompt",
        "choices",
        "error",
        "index",
        "is_queued",
        "num_cached_tokens",
        "prompt_logprobs",
        "request_id",
    )

    def __init__(self, request_id: str, index: int, prompt: PreparedPrompt, num_choices: int) -> None:
        self.request_id = request_id
        self.index = index
        self.choices = [LiveChoice(place) for place in range(num_choices)]
        self.error: EngineError | None = None
        self.is_queued = False
        self.num_cached_tokens: int | None = None
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._prompt = prompt
        self._metrics = RequestMetrics(arrival_time=time.time())

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.finish_reason is not None for choice in self.choices)

    def sequence_id(self, choice: int) -> str:
        """The engine's name of one choice."""
        return f"{self.request_id}.{choice}"

    def take(self, choice: int, delta: OutputDelta, token_text: Callable[[int], str]) -> None:
        """Add what one step brought to one choice."""
        self.choices[choice].take(delta, token_text)
        if delta.token_ids and self._metrics.first_token_time is None:
            self._metrics = replace(self._metrics, first_token_time=time.time())
        if delta.finish_reason is not None:
            self._stamp_end()

    def take_prompt(self, step: RequestStep, token_text: Callable[[int], str]) -> None:
        """What a step says of the prompt."""
        if step.num_cached_tokens is not None:
            self.num_cached_tokens = step.num_cached_tokens
        if step.prompt_logprobs is not None:
            self.prompt_logprobs = [None, *(by_token(token, token_text) for token in step.prompt_logprobs)]

    def end(self, finish_reason: str, error: EngineError | None = None) -> None:
        """End whatever still runs."""
        self.error = error
        for choice in self.choices:
            choice.finish_reason = choice.finish_reason or finish_reason
        self._stamp_end()

    def has_news(self, every_n: int | None) -> bool:
        """Whether a reader who wants every n-th token (None: only the end) should see it now."""
        if self.finished:
            return True
        return every_n is not None and any(choice.num_new >= every_n for choice in self.choices)

    def snapshot(self) -> RequestOutput:
        """What its reader gets now; nothing in it changes later."""
        return RequestOutput(
            request_id=self.request_id,
            index=self.index,
            prompt=self._prompt.text,
            prompt_token_ids=self._prompt.token_ids,
            outputs=[choice.snapshot() for choice in self.choices],
            finished=self.finished,
            metrics=self._metrics,
            prompt_logprobs=self.prompt_logprobs,
            num_cached_tokens=self.num_cached_tokens,
            error=self.error,
        )

    def _stamp_end(self) -> None:
        if self.finished:
            self._metrics = replace(self._metrics, finished_time=time.time())

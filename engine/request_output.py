"""What a caller of `LLM` gets: vLLM's names and shapes, and a few fields that offline work needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamrunner.engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability (natural, before temperature). rank: 1 is the likeliest of the vocabulary."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice so far. text, token_ids and logprobs are all of it; the `delta` fields what the item before lacked.

    cumulative_logprob: of the sampled tokens. logprobs: per token, by token id, the sampled one first; both are None
    unless asked for. finish_reason: stop, length, abort, error, or None while it runs. stop_reason: the stop string or
    stop token that matched. Deltas of a choice, put together, are its text and tokens, however slowly they are read.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    delta_text: str = ""
    delta_token_ids: list[int] = field(default_factory=list)

    def finished(self) -> bool:
        """Whether the choice has ended."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When things happened, in seconds since 1970; None for what has not."""

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One prompt with its choices, in the order of their index. It does not change once it was handed out.

    index: the prompt's place in its call, whatever the order of results. prompt: text, rendered where it was a chat;
    None if it came as token ids. prompt_logprobs: where asked for, by token id for each prompt token, the token itself
    first; None for the first token. num_cached_tokens: prompt tokens that were not computed, found in the prefix cache.
    error: why the prompt failed; its choices then have finish_reason "error".
    """

    request_id: str
    index: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int | None = None
    error: EngineError | None = None

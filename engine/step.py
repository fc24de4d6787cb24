"""What one engine iteration brought: immutable, token ids only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from streamrunner.engine.errors import EngineError


class TokenLogprob(NamedTuple):
    """One token's log-probability (natural, before temperature) and rank; 1 is the likeliest."""

    token_id: int
    logprob: float
    rank: int


class RequestStep(NamedTuple):
    """New tokens of one sequence.

    logprobs: per token, the sampled one first, then the likeliest. finish_reason: stop, length, abort, error or None.
    stop_reason: the stop token id that matched; None for end-of-text. The last token is part of token_ids.
    num_cached_tokens: with a sequence's first token, how many of its prompt were found in the prefix cache.
    prompt_logprobs: with its first token (or its end, if it gets none), where wanted: for every prompt token but the
    first, that token, then the likeliest ones.
    """

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[tuple[TokenLogprob, ...], ...] | None
    finish_reason: str | None
    stop_reason: int | None
    error: EngineError | None
    num_cached_tokens: int | None = None
    prompt_logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One iteration: its sequences' new tokens, and counters.

    num_batched_tokens: tokens computed. num_prompt_tokens: those of prompts. num_cached_tokens: prompt tokens that were
    found in the prefix cache instead. kv_cache_usage: 0 to 1. num_preemptions: since the engine began.
    """

    outputs: tuple[RequestStep, ...]
    num_running: int
    num_waiting: int
    num_batched_tokens: int
    num_prompt_tokens: int
    num_cached_tokens: int
    kv_cache_usage: float
    num_preemptions: int
    step_ms: float

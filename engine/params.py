"""How to sample: vLLM's names and defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from streamrunner.engine.errors import EngineError
from streamrunner.engine.structured_params import StructuredOutputsParams

MAX_LOGPROBS = 20
# A stop list is tried at every token of every sequence.
MAX_STOP_STRINGS = 16
_MAX_BIAS = 100.0
_SHOWN = 40


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling of one request. Raises EngineError (`invalid_params`, with the parameter's name).

    n: choices per prompt. temperature: 0 is greedy. top_k: 0 or -1 keeps all. seed: None draws one.
    presence_penalty, frequency_penalty: lower tokens of the output, once or by their number. repetition_penalty:
    divides positive logits of tokens of prompt and output, multiplies negative ones; 1 changes nothing.
    logit_bias: token id to what is added to its logit, -100 to 100 (clamped). allowed_token_ids: no other comes.
    bad_words: texts that never come, with or without a blank before them. min_tokens: no end before this many.
    max_tokens: None is the rest of the context; 0 samples nothing, for prompt_logprobs alone. logprobs: how many of the
    likeliest tokens to report beside the sampled one, by the model's own logits; 0 reports the sampled one alone, None
    nothing. prompt_logprobs: the same for each token of the prompt. stop strings end a sequence and are not part of its
    text unless include_stop_str_in_output. structured_outputs: the form of the text, which ends where its form does.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: tuple[int, ...] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        for name in ("stop", "bad_words"):
            texts: str | Sequence[str] = getattr(self, name) or ()  # one string is as welcome as a list
            object.__setattr__(self, name, (texts,) if isinstance(texts, str) else tuple(texts))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        if self.structured_outputs is not None:
            form = StructuredOutputsParams.of(self.structured_outputs)
            object.__setattr__(self, "structured_outputs", form)
        self._check_ranges()
        self._check_lengths()
        self._check_stop()
        self._check_tokens()

    def _check_ranges(self) -> None:
        self._check_range("n", self.n, 1, 128)
        self._check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self._check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self._check_range("temperature", self.temperature, 0.0, 100.0)
        self._check_range("top_k", self.top_k, -1, 1 << 31)
        self._check_range("min_p", self.min_p, 0.0, 1.0)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._check_range(name, getattr(self, name), 0, MAX_LOGPROBS)
        if not 0.0 < self.repetition_penalty <= _MAX_BIAS:
            raise _invalid("repetition_penalty", self.repetition_penalty, f"above 0 and at most {_MAX_BIAS:.0f}")
        if not 0.0 < self.top_p <= 1.0:
            raise _invalid("top_p", self.top_p, "above 0 and at most 1")
        if self.seed is not None and not -(1 << 63) <= self.seed < 1 << 63:
            raise _invalid("seed", self.seed, "a signed 64-bit integer")

    def _check_range(self, name: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:  # neither is NaN
            raise _invalid(name, value, f"between {low} and {high}")

    def _check_lengths(self) -> None:
        self._check_range("min_tokens", self.min_tokens, 0, 1 << 31)
        if self.max_tokens is None:
            return
        self._check_range("max_tokens", self.max_tokens, 0, 1 << 31)
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            raise _invalid(
                "max_tokens", 0, "at least 1, unless prompt_logprobs asks for the prompt's own probabilities"
            )
        if self.min_tokens > self.max_tokens:
            raise _invalid("min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})")

    def _check_stop(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise _invalid("stop", f"{len(self.stop)} strings", f"at most {MAX_STOP_STRINGS} strings")
        if "" in self.stop:
            raise _invalid("stop", '""', "non-empty strings: an empty one would end every sequence at once")
        if any(not text.strip() for text in self.bad_words):
            raise _invalid("bad_words", "blank", "texts with at least one character that is no blank")

    def _check_tokens(self) -> None:
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        if self.allowed_token_ids is not None:
            allowed = tuple(self.allowed_token_ids)
            if not allowed or not all(_is_token(token) for token in allowed):
                raise _invalid("allowed_token_ids", list(allowed), "at least one token id, all whole numbers from 0")
            object.__setattr__(self, "allowed_token_ids", allowed)


def _checked_bias(given: Any) -> dict[int, float]:
    """Token ids as JSON has them (text) or as numbers; values clamped as vLLM does."""
    if not isinstance(given, Mapping):
        raise _invalid("logit_bias", given, "an object of token ids and numbers")
    bias: dict[int, float] = {}
    for token, value in given.items():
        number = int(token) if isinstance(token, str) and token.isdecimal() else token
        if not _is_token(number):
            raise _invalid("logit_bias", repr(token), "an object whose keys are token ids")
        if type(value) is bool or not isinstance(value, Real) or math.isnan(value):
            raise _invalid("logit_bias", f"{value!r} for token {token}", "a number for each token id")
        bias[int(number)] = max(-_MAX_BIAS, min(_MAX_BIAS, float(value)))
    return bias


def _is_token(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, Integral) and int(value) >= 0


def _invalid(name: str, value: object, allowed: str) -> EngineError:
    return EngineError("invalid_params", f"{name} is {str(value)[:_SHOWN]}, it must be {allowed}", name)

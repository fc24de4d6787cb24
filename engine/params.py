"""How to sample: vLLM's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamrunner.engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_LOGPROBS = 20
# A stop list is tried at every token of every sequence.
MAX_STOP_STRINGS = 16
_SHOWN = 40


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling of one request. Raises EngineError (`invalid_params`, with the parameter's name).

    n: choices per prompt. temperature: 0 is greedy. top_k: 0 or -1 keeps all. seed: None draws one.
    max_tokens: None is the rest of the context. logprobs: how many of the likeliest tokens to report beside the
    sampled one; 0 reports the sampled one alone, None nothing. stop strings end a sequence and are not part of its
    text unless include_stop_str_in_output.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = 16
    logprobs: int | None = None

    def __post_init__(self) -> None:
        stop: str | Sequence[str] = self.stop  # one string is as welcome as a list
        object.__setattr__(self, "stop", (stop,) if isinstance(stop, str) else tuple(stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        self._check_range("n", self.n, 1, 128)
        self._check_range("temperature", self.temperature, 0.0, 100.0)
        self._check_range("top_k", self.top_k, -1, 1 << 31)
        self._check_range("min_p", self.min_p, 0.0, 1.0)
        self._check_range("min_tokens", self.min_tokens, 0, 1 << 31)
        if not 0.0 < self.top_p <= 1.0:
            raise _invalid("top_p", self.top_p, "above 0 and at most 1")
        if self.max_tokens is not None:
            self._check_range("max_tokens", self.max_tokens, 1, 1 << 31)
        if self.logprobs is not None:
            self._check_range("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.seed is not None and not -(1 << 63) <= self.seed < 1 << 63:
            raise _invalid("seed", self.seed, "a signed 64-bit integer")
        self._check_stop()

    def _check_range(self, name: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:  # neither is NaN
            raise _invalid(name, value, f"between {low} and {high}")

    def _check_stop(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise _invalid("stop", f"{len(self.stop)} strings", f"at most {MAX_STOP_STRINGS} strings")
        if "" in self.stop:
            raise _invalid("stop", '""', "non-empty strings: an empty one would end every sequence at once")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _invalid("min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})")


def _invalid(name: str, value: object, allowed: str) -> EngineError:
    return EngineError("invalid_params", f"{name} is {str(value)[:_SHOWN]}, it must be {allowed}", name)

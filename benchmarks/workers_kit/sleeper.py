"""An engine core that computes nothing: a step sleeps, and tokens are a hash of seed, choice and position."""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Any

from streamrunner.engine.step import RequestStep, StepOutput

if TYPE_CHECKING:
    from streamrunner.engine.params import SamplingParams

# Bytes in the tiny tokenizer: letters, so that every token is a whole character.
_FIRST, _NUM_TOKENS = 64, 26


class SleepingCore:
    """`EngineCore`'s surface. `max_num_seqs` sequences get a token each in a step of `step_s`, whoever they are."""

    def __init__(self, max_num_seqs: int, step_s: float) -> None:
        self._max_num_seqs = max_num_seqs
        self._step_s = step_s
        self._live: dict[str, _Sequence] = {}

    def add_request(
        self, request_id: str, prompt_token_ids: Any, params: SamplingParams, *, choice: int = 0,
        generated: Any = (), constraints: Any = None,
    ) -> None:  # fmt: skip
        """Queue one sequence behind the others."""
        assert constraints is None
        key = zlib.crc32(bytes(prompt_token_ids)) + choice
        self._live[request_id] = _Sequence(key, len(generated), params.max_tokens or 1)

    def abort(self, request_id: str) -> None:
        """Drop a sequence."""
        self._live.pop(request_id, None)

    def has_unfinished(self) -> bool:
        """Whether there is anything to step."""
        return bool(self._live)

    def step(self) -> StepOutput:
        """One token for each of the first sequences."""
        time.sleep(self._step_s)
        running = [*self._live][: self._max_num_seqs]
        outputs = tuple(self._advance(request_id) for request_id in running)
        waiting = len(self._live) - sum(one.finish_reason is None for one in outputs)
        return StepOutput(outputs, len(running), waiting, len(running), 0, 0, 0.0, 0, self._step_s * 1e3)

    def _advance(self, request_id: str) -> RequestStep:
        one = self._live[request_id]
        token = _FIRST + zlib.crc32(b"%d %d" % (one.key, one.num_tokens)) % _NUM_TOKENS
        one.num_tokens += 1
        reason = "length" if one.num_tokens >= one.max_tokens else None
        if reason:
            del self._live[request_id]
        return RequestStep(request_id, (token,), None, reason, None, None)


class _Sequence:
    __slots__ = ("key", "max_tokens", "num_tokens")

    def __init__(self, key: int, num_tokens: int, max_tokens: int) -> None:
        self.key, self.num_tokens, self.max_tokens = key, num_tokens, max_tokens

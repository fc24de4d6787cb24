"""A stand-in engine: tokens by hash, steps by the clock, no weights. To try out a log, its readers and many workers.

    synthetic                  20 ms a step
    synthetic?step_ms=0        as fast as steps can be handed out

It keeps the engine's contract (requests in, one StepOutput a step) and its promise: a token is a function of the
prompt, seed, choice and position alone, so that a killed and continued run equals an undisturbed one.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import numpy as np

from streamrunner.engine.errors import EngineError
from streamrunner.engine.step import RequestStep, StepOutput, TokenLogprob
from streamrunner.engine.synthetic_tokenizer import EOS_ID, FIRST_WORD_ID, NUM_WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence as Tokens

    from streamrunner.engine.constraints import Constraints
    from streamrunner.engine.params import SamplingParams

NAME = "synthetic"
MAX_MODEL_LEN = 32_768
_MAX_STEP_MS = 60_000.0
# Answers end by themselves after up to so many tokens, every length as likely as the next.
_LONGEST = 512
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class SyntheticModel:
    """What stands behind the name. step_ms: how long a step takes, whatever is in it."""

    step_ms: float = 20.0

    @classmethod
    def of(cls, name: str) -> SyntheticModel | None:
        """None for the name of any other model. Raises EngineError (`invalid_config`) for settings it does not have."""
        head, _, query = name.partition("?")
        if head != NAME:
            return None
        settings = dict(parse_qsl(query, keep_blank_values=True))
        unknown = sorted(settings.keys() - {"step_ms"})
        if unknown:
            raise EngineError("invalid_config", f"the synthetic engine has no {unknown[0]!r}, only step_ms", "model")
        return cls(_milliseconds(settings.get("step_ms", "20")))

    @property
    def digest(self) -> str:
        """What takes the place of the weights' digest: the same tokens at any speed."""
        return hashlib.sha256(b"synthetic 1").hexdigest()


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= _MAX_STEP_MS:
        raise EngineError("invalid_config", f"step_ms is {text!r}, it must be 0 to {_MAX_STEP_MS:.0f}", "model")
    return value


@dataclass(slots=True)
class _Running:
    request_id: str
    params: SamplingParams
    token_ids: list[int]
    at: int
    num_prompt: int
    ends_by_length: bool


class SyntheticCore:
    """Runs up to max_num_seqs sequences at once, one token a step each; the rest wait their turn."""

    def __init__(self, model: SyntheticModel, max_num_seqs: int, max_model_len: int | None = None) -> None:
        self.max_model_len = min(max_model_len or MAX_MODEL_LEN, MAX_MODEL_LEN)
        self._step_s = model.step_ms / 1000
        self._max_num_seqs = max_num_seqs
        self._running: dict[str, _Running] = {}
        self._waiting: deque[_Running] = deque()
        self._finished_early: list[RequestStep] = []

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: Tokens[int],
        params: SamplingParams,
        *,
        choice: int = 0,
        generated: Tokens[int] = (),
        constraints: Constraints | None = None,
    ) -> None:
        """Queue one sequence, behind the tokens it already has.

        Raises EngineError (`unsupported_param`): a hash knows no form of a text and scores no prompt.
        """
        if constraints is not None or params.prompt_logprobs is not None:
            what = "structured_outputs" if constraints is not None else "prompt_logprobs"
            raise EngineError("unsupported_param", f"the synthetic engine has no {what}", what)
        if len(prompt_token_ids) >= self.max_model_len:
            raise EngineError(
                "context_length_exceeded",
                f"the prompt has {len(prompt_token_ids)} tokens, max_model_len is {self.max_model_len}: shorten it",
                "prompt",
            )
        room = self.max_model_len - len(prompt_token_ids)
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        if len(generated) >= max_tokens:
            self._finished_early.append(RequestStep(request_id, (), None, "length", None, None))
            return
        token_ids, by_length = _answer(prompt_token_ids, params, choice, max_tokens)
        self._waiting.append(_Running(request_id, params, token_ids, len(generated), len(prompt_token_ids), by_length))

    def abort(self, request_id: str) -> None:
        """Drop a sequence; an unknown one is no error."""
        if self._running.pop(request_id, None) is None:
            self._waiting = deque(one for one in self._waiting if one.request_id != request_id)

    def has_unfinished(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._running or self._waiting or self._finished_early)

    def step(self) -> StepOutput:
        """One token for every running sequence, when the step's time is over."""
        began = time.perf_counter()
        admitted = self._admit()
        outputs, self._finished_early = self._finished_early, []
        outputs += [self._advance(one) for one in list(self._running.values())]
        prompt_tokens = sum(one.num_prompt for one in admitted)
        left_s = began + self._step_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        return StepOutput(
            outputs=tuple(outputs),
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_batched_tokens=len(outputs) + prompt_tokens,
            num_prompt_tokens=prompt_tokens,
            num_cached_tokens=0,
            kv_cache_usage=len(self._running) / self._max_num_seqs,
            num_preemptions=0,
            step_ms=(time.perf_counter() - began) * 1e3,
        )

    def _admit(self) -> list[_Running]:
        admitted: list[_Running] = []
        while self._waiting and len(self._running) < self._max_num_seqs:
            one = self._waiting.popleft()
            self._running[one.request_id] = one
            admitted.append(one)
        return admitted

    def _advance(self, one: _Running) -> RequestStep:
        token = one.token_ids[one.at]
        one.at += 1
        reason, stop_token = None, None
        if token in one.params.stop_token_ids:
            reason, stop_token = "stop", token
        elif one.at == len(one.token_ids):
            reason = "length" if one.ends_by_length else "stop"
        if reason is not None:
            del self._running[one.request_id]
        logprobs = None if one.params.logprobs is None else (_logprobs(token, one.params.logprobs),)
        return RequestStep(one.request_id, (token,), logprobs, reason, stop_token, None)


def _answer(prompt: Tokens[int], params: SamplingParams, choice: int, max_tokens: int) -> tuple[list[int], bool]:
    """All tokens of an answer, and whether `max_tokens` is what ends it."""
    content = np.asarray(prompt, dtype=np.int64).tobytes()
    seed = hashlib.blake2b(content, digest_size=8, key=f"{params.seed or 0} {choice}".encode()).digest()
    start = np.frombuffer(seed, dtype=np.uint64)[0]
    length = max(int(start % np.uint64(_LONGEST)) + 1, params.min_tokens + 1)
    ends_itself = not params.ignore_eos and length <= max_tokens
    words = _hash(start, length - 1 if ends_itself else max_tokens) % np.uint64(NUM_WORDS)
    token_ids: list[int] = (words + np.uint64(FIRST_WORD_ID)).tolist()
    return ([*token_ids, EOS_ID], False) if ends_itself else (token_ids, True)


def _hash(start: np.uint64, count: int) -> np.ndarray:
    """`count` numbers of SplitMix64 (Steele, Lea, Flood 2014), shape [count], uint64."""
    with np.errstate(over="ignore"):
        state = start + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64)
        state = (state ^ (state >> np.uint64(30))) * _MIX[0]
        state = (state ^ (state >> np.uint64(27))) * _MIX[1]
        return state ^ (state >> np.uint64(31))


def _logprobs(token: int, count: int) -> tuple[TokenLogprob, ...]:
    """The sampled token as the likeliest, then its neighbours, each half as likely as the one before."""
    half = -0.6931471805599453
    others = [FIRST_WORD_ID + (token + rank) % NUM_WORDS for rank in range(1, count)]
    ranked = [TokenLogprob(one, half * (rank + 1), rank + 1) for rank, one in enumerate([token, *others])]
    return (ranked[0], *ranked[:count])

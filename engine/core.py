"""The engine: requests in, one immutable StepOutput per step out. Knows token ids only; text is made elsewhere.

    add_request ──▶ waiting ──▶ running ──(schedule, pack, forward, sample)──▶ StepOutput

Single-threaded; `EngineLoop` gives it a thread.
"""

from __future__ import annotations

import math
import secrets
import time
from typing import TYPE_CHECKING, Any

import torch

from streamrunner.engine.batch import pack
from streamrunner.engine.block_pool import BlockPool
from streamrunner.engine.errors import EngineError
from streamrunner.engine.sampler import Sampled, ScoredToken, sample_tokens, score_tokens
from streamrunner.engine.scheduler import Chunk, Scheduler
from streamrunner.engine.sequence import Sequence
from streamrunner.engine.step import RequestStep, StepOutput
from streamrunner.engine.token_rules import new_rules

if TYPE_CHECKING:
    from collections.abc import Sequence as Tokens

    from streamrunner.engine.config import EngineConfig
    from streamrunner.engine.constraints import Constraints
    from streamrunner.engine.models.decoder import DecoderModel
    from streamrunner.engine.params import SamplingParams
    from streamrunner.engine.step import TokenLogprob
    from streamrunner.engine.token_rules import TokenRules

    PromptLogprobs = tuple[tuple[TokenLogprob, ...], ...]

_RULES = "loosen min_tokens, logit_bias, allowed_token_ids, bad_words or stop_token_ids"


class EngineCore:
    """Runs sequences through one model by continuous batching over a paged cache.

    eos_token_ids: tokens that end a sequence unless its params ignore them.
    Raises EngineError (`kv_cache_too_small`) if not one sequence of max_model_len tokens fits the cache.
    """

    def __init__(self, model: DecoderModel, config: EngineConfig, eos_token_ids: Tokens[int] = ()) -> None:
        self._model = model
        self._block_size = config.block_size
        self._eos = frozenset(eos_token_ids)
        self.max_model_len = min(config.max_model_len or model.config.max_position, model.config.max_position)
        num_blocks = self._num_blocks(config.kv_cache_memory_bytes)
        self._pool = BlockPool(num_blocks)
        self._cache = model.new_cache(num_blocks, self._block_size)
        self._scheduler = Scheduler(
            self._pool,
            block_size=self._block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.batched_tokens,
            prefix_caching=config.enable_prefix_caching,
        )
        self._live: dict[str, Sequence] = {}
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
        """Queue one sequence; `generated` are tokens it already has, and it goes on behind them.

        constraints: of `compile_constraints`. The prompt is scored (`prompt_logprobs`) for choice 0 alone.
        Raises EngineError: context_length_exceeded, duplicate_request, empty_prompt, invalid_params, invalid_prompt.
        """
        self._check(request_id, prompt_token_ids, params)
        room = self.max_model_len - len(prompt_token_ids)
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        scores: list[Any] | None = [] if params.prompt_logprobs is not None and choice == 0 else None
        rules = self._rules(params, constraints, prompt_token_ids, generated)
        if rules is not None and rules.is_complete:
            max_tokens = len(generated)
        if len(generated) >= max_tokens and scores is None:
            self._finished_early.append(RequestStep(request_id, (), None, _end_reason(rules), None, None))
            return
        sequence = Sequence(
            request_id=request_id,
            token_ids=[*prompt_token_ids, *generated],
            num_prompt=len(prompt_token_ids),
            params=params,
            seed=params.seed if params.seed is not None else secrets.randbits(63),
            choice=choice,
            max_tokens=max_tokens,
            rules=rules,
            scores=scores,
        )
        self._live[request_id] = sequence
        self._scheduler.add(sequence)

    def abort(self, request_id: str) -> None:
        """Drop a sequence; unknown and finished ones are no error (an abort may cross a finish)."""
        sequence = self._live.pop(request_id, None)
        if sequence is not None:
            self._scheduler.remove(sequence)

    def has_unfinished(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._live or self._finished_early)

    @torch.inference_mode()
    def step(self) -> StepOutput:
        """Compute one batch: at most the token budget, one new token for every sequence that is ready for it."""
        began = time.perf_counter()
        outputs, self._finished_early = self._finished_early, []
        chunks = self._scheduler.schedule()
        if chunks:
            outputs += self._compute(chunks)
        prompt_tokens = sum(_num_prompt_tokens(chunk) for chunk in chunks)
        return StepOutput(
            outputs=tuple(outputs),
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_batched_tokens=sum(chunk.num_tokens for chunk in chunks),
            num_prompt_tokens=prompt_tokens,
            num_cached_tokens=sum(
                chunk.sequence.num_cached for chunk in chunks if chunk.start == chunk.sequence.num_cached
            ),
            kv_cache_usage=1 - self._pool.num_free / self._pool.num_blocks,
            num_preemptions=self._scheduler.num_preemptions,
            step_ms=(time.perf_counter() - began) * 1e3,
        )

    def _rules(
        self, params: SamplingParams, constraints: Constraints | None, prompt: Tokens[int], generated: Tokens[int]
    ) -> TokenRules | None:
        enders = (*self._eos, *params.stop_token_ids)
        return new_rules(params, constraints, enders, (prompt, generated), self._model.config.vocab_size)

    def _compute(self, chunks: list[Chunk]) -> list[RequestStep]:
        logits = self._model.forward(pack(chunks, self._block_size), self._cache)
        sampling = [chunk.sequence for chunk in chunks if chunk.samples]
        full = [chunk.sequence for chunk in chunks if chunk.completes and not chunk.samples]
        _score(logits[len(sampling) :], chunks)
        sampled = sample_tokens(logits[: len(sampling)], sampling) if sampling else []
        outputs = [self._take(sequence, one) for sequence, one in zip(sampling, sampled, strict=True)]
        return outputs + [self._end_unsampled(sequence) for sequence in full]

    def _take(self, sequence: Sequence, sampled: Sampled) -> RequestStep:
        scores = _handed_out(sequence)
        if sampled.token is None or _has_nan(scores):
            return self._fail(sequence, sampled)
        sequence.append(sampled.token)
        reason, stop_token = self._finish(sequence, sampled.token)
        if reason is not None:
            self.abort(sequence.request_id)
        return RequestStep(
            sequence.request_id,
            (sampled.token,),
            None if sampled.logprobs is None else (sampled.logprobs,),
            reason,
            stop_token,
            None,
            sequence.num_cached if sequence.num_output == 1 else None,
            scores,
        )

    def _end_unsampled(self, sequence: Sequence) -> RequestStep:
        """The end of a sequence that only its prompt's log-probabilities were wanted of."""
        scores = _handed_out(sequence)
        if _has_nan(scores):
            return self._fail(sequence, None)
        self.abort(sequence.request_id)
        reason = _end_reason(sequence.rules)
        return RequestStep(sequence.request_id, (), None, reason, None, None, sequence.num_cached, scores)

    def _finish(self, sequence: Sequence, token: int) -> tuple[str | None, int | None]:
        params = sequence.params
        if token in params.stop_token_ids:
            return "stop", token
        if token in self._eos and not params.ignore_eos:
            return "stop", None
        if sequence.rules is not None and sequence.rules.is_complete:
            return "stop", None
        return ("length", None) if sequence.num_output >= sequence.max_tokens else (None, None)

    def _fail(self, sequence: Sequence, sampled: Sampled | None) -> RequestStep:
        self.abort(sequence.request_id)
        where = f"after {sequence.num_output} output tokens"
        if sequence.rules is not None and sequence.rules.fault is not None:
            error = sequence.rules.fault
        elif sampled is not None and sampled.is_ruled_out:
            error = EngineError(
                "no_token_allowed", f"its sampling rules leave no token to go on with {where}: {_RULES}"
            )
        else:
            error = EngineError(
                "nan_logits", f"the model gave no finite logits {where}: its weights or dtype overflow here"
            )
        return RequestStep(sequence.request_id, (), None, "error", None, error)

    def _check(self, request_id: str, prompt_token_ids: Tokens[int], params: SamplingParams) -> None:
        if request_id in self._live:
            raise EngineError("duplicate_request", f"a request {request_id!r} is running already")
        if not prompt_token_ids:
            raise EngineError("empty_prompt", "the prompt has no tokens: give it at least one character")
        length, highest = len(prompt_token_ids), max(prompt_token_ids)
        if not 0 <= min(prompt_token_ids) <= highest < self._model.config.vocab_size:
            raise EngineError(
                "invalid_prompt", f"token ids of this model go from 0 to {self._model.config.vocab_size - 1}", "prompt"
            )
        if length > self.max_model_len - (params.max_tokens != 0):
            raise EngineError(
                "context_length_exceeded",
                f"the prompt has {length} tokens and leaves no room for output: the limit is {self.max_model_len} "
                "(max_model_len) with at least one output token; shorten the prompt or raise the limit",
            )

    def _num_blocks(self, memory_bytes: int) -> int:
        per_token = self._model.cache_bytes_per_token
        num_blocks = memory_bytes // (per_token * self._block_size)
        needed = -(-self.max_model_len // self._block_size)
        if num_blocks < needed:
            raise EngineError(
                "kv_cache_too_small",
                f"{memory_bytes >> 20} MiB of KV cache hold {num_blocks * self._block_size} tokens, fewer than one "
                f"sequence of {self.max_model_len} (max_model_len): raise kv_cache_memory to "
                f"{(needed * per_token * self._block_size >> 20) + 1} MiB or lower max_model_len",
                "kv_cache_memory",
            )
        return num_blocks


def _end_reason(rules: TokenRules | None) -> str:
    """Of a sequence that ends without a new token."""
    return "stop" if rules is not None and rules.is_complete else "length"


def _num_prompt_tokens(chunk: Chunk) -> int:
    return max(min(chunk.start + chunk.num_tokens, chunk.sequence.num_prompt) - chunk.start, 0)


def _score(logits: torch.Tensor, chunks: list[Chunk]) -> None:
    """Log-probabilities of the prompt tokens that this step has computed the logits for; rows in order of chunks."""
    owners = [(chunk.sequence, position) for chunk in chunks for position in chunk.scored]
    tokens = [
        ScoredToken(row, sequence.token_ids[position + 1], sequence.params.prompt_logprobs or 0)
        for row, (sequence, position) in enumerate(owners)
    ]
    for (sequence, _), logprobs in zip(owners, score_tokens(logits, tokens), strict=True):
        if sequence.scores is not None:
            sequence.scores.append(logprobs)


def _handed_out(sequence: Sequence) -> PromptLogprobs | None:
    """The prompt's log-probabilities, once."""
    scores, sequence.scores = sequence.scores, None
    return None if scores is None else tuple(scores)


def _has_nan(scores: PromptLogprobs | None) -> bool:
    return scores is not None and any(math.isnan(token[0].logprob) for token in scores)

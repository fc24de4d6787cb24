"""What one sequence may say next, beyond temperature and filters: penalties, biases, words that never come.

Functions of the sequence's own tokens alone, so that they are the same in any batch, after preemption, and for tokens
that an earlier run made. A sequence without any has no TokenRules, and costs the sampler nothing.

    logits ── mask (allowed tokens) ── bias, forbidden tokens ── penalties ──▶ temperature, filters, noise
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from streamrunner.engine.errors import EngineError
from streamrunner.kernels.penalties import add_bias, apply_penalties, mask_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Sequence as Tokens

    from streamrunner.engine.constraints import Constraints
    from streamrunner.engine.params import SamplingParams

Tensor = torch.Tensor

_WORD_BITS = 64
_NEVER = float("-inf")


class Penalties(NamedTuple):
    """In the order of `kernels.penalties.apply_penalties`."""

    presence: float
    frequency: float
    repetition: float


_NO_PENALTIES = Penalties(0.0, 0.0, 1.0)


class TokenRules:
    """Rules of one sequence and what they must remember of it. `advance` is told every token it gets.

    penalties, allowed (a mask), bias: None or empty where there is nothing to do.
    """

    def __init__(
        self,
        params: SamplingParams,
        constraints: Constraints | None,
        enders: Iterable[int],
        prompt: Tokens[int],
        vocab_size: int,
    ) -> None:
        penalties = Penalties(params.presence_penalty, params.frequency_penalty, params.repetition_penalty)
        self.penalties = None if penalties == _NO_PENALTIES else penalties
        self.seen = _SeenTokens(prompt if penalties.repetition != 1.0 else ())
        self.bias = _checked(params.logit_bias or {}, vocab_size)
        self.allowed = None if params.allowed_token_ids is None else token_mask(params.allowed_token_ids, vocab_size)
        self._bad_words = constraints.bad_words if constraints is not None else ()
        # A request may name any number as a stop token; one that is no token cannot be sampled anyway.
        self._enders = [token for token in enders if 0 <= token < vocab_size] if params.min_tokens else []
        self._min_tokens = params.min_tokens
        grammar = constraints.grammar if constraints is not None else None
        self.grammar = None if grammar is None else grammar.start(vocab_size)
        longest = max((len(word) for word in self._bad_words), default=1)
        self._tail: list[int] = []
        self._tail_length = longest - 1
        self._num_output = 0

    def advance(self, token: int) -> None:
        """The sequence has one more token."""
        self._num_output += 1
        if self.penalties is not None:
            self.seen.add(token)
        if self.grammar is not None:
            self.grammar.advance(token)
        if self._tail_length:
            self._tail = [*self._tail, token][-self._tail_length :]

    @property
    def is_complete(self) -> bool:
        """Whether the text has its form and nothing can be added to it."""
        return self.grammar is not None and self.grammar.is_complete

    @property
    def fault(self) -> EngineError | None:
        """Why the sequence cannot go on, if it cannot."""
        return None if self.grammar is None else self.grammar.fault

    @property
    def mask(self) -> np.ndarray | None:
        """[W] int64, a bit for each token that may come; None if all may."""
        if self.grammar is None:
            return self.allowed
        form = self.grammar.mask()
        return form if self.allowed is None else form & self.allowed

    def changes(self) -> Mapping[int, float]:
        """What to add to single logits for the next token; minus infinity forbids one."""
        forbidden = self._enders if self._num_output < self._min_tokens else []
        completed = [word[-1] for word in self._bad_words if self._ends_with(word[:-1])]
        if not forbidden and not completed:
            return self.bias
        return {**self.bias, **dict.fromkeys([*forbidden, *completed], _NEVER)}

    def _ends_with(self, tokens: tuple[int, ...]) -> bool:
        return not tokens or tuple(self._tail[-len(tokens) :]) == tokens


class _SeenTokens:
    """Tokens of a sequence, each once, and how often its output has them; both grow in place."""

    def __init__(self, prompt: Tokens[int]) -> None:
        self._place = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        self._tokens = array("q", self._place)
        self._counts = array("q", bytes(8 * len(self._place)))

    def add(self, token: int) -> None:
        place = self._place.setdefault(token, len(self._tokens))
        if place == len(self._tokens):
            self._tokens.append(token)
            self._counts.append(0)
        self._counts[place] += 1

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Copies: an array that is looked into cannot grow."""
        return np.array(self._tokens, np.int64), np.array(self._counts, np.int64)


def new_rules(
    params: SamplingParams,
    constraints: Constraints | None,
    enders: Iterable[int],
    tokens: tuple[Tokens[int], Tokens[int]],
    vocab_size: int,
) -> TokenRules | None:
    """Rules for a sequence with these prompt and output tokens, or None if its params have none.

    Raises EngineError (`invalid_params`) for token ids that the model does not have.
    """
    penalties = (params.presence_penalty, params.frequency_penalty, params.repetition_penalty)
    others = (params.logit_bias, params.min_tokens, params.allowed_token_ids, constraints)
    if penalties == _NO_PENALTIES and not any(others):
        return None
    prompt, output = tokens
    rules = TokenRules(params, constraints, enders, prompt, vocab_size)
    for token in output:
        rules.advance(token)
    return rules


def apply_rules(logits: Tensor, ruled: list[tuple[int, TokenRules]]) -> None:
    """Change the logits of the rows that have rules. logits: [R, V] float32, mutated."""
    masks = [(row, mask) for row, rules in ruled if (mask := rules.mask) is not None]
    if masks:
        rows = torch.tensor([row for row, _ in masks])
        mask_tokens(logits, rows, torch.from_numpy(np.stack([mask for _, mask in masks])))
    _apply_changes(logits, [(row, rules.changes()) for row, rules in ruled])
    penalised = [(row, rules.penalties, rules.seen) for row, rules in ruled if rules.penalties is not None]
    if penalised:
        _apply_penalties(logits, penalised)


def _apply_changes(logits: Tensor, changes: list[tuple[int, Mapping[int, float]]]) -> None:
    rows = [row for row, change in changes for _ in change]
    if rows:
        tokens = [token for _, change in changes for token in change]
        values = [value for _, change in changes for value in change.values()]
        add_bias(logits, torch.tensor(rows), torch.tensor(tokens), torch.tensor(values, dtype=torch.float32))


def _apply_penalties(logits: Tensor, penalised: list[tuple[int, Penalties, _SeenTokens]]) -> None:
    table = torch.tensor(_NO_PENALTIES, dtype=torch.float32).repeat(logits.shape[0], 1)
    rows, tokens, counts = [], [], []
    for row, penalties, seen in penalised:
        table[row] = torch.tensor(penalties)
        some_tokens, some_counts = seen.arrays()
        rows.append(np.full(some_tokens.shape, row))
        tokens.append(some_tokens)
        counts.append(some_counts)
    where, which, how_often = (torch.from_numpy(np.concatenate(parts)) for parts in (rows, tokens, counts))
    apply_penalties(logits, where, which, how_often, table)


def token_mask(token_ids: Iterable[int], vocab_size: int) -> np.ndarray:
    """[W] int64 as `kernels.penalties.mask_tokens` reads it. Raises EngineError (`invalid_params`)."""
    bits = np.zeros(-(-vocab_size // _WORD_BITS) * _WORD_BITS, np.uint8)
    bits[[_checked_id("allowed_token_ids", token, vocab_size) for token in token_ids]] = 1
    return np.packbits(bits, bitorder="little").view(np.int64)


def _checked(bias: Mapping[int, float], vocab_size: int) -> Mapping[int, float]:
    return {_checked_id("logit_bias", token, vocab_size): value for token, value in bias.items()}


def _checked_id(name: str, token: int, vocab_size: int) -> int:
    if token >= vocab_size:
        raise EngineError("invalid_params", f"{name} names token {token}, this model has 0 to {vocab_size - 1}", name)
    return token

"""Penalties and biases on logits, token by token: work grows with what a row has seen, not with the vocabulary."""

from __future__ import annotations

import torch

from streamrunner.kernels.op import cpu_op, fake_of

Tensor = torch.Tensor


@cpu_op(mutates_args=("logits",))
def apply_penalties(logits: Tensor, rows: Tensor, token_ids: Tensor, counts: Tensor, penalties: Tensor) -> None:
    """Lower what was said before: repetition first, then frequency and presence, as vLLM and OpenAI define them.

    logits: [R, V] float32, mutated · rows, token_ids: [E] int64, each pair once: a token its row has seen
    counts: [E] int64, how often in the output; 0 for a token of the prompt alone, which only repetition touches
    penalties: [R, 3] float32, (presence, frequency, repetition); (0, 0, 1) changes nothing
    """
    values = logits[rows, token_ids]
    presence, frequency, repetition = penalties[rows].unbind(1)
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[rows, token_ids] = values - frequency * counts - presence * (counts > 0)


@fake_of("apply_penalties")
def _(logits: Tensor, rows: Tensor, token_ids: Tensor, counts: Tensor, penalties: Tensor) -> None:
    del logits, rows, token_ids, counts, penalties


@cpu_op(mutates_args=("logits",))
def add_bias(logits: Tensor, rows: Tensor, token_ids: Tensor, bias: Tensor) -> None:
    """Add to single logits; minus infinity forbids a token.

    logits: [R, V] float32, mutated · rows, token_ids: [E] int64, each pair once · bias: [E] float32
    """
    logits[rows, token_ids] += bias


@fake_of("add_bias")
def _(logits: Tensor, rows: Tensor, token_ids: Tensor, bias: Tensor) -> None:
    del logits, rows, token_ids, bias

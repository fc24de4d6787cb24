"""Penalties and biases on logits, token by token: work grows with what a row has seen, not with the vocabulary.

Only a mask, which says of every token whether it may come, reads its rows from end to end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, types

from streamrunner.kernels.op import cpu_op, fake_of
from streamrunner.kernels.parallel import float_pointer, int_pointer, next_item, run

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


@cfunc(types.void(types.CPointer(types.int64)), cache=True, nopython=True)
def _mask_body(packed: Any) -> None:
    """[counter, items, logits, rows, masks | R, V, words]."""
    a = carray(packed, (8,))
    items, size, words = a[1], a[6], a[7]
    logits = carray(float_pointer(a[2]), (a[5], size))
    rows, masks = carray(int_pointer(a[3]), (items,)), carray(int_pointer(a[4]), (items, words))
    while True:
        item = next_item(int_pointer(a[0]))
        if item >= items:
            return
        row, mask = logits[rows[item]], masks[item]
        for token in range(size):
            word = token >> 6
            if word >= words or not (mask[word] >> (token & 63)) & 1:
                row[token] += np.float32(-np.inf)


@cpu_op(mutates_args=("logits",))
def mask_tokens(logits: Tensor, rows: Tensor, masks: Tensor) -> None:
    """Forbid all tokens whose bit is not set; NaN stays NaN, so that it is noticed.

    logits: [R, V] float32, contiguous, mutated · rows: [N] int64 in 0..R-1, each once
    masks: [N, W] int64, token t is bit t % 64 of word t // 64; tokens beyond the last word are forbidden
    """
    if not logits.is_contiguous():
        raise ValueError("logits must be contiguous: they are written in place")
    rows, masks = rows.contiguous(), masks.contiguous()
    pointers = [tensor.data_ptr() for tensor in (logits, rows, masks)]
    run(_mask_body, [*pointers, *logits.shape, masks.shape[1]], rows.shape[0])


@fake_of("mask_tokens")
def _(logits: Tensor, rows: Tensor, masks: Tensor) -> None:
    del logits, rows, masks

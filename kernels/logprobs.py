"""Log-probabilities and ranks, without a log-softmax of the whole vocabulary: a row is read, never copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit, types

from streamrunner.kernels.cpu_math import FAST, exp_nonpositive
from streamrunner.kernels.op import cpu_op, fake_of
from streamrunner.kernels.parallel import float_pointer, int_pointer, next_item, run

Tensor = torch.Tensor

# Exponentials are taken a block at a time, into memory that stays in the first cache.
_BLOCK = 4096


@cpu_op()
def logprobs_at(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """What the model gives some tokens, and how many it likes better.

    logits: [R, V] float32, before temperature · token_ids: [R, K] int64 in 0..V-1
    Returns logprobs [R, K] float32 and ranks [R, K] int64; 1 is the likeliest, and equal logits share a rank.
    """
    values = logits.gather(1, token_ids)
    ranks = token_ids.new_empty(token_ids.shape)
    for row in range(logits.shape[0]):
        ranks[row] = (logits[row] > values[row, :, None]).sum(1) + 1
    return values - logits.logsumexp(1, keepdim=True), ranks


@fake_of("logprobs_at")
def _(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    return logits.new_empty(token_ids.shape), token_ids.new_empty(token_ids.shape)


# reassoc: lanes of the sum are added in an order that the compiler chooses, once and for every row alike. It must not
# reach the exponentials, whose rounding it would break.
@njit(nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _sum(values: Any) -> Any:
    total = np.float64(0.0)
    for at in range(values.size):
        total += np.float64(values[at])
    return total


@njit(nogil=True, fastmath=FAST)
def _mass(row: Any, top: Any) -> Any:
    total, part = np.float64(0.0), np.empty(_BLOCK, np.float32)
    for start in range(0, row.size, _BLOCK):
        count = min(_BLOCK, row.size - start)
        for at in range(count):
            part[at] = exp_nonpositive(row[start + at] - top)
        total += _sum(part[:count])
    return total


@njit(nogil=True)
def _take_top(row: Any, ids: Any, values: Any) -> None:
    """The likeliest tokens, likeliest first; equal ones by index."""
    values[:] = -np.inf
    ids[:] = -1
    last = values.size - 1
    for token in range(row.size):
        value = row[token]
        # A forbidden token fills a place as long as there is an empty one.
        if value > values[last] or ids[last] < 0:
            place = last
            while place > 0 and (ids[place - 1] < 0 or value > values[place - 1]):
                values[place], ids[place] = values[place - 1], ids[place - 1]
                place -= 1
            values[place], ids[place] = value, token


@njit(nogil=True)
def _score_row(row: Any, token: Any, ids: Any, values: Any) -> Any:
    """Fill in log-probabilities, the given token first; returns its rank."""
    chosen = row[token]
    top, above = np.float32(-np.inf), 0
    for at in range(row.size):
        top = max(top, row[at])
        above += row[at] > chosen
    if values.size > 1:
        _take_top(row, ids[1:], values[1:])
    ids[0], values[0] = token, chosen
    normalizer = np.float64(top) + np.log(_mass(row, top))
    for place in range(values.size):
        values[place] = np.float32(np.float64(values[place]) - normalizer)
    return above + 1


@cfunc(types.void(types.CPointer(types.int64)), cache=True, nopython=True)
def _top_body(packed: Any) -> None:
    """[counter, items, logits, rows, tokens, ids, values, ranks | R, V, columns]."""
    a = carray(packed, (11,))
    items, size, columns = a[1], a[9], a[10]
    logits = carray(float_pointer(a[2]), (a[8], size))
    rows, tokens = carray(int_pointer(a[3]), (items,)), carray(int_pointer(a[4]), (items,))
    ids, values = carray(int_pointer(a[5]), (items, columns)), carray(float_pointer(a[6]), (items, columns))
    ranks = carray(int_pointer(a[7]), (items,))
    while True:
        item = next_item(int_pointer(a[0]))
        if item >= items:
            return
        ranks[item] = _score_row(logits[rows[item]], tokens[item], ids[item], values[item])


@cpu_op()
def top_logprobs(logits: Tensor, rows: Tensor, token_ids: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """What the model gives one token of a row and the likeliest ones.

    logits: [R, V] float32 without NaN, before temperature · rows: [N] int64 in 0..R-1 · token_ids: [N] int64 in 0..V-1
    count: how many of the likeliest, at most V
    Returns ids [N, 1 + count] int64 (the given token, then the likeliest, equal ones by index), their logprobs
    [N, 1 + count] float32, and the given tokens' ranks [N] int64; 1 is the likeliest, and equal logits share a rank.
    """
    logits, rows, token_ids = logits.contiguous(), rows.contiguous(), token_ids.contiguous()
    num_items, columns = rows.shape[0], 1 + count
    ids, values = rows.new_empty((num_items, columns)), logits.new_empty((num_items, columns))
    ranks = rows.new_empty((num_items,))
    pointers = [tensor.data_ptr() for tensor in (logits, rows, token_ids, ids, values, ranks)]
    run(_top_body, [*pointers, *logits.shape, columns], num_items)
    return ids, values, ranks


@fake_of("top_logprobs")
def _(logits: Tensor, rows: Tensor, token_ids: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    del token_ids
    shape = (rows.shape[0], 1 + count)
    return rows.new_empty(shape), logits.new_empty(shape), rows.new_empty((rows.shape[0],))

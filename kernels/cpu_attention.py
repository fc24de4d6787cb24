"""Attention over pages on the CPU: reads K and V in place, page by page in table order.

    per query row      for page in table[: last page of its position]:
    (token, head)          s = q . K[page]           K is stored [head_dim, block] so that a page's scores are one
                           m, l, acc  online softmax  vector per 8 tokens and never need a horizontal sum
                           acc += softmax . V[page]  V is stored [block, head_dim]

One order of operations for prefill, chunked prefill and decode: a query's bits depend on its own sequence alone
(arXiv 2205.14135 for the online softmax, 2309.06180 for the pages).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit, types

from streamrunner.kernels.cpu_math import FAST, exp_nonpositive
from streamrunner.kernels.parallel import float_pointer, int_pointer, next_item

# Query tokens that share one pass over the pages: K and V then come from the cache line by line only once.
TILE = 16

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_NEVER = np.float32(-np.inf)


@njit(fastmath=FAST, nogil=True)
def _scores(q: Any, k_page: Any, scores: Any) -> None:
    block, dim = scores.shape[0], q.shape[0]
    for j in range(block):
        scores[j] = _ZERO
    for d in range(0, dim, 8):
        q0, q1, q2, q3 = q[d], q[d + 1], q[d + 2], q[d + 3]
        q4, q5, q6, q7 = q[d + 4], q[d + 5], q[d + 6], q[d + 7]
        for j in range(block):
            s = scores[j] + q0 * k_page[d, j] + q1 * k_page[d + 1, j] + q2 * k_page[d + 2, j] + q3 * k_page[d + 3, j]
            s = s + q4 * k_page[d + 4, j] + q5 * k_page[d + 5, j] + q6 * k_page[d + 6, j] + q7 * k_page[d + 7, j]
            scores[j] = s


@njit(fastmath=FAST, nogil=True)
def _add_values(weights: Any, v_page: Any, acc: Any, visible: int) -> None:
    whole = visible & ~3
    for j in range(0, whole, 4):
        p0, p1, p2, p3 = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        for d in range(acc.shape[0]):
            acc[d] = acc[d] + p0 * v_page[j, d] + p1 * v_page[j + 1, d] + p2 * v_page[j + 2, d] + p3 * v_page[j + 3, d]
    for j in range(whole, visible):
        p = weights[j]
        for d in range(acc.shape[0]):
            acc[d] = acc[d] + p * v_page[j, d]


@njit(fastmath=FAST, nogil=True)
def _page(q: Any, k_page: Any, v_page: Any, visible: int, scores: Any, lanes: Any, acc: Any, top: Any) -> Any:
    """One page for one query row; returns the new running maximum. `lanes` holds the softmax sum, a lane per slot."""
    _scores(q, k_page, scores)
    new_top = top
    for j in range(visible):
        if scores[j] > new_top:
            new_top = scores[j]
    shrink = exp_nonpositive(top - new_top)
    for j in range(visible, scores.shape[0]):
        scores[j] = _NEVER
    for j in range(scores.shape[0]):
        scores[j] = exp_nonpositive(scores[j] - new_top)
    # A slot beyond the query's position may hold anything, NaN included: it must not reach the sum even at weight 0.
    for j in range(visible, scores.shape[0]):
        scores[j] = _ZERO
    for j in range(scores.shape[0]):
        lanes[j] = lanes[j] * shrink + scores[j]
    for d in range(acc.shape[0]):
        acc[d] = acc[d] * shrink
    _add_values(scores, v_page, acc, visible)
    return new_top


@njit(fastmath=FAST, nogil=True)
def _begin(q: Any, first: int, count: int, head: int, scale: Any, q_rows: Any, acc: Any, lanes: Any, top: Any) -> None:
    group = q_rows.shape[0] // TILE
    for t in range(count):
        for g in range(group):
            row = t * group + g
            top[row] = _NEVER
            for d in range(q_rows.shape[1]):
                q_rows[row, d] = q[first + t, head * group + g, d] * scale
                acc[row, d] = _ZERO
            for j in range(lanes.shape[1]):
                lanes[row, j] = _ZERO


@njit(fastmath=FAST, nogil=True)
def _finish(out: Any, first: int, count: int, head: int, acc: Any, lanes: Any) -> None:
    group = acc.shape[0] // TILE
    for t in range(count):
        for g in range(group):
            row = t * group + g
            total = _ZERO
            for j in range(lanes.shape[1]):
                total = total + lanes[row, j]
            inverse = _ONE / total
            for d in range(acc.shape[1]):
                out[first + t, head * group + g, d] = acc[row, d] * inverse


@njit(fastmath=FAST, nogil=True)
def _attend(
    q: Any, keys: Any, values: Any, tables: Any, positions: Any, tiles: Any, out: Any, scale: Any, counter: Any
) -> None:
    num_kv_heads, dim, block = keys.shape[1], keys.shape[2], keys.shape[3]
    group = q.shape[1] // num_kv_heads
    q_rows, acc = np.empty((TILE * group, dim), np.float32), np.empty((TILE * group, dim), np.float32)
    lanes, top = np.empty((TILE * group, block), np.float32), np.empty(TILE * group, np.float32)
    scores = np.empty(block, np.float32)
    while True:
        item = next_item(counter)
        if item >= tiles.shape[0] * num_kv_heads:
            return
        tile, head = item // num_kv_heads, item % num_kv_heads
        sequence, first, count = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2]
        _begin(q, first, count, head, scale, q_rows, acc, lanes, top)
        for page in range(positions[first + count - 1] // block + 1):
            k_page, v_page = keys[tables[sequence, page], head], values[tables[sequence, page], head]
            for row in range(count * group):
                visible = min(block, positions[first + row // group] + 1 - page * block)
                if visible > 0:
                    top[row] = _page(q_rows[row], k_page, v_page, visible, scores, lanes[row], acc[row], top[row])
        _finish(out, first, count, head, acc, lanes)


@cfunc(types.void(types.CPointer(types.int64)), cache=True, nopython=True)
def attention_body(packed: Any) -> None:
    """[counter, items, q, K, V, tables, positions, tiles, out, scale | T, H, D, blocks, KV, block, S, P, tiles]."""
    a = carray(packed, (20,))
    tokens, heads, dim, blocks, kv_heads, block = a[10], a[11], a[12], a[13], a[14], a[15]
    _attend(
        carray(float_pointer(a[2]), (tokens, heads, dim)),
        carray(float_pointer(a[3]), (blocks, kv_heads, dim, block)),
        carray(float_pointer(a[4]), (blocks, kv_heads, block, dim)),
        carray(int_pointer(a[5]), (a[16], a[17])),
        carray(int_pointer(a[6]), (tokens,)),
        carray(int_pointer(a[7]), (a[18], 3)),
        carray(float_pointer(a[8]), (tokens, heads, dim)),
        carray(float_pointer(a[9]), (1,))[0],
        int_pointer(a[0]),
    )

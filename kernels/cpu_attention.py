"""The attention loop on CPU: pages are read where they lie, nothing is gathered or padded.

    one item = 16 query tokens of a sequence x one KV head:

    page 0 [ 0 ........ B-1 ]  page 1 [ B ...... 2B-1 ]  page 2 [ 2B .. position ]        K [D, B], V [B, D]
        │ scores, softmax so far       │ rescale, add          │ rescale, add, divide
    rows (token, head of the group), four at a time ──▶ acc [D], one float32 sum per row and column

A row's operations and their order are the same whatever rows it shares the item with: a query has the same bits in
prefill, in chunks and in decode, in any batch (arXiv 2205.14135 for the online softmax, 2309.06180 for the pages).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numba import carray, njit, types
from numba.extending import overload

from streamrunner.kernels import storage
from streamrunner.kernels.cpu_math import FAST, exp_nonpositive
from streamrunner.kernels.pages import Pages
from streamrunner.kernels.parallel import byte_pointer, float_pointer, half_pointer, int_pointer, next_item
from streamrunner.kernels.products import MAX_ROWS, add_products
from streamrunner.kernels.row_loops import largest, to_weights
from streamrunner.kernels.storage import rounded

# Query tokens that share one pass over the pages: K and V then come from memory once for all of them.
TILE = 16

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_TWO = np.float32(2.0)
_NEVER = np.float32(-np.inf)


@njit(fastmath=FAST, nogil=True)
def _soft_capped(scores: Any, at: int, count: int, cap: Any) -> None:
    """cap * tanh(score / cap), as Gemma 2 bounds its scores."""
    for j in range(at, at + count):
        x = scores[j] / cap
        e = exp_nonpositive(-_TWO * abs(x))
        scores[j] = cap * (_ONE - e) / (_ONE + e) * (_ONE if x >= _ZERO else -_ONE)


@njit(fastmath=FAST, nogil=True)
def _weights(
    scores: Any, at: int, block: int, low: int, high: int, sums: Any, sums_at: int, top: Any, weights: Any
) -> Any:
    """Turn a row's scores into softmax weights; returns the new running maximum and the factor of what came before.

    Only slots [low, high) are seen: others may hold anything, NaN included.
    """
    for j in range(low):
        scores[at + j] = _NEVER
    for j in range(high, block):
        scores[at + j] = _NEVER
    new_top = max(top, largest(scores, at, block))
    shrink = exp_nonpositive(top - new_top)
    to_weights(scores, at, block, new_top, sums, sums_at, shrink, weights)
    return new_top, shrink


class Rows(NamedTuple):
    """What a worker keeps of the rows of its item: flat arrays, `dim` or `block` apart. Allocated once per call.

    q, acc: scaled queries and sums · sums: softmax sums, one per slot of a page · top: running maxima
    places: positions relative to the page at hand · scores, weights, seen, keep: of the rows of one pass
    q and weights are what a page is multiplied by: bfloat16 where it is, else float32
    """

    q: Any
    acc: Any
    sums: Any
    top: Any
    places: Any
    scores: Any
    weights: Any
    seen: Any
    keep: Any


@njit(nogil=True)
def _floats(memory: Any, first: int, count: int) -> Any:
    """Part of an array as one that numba does not count references of: each atomic count would hold up the pass."""
    return carray(float_pointer(memory.ctypes.data + 4 * first), (count,))


@njit(nogil=True)
def _ints(memory: Any, first: int, count: int) -> Any:
    return carray(int_pointer(memory.ctypes.data + 8 * first), (count,))


def _operands(memory: Any, first: int, count: int, pages: Any) -> Any:
    """Part of an array for what pages are multiplied by."""
    del memory, first, count, pages


@overload(_operands, strict=False)
def _typed_operands(memory: Any, first: Any, count: Any, pages: Any) -> Any:
    if pages.dtype == types.uint16:
        return lambda memory, first, count, pages: carray(half_pointer(memory.ctypes.data + 4 * first), (count,))
    return lambda memory, first, count, pages: carray(float_pointer(memory.ctypes.data + 4 * first), (count,))


@njit(nogil=True)
def _new_rows(floats: Any, ints: Any, num_rows: int, dim: int, block: int, pages: Any) -> Any:
    wide, lanes, some = num_rows * dim, num_rows * block, MAX_ROWS * block
    return Rows(
        _operands(floats, 0, wide, pages),
        _floats(floats, wide, wide),
        _floats(floats, 2 * wide, lanes),
        _floats(floats, 2 * wide + lanes, num_rows),
        _ints(ints, 0, num_rows),
        _floats(floats, 2 * wide + lanes + num_rows, some),
        _operands(floats, 2 * wide + lanes + num_rows + some, some, pages),
        _ints(ints, num_rows, MAX_ROWS),
        _floats(floats, 2 * wide + lanes + num_rows + 2 * some, MAX_ROWS),
    )


@njit(fastmath=FAST, nogil=True)
def _begin(rows: Any, q: Any, first: int, count: int, head: int, group: int, scale: Any, block: int) -> None:
    dim = q.shape[2]
    for row in range(count * group):
        rows.top[row] = _NEVER
        for d in range(dim):
            scaled = q[first + row // group, head * group + row % group, d] * scale
            rows.q[row * dim + d] = rounded(scaled, rows.q[0])
            rows.acc[row * dim + d] = _ZERO
        for j in range(block):
            rows.sums[row * block + j] = _ZERO


@njit(fastmath=FAST, nogil=True)
def _finish(rows: Any, out: Any, first: int, count: int, head: int, group: int, block: int) -> None:
    dim = out.shape[2]
    for row in range(count * group):
        total = _ZERO
        for j in range(block):
            total = total + rows.sums[row * block + j]
        inverse = _ONE / total
        for d in range(dim):
            out[first + row // group, head * group + row % group, d] = rows.acc[row * dim + d] * inverse


@njit(nogil=True, inline="always")
def _scaled(scores: Any, num_rows: int, block: int, scales: Any, at: int) -> None:
    if scales.size > 0:
        for r in range(num_rows):
            for j in range(block):
                scores[r * block + j] = scores[r * block + j] * scales[at + j]


@njit(nogil=True)
def _weigh(rows: Any, row: int, count: int, block: int, window: int, cap: Any) -> None:
    """Weights of `count` rows for the page at hand; a row that sees nothing of it keeps what it has."""
    for r in range(count):
        place, at = rows.places[row + r], r * block
        high = min(block, place + 1)
        low = max(0, place - window + 1) if window > 0 else 0
        rows.seen[r] = high if high > low else 0
        if high > low:
            if cap > _ZERO:
                _soft_capped(rows.scores, at, block, cap)
            here, sums_at = row + r, (row + r) * block
            rows.top[here], rows.keep[r] = _weights(
                rows.scores, at, block, low, high, rows.sums, sums_at, rows.top[here], rows.weights
            )
        else:
            rows.keep[r] = _ONE
            for j in range(block):
                rows.weights[at + j] = rounded(_ZERO, rows.weights[0])


@njit(nogil=True)
def _add_values(rows: Any, row: int, count: int, values: Any, page_at: int, block: int, dim: int, ahead: int) -> None:
    """Rescale what rows have and add the weighted values of a page; at the causal edge some see more of it."""
    last = rows.seen[count - 1]
    shared = rows.seen[0] if rows.seen[0] == last else rows.seen[0] & ~1  # no pair is cut in two
    if shared > 0:
        add_products(
            count, rows.weights, 0, block, values, page_at, dim, shared, rows.acc, row * dim, rows.keep, False, ahead
        )
        for r in range(count):
            rows.keep[r] = _ONE
    for r in range(count):
        if rows.seen[r] > shared:
            rows.keep[0] = rows.keep[r]
            left, start, depth = r * block + shared, page_at + shared * dim, rows.seen[r] - shared
            at = (row + r) * dim
            add_products(1, rows.weights, left, block, values, start, dim, depth, rows.acc, at, rows.keep, False, 0)


@njit(nogil=True)
def _attend_page(
    rows: Any, num_rows: int, pages: Any, page: int, ahead: int, block: int, dim: int, window: int, cap: Any
) -> None:
    """One page for all rows of an item.

    page: its number, counted in KV heads; ahead: how far behind it lies the next one.
    """
    at, size = page * dim * block, ahead * dim * block
    for row in range(0, num_rows, MAX_ROWS):
        count = min(MAX_ROWS, num_rows - row)
        if rows.places[row + count - 1] < 0 or (window > 0 and rows.places[row] - window + 1 >= block):
            continue  # all of the page lies behind these rows, or before their window
        q_at = row * dim
        add_products(count, rows.q, q_at, dim, pages.keys, at, block, dim, rows.scores, 0, rows.keep, True, size)
        _scaled(rows.scores, count, block, pages.k_scales, page * block)
        _weigh(rows, row, count, block, window, cap)
        _scaled(rows.weights, count, block, pages.v_scales, page * block)
        _add_values(rows, row, count, pages.values, at, block, dim, size)


@njit(nogil=True, inline="always")
def _first_page(position: int, window: int, block: int) -> int:
    return max(0, position - window + 1) // block if window > 0 else 0


@njit(nogil=True)
def _attend(
    q: Any, pages: Any, num_kv_heads: int, block: int, tables: Any, positions: Any, tiles: Any, out: Any,
    numbers: Any, window: int, counter: Any,
) -> None:  # fmt: skip
    dim, group = q.shape[2], q.shape[1] // num_kv_heads
    num_rows = TILE * group
    floats = np.empty(num_rows * (2 * dim + block + 1) + MAX_ROWS * (2 * block + 1), np.float32)
    ints = np.empty(num_rows + MAX_ROWS, np.int64)
    rows = _new_rows(floats, ints, num_rows, dim, block, pages.keys)
    num_items = tiles.shape[0] * num_kv_heads
    item = next_item(counter)
    while item < num_items:
        # Taken one ahead, so that its first page is under way while this item's last one is computed.
        upcoming = next_item(counter)
        tile, head = item // num_kv_heads, item % num_kv_heads
        sequence, first, count = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2]
        _begin(rows, q, first, count, head, group, numbers[0], block)
        index, last = _first_page(positions[first], window, block), positions[first + count - 1] // block
        page = tables[sequence, index] * num_kv_heads + head
        while index <= last:
            following = page
            if index < last:
                following = tables[sequence, index + 1] * num_kv_heads + head
            elif upcoming < num_items:
                other, begin = tiles[upcoming // num_kv_heads, 0], positions[tiles[upcoming // num_kv_heads, 1]]
                following = tables[other, _first_page(begin, window, block)] * num_kv_heads + upcoming % num_kv_heads
            for row in range(count * group):
                rows.places[row] = positions[first + row // group] - index * block
            _attend_page(rows, count * group, pages, page, following - page, block, dim, window, numbers[1])
            page, index = following, index + 1
        _finish(rows, out, first, count, head, group, block)
        item = upcoming
    floats[0] = ints[0]  # both have to live until here


@njit(nogil=True)
def _run(a: Any, keys: Any, values: Any) -> None:
    tokens, heads, dim, kv_heads, block = a[12], a[13], a[14], a[16], a[17]
    num_scales = a[15] * kv_heads * block if a[4] != 0 else 0
    scales = carray(float_pointer(a[4]), (num_scales,)), carray(float_pointer(a[6]), (num_scales,))
    _attend(
        carray(float_pointer(a[2]), (tokens, heads, dim)),
        Pages(keys, values, scales[0], scales[1]),
        kv_heads,
        block,
        carray(int_pointer(a[7]), (a[18], a[19])),
        carray(int_pointer(a[8]), (tokens,)),
        carray(int_pointer(a[9]), (a[20], 3)),
        carray(float_pointer(a[10]), (tokens, heads, dim)),
        carray(float_pointer(a[11]), (2,)),
        a[21],
        int_pointer(a[0]),
    )


# [counter, items, q, K, K scales, V, V scales, tables, positions, tiles, out, (scale, soft cap) |
#  T, H, D, blocks, KV, block, S, P, tiles, window]
_NUM_ARGUMENTS = 22


def _float32(packed: Any) -> None:
    a = carray(packed, (_NUM_ARGUMENTS,))
    size = a[15] * a[16] * a[14] * a[17]
    _run(a, carray(float_pointer(a[3]), (size,)), carray(float_pointer(a[5]), (size,)))


def _bfloat16(packed: Any) -> None:
    a = carray(packed, (_NUM_ARGUMENTS,))
    size = a[15] * a[16] * a[14] * a[17]
    _run(a, carray(half_pointer(a[3]), (size,)), carray(half_pointer(a[5]), (size,)))


def _int8(packed: Any) -> None:
    a = carray(packed, (_NUM_ARGUMENTS,))
    size = a[15] * a[16] * a[14] * a[17]
    _run(a, carray(byte_pointer(a[3]), (size,)), carray(byte_pointer(a[5]), (size,)))


_BODIES = {torch.float32: _float32, torch.bfloat16: _bfloat16, torch.int8: _int8}


def attention_body(dtype: torch.dtype) -> Any:
    """The compiled loop for pages of a dtype (float32, bfloat16 or int8)."""
    return storage.body(_BODIES[dtype])

"""Rotary position embedding and the write into the paged cache, in one pass over Q, K and V (arXiv 2104.09864)."""

from __future__ import annotations

from typing import Any

import torch
from numba import carray, cfunc, njit, types

from streamrunner.kernels.cpu_math import FAST
from streamrunner.kernels.op import cpu_op, fake_of
from streamrunner.kernels.parallel import float_pointer, int_pointer, next_item, run

Tensor = torch.Tensor


@njit(fastmath=FAST, nogil=True, inline="always")
def _rotated(low: Any, high: Any, cos: Any, sin: Any) -> Any:
    return low * cos - high * sin, high * cos + low * sin


@njit(fastmath=FAST, nogil=True)
def _rope_tokens(
    qkv: Any, cos: Any, sin: Any, positions: Any, slots: Any, q: Any, keys: Any, values: Any, counter: Any
) -> None:
    num_heads, dim = q.shape[1], q.shape[2]
    num_kv_heads, block = keys.shape[1], keys.shape[3]
    half = dim // 2
    while True:
        t = next_item(counter)
        if t >= q.shape[0]:
            return
        position, page, slot = positions[t], slots[t] // block, slots[t] % block
        for head in range(num_heads):
            base = head * dim
            for d in range(half):
                low, high = qkv[t, base + d], qkv[t, base + half + d]
                q[t, head, d], q[t, head, half + d] = _rotated(low, high, cos[position, d], sin[position, d])
        for head in range(num_kv_heads):
            base = (num_heads + head) * dim
            for d in range(half):
                low, high = qkv[t, base + d], qkv[t, base + half + d]
                first, second = _rotated(low, high, cos[position, d], sin[position, d])
                keys[page, head, d, slot] = first
                keys[page, head, half + d, slot] = second
            base = (num_heads + num_kv_heads + head) * dim
            for d in range(dim):
                values[page, head, slot, d] = qkv[t, base + d]


@cfunc(types.void(types.CPointer(types.int64)), cache=True, nopython=True)
def _rope_body(packed: Any) -> None:
    """[counter, items, qkv, cos, sin, positions, slots, q, K, V | T, H, KV, D, blocks, block, table rows]."""
    a = carray(packed, (17,))
    tokens, heads, kv_heads, dim, blocks, block = a[10], a[11], a[12], a[13], a[14], a[15]
    _rope_tokens(
        carray(float_pointer(a[2]), (tokens, (heads + 2 * kv_heads) * dim)),
        carray(float_pointer(a[3]), (a[16], dim // 2)),
        carray(float_pointer(a[4]), (a[16], dim // 2)),
        carray(int_pointer(a[5]), (tokens,)),
        carray(int_pointer(a[6]), (tokens,)),
        carray(float_pointer(a[7]), (tokens, heads, dim)),
        carray(float_pointer(a[8]), (blocks, kv_heads, dim, block)),
        carray(float_pointer(a[9]), (blocks, kv_heads, block, dim)),
        int_pointer(a[0]),
    )


@cpu_op(mutates_args=("k_cache", "v_cache"))
def rope_and_cache(
    qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor
) -> Tensor:
    """Rotate Q and K by their positions, write K and V to their slots, return Q.

    qkv: [T, (H + 2 * KV) * D] float32 · cos, sin: [max position + 1, D / 2] float32, halves rotated as in Llama
    positions, slots: [T] int64, slot = page * B + offset · k_cache: [N, KV, D, B], v_cache: [N, KV, B, D]; both mutated
    Returns q: [T, H, D].
    """
    qkv = qkv.contiguous()
    tokens, (blocks, kv_heads, dim, block) = qkv.shape[0], k_cache.shape
    heads = qkv.shape[1] // dim - 2 * kv_heads
    q = qkv.new_empty((tokens, heads, dim))
    tensors = (qkv, cos, sin, positions, slots, q, k_cache, v_cache)
    sizes = [tokens, heads, kv_heads, dim, blocks, block, cos.shape[0]]
    run(_rope_body, [tensor.data_ptr() for tensor in tensors] + sizes, tokens)
    return q


@fake_of("rope_and_cache")
def _(
    qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor
) -> Tensor:
    del cos, sin, positions, slots, v_cache
    dim = k_cache.shape[2]
    return qkv.new_empty((qkv.shape[0], qkv.shape[1] // dim - 2 * k_cache.shape[1], dim))

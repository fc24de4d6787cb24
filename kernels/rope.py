"""Norms of Q and K heads, rotary position embedding (arXiv 2104.09864) and the write into the pages, in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numba import carray, njit

from streamrunner.kernels import storage
from streamrunner.kernels.cpu_math import FAST
from streamrunner.kernels.norm import NUM_LANES, norm_row
from streamrunner.kernels.op import cpu_op, fake_of
from streamrunner.kernels.pages import Pages, is_paired, place
from streamrunner.kernels.parallel import byte_pointer, float_pointer, half_pointer, int_pointer, next_item, run
from streamrunner.kernels.storage import load, rounded

Tensor = torch.Tensor

_LARGEST_INT8 = np.float32(127.0)
_HALF = np.float32(0.5)


class _Norms(NamedTuple):
    """Weights for the heads of Q and of K, empty for none; room for a head and for partial sums."""

    q: Any
    k: Any
    eps: Any
    head: Any
    lanes: Any


@njit(fastmath=FAST, nogil=True)
def _rotate(stored: Any, weight: Any, norms: Any, cos: Any, sin: Any, out: Any) -> None:
    """The first 2 * len(cos) numbers of a head are rotated, halves against each other as in Llama; the rest is kept."""
    head, half = norms.head, cos.shape[0]
    for d in range(head.shape[0]):
        head[d] = load(stored[d])
    if weight.shape[0] > 0:
        norm_row(head, weight, head, norms.eps, norms.lanes)
    for d in range(half):
        out[d] = head[d] * cos[d] - head[half + d] * sin[d]
        out[half + d] = head[half + d] * cos[d] + head[d] * sin[d]
    for d in range(2 * half, head.shape[0]):
        out[d] = head[d]


@njit(fastmath=FAST, nogil=True)
def _write(pages: Any, at: int, slot: int, block: int, key: Any, value: Any) -> None:
    """Into the page of one head, which begins at `at`."""
    dim, pairs = key.shape[0], is_paired(pages.keys)
    for d in range(dim):
        k, v = at + place(d, slot, block, pairs), at + place(slot, d, dim, pairs)
        pages.keys[k] = rounded(key[d], pages.keys[k])
        pages.values[v] = rounded(value[d], pages.values[v])


@njit(fastmath=FAST, nogil=True)
def _largest(x: Any) -> Any:
    top = np.float32(0.0)
    for d in range(x.shape[0]):
        # Written so that NaN wins: a scale of NaN makes the sequence fail, as it would without quantisation.
        top = top if abs(x[d]) <= top else abs(x[d])  # noqa: FURB136
    return top


@njit(fastmath=FAST, nogil=True)
def _write_int8(pages: Any, at: int, scale_at: int, slot: int, block: int, key: Any, value: Any) -> None:
    """One scale for the key and one for the value of a slot: the largest number becomes 127."""
    dim = key.shape[0]
    k_scale, v_scale = _largest(key) / _LARGEST_INT8, _largest(value) / _LARGEST_INT8
    pages.k_scales[scale_at + slot], pages.v_scales[scale_at + slot] = k_scale, v_scale
    for d in range(dim):
        pages.keys[at + place(d, slot, block, False)] = _quantised(key[d], k_scale)
        pages.values[at + place(slot, d, dim, False)] = _quantised(value[d], v_scale)


@njit(fastmath=FAST, nogil=True, inline="always")
def _quantised(x: Any, scale: Any) -> Any:
    if not scale > np.float32(0.0):
        return np.int8(0)
    return np.int8(np.floor(x / scale + _HALF))


@njit(nogil=True)
def _rope_tokens(
    qkv: Any,
    cos: Any,
    sin: Any,
    positions: Any,
    slots: Any,
    q: Any,
    pages: Any,
    num_kv_heads: int,
    block: int,
    norms: Any,
    counter: Any,
) -> None:
    num_heads, dim = q.shape[1], q.shape[2]
    key, value = np.empty(dim, np.float32), np.empty(dim, np.float32)
    while True:
        t = next_item(counter)
        if t >= q.shape[0]:
            return
        cos_row, sin_row = cos[positions[t]], sin[positions[t]]
        for head in range(num_heads):
            _rotate(qkv[t, head], norms.q, norms, cos_row, sin_row, q[t, head])
        for head in range(num_kv_heads):
            _rotate(qkv[t, num_heads + head], norms.k, norms, cos_row, sin_row, key)
            stored = qkv[t, num_heads + num_kv_heads + head]
            for d in range(dim):
                value[d] = load(stored[d])
            page, slot = slots[t] // block * num_kv_heads + head, slots[t] % block
            if pages.k_scales.size > 0:
                _write_int8(pages, page * dim * block, page * block, slot, block, key, value)
            else:
                _write(pages, page * dim * block, slot, block, key, value)


@njit(nogil=True)
def _run(a: Any, qkv: Any, keys: Any, values: Any) -> None:
    tokens, dim = a[15], a[18]
    scales = (a[19] * a[17] * a[20] if a[10] != 0 else 0,)
    norms = _Norms(
        carray(float_pointer(a[12]), (dim if a[12] != 0 else 0,)),
        carray(float_pointer(a[13]), (dim if a[13] != 0 else 0,)),
        carray(float_pointer(a[14]), (1,))[0],
        np.empty(dim, np.float32),
        np.empty(NUM_LANES, np.float32),
    )
    _rope_tokens(
        qkv,
        carray(float_pointer(a[3]), (a[21], a[22])),
        carray(float_pointer(a[4]), (a[21], a[22])),
        carray(int_pointer(a[5]), (tokens,)),
        carray(int_pointer(a[6]), (tokens,)),
        carray(float_pointer(a[7]), (tokens, a[16], dim)),
        Pages(keys, values, carray(float_pointer(a[10]), scales), carray(float_pointer(a[11]), scales)),
        a[17],
        a[20],
        norms,
        int_pointer(a[0]),
    )


# [counter, items, qkv, cos, sin, positions, slots, q, K, V, K scales, V scales,
#  Q norm, K norm, eps | T, H, KV, D, blocks, B, table rows, rotated / 2]
_NUM_ARGUMENTS = 23


@njit(inline="always")
def _shapes(a: Any) -> Any:
    heads, kv_heads, dim, blocks, block = a[16], a[17], a[18], a[19], a[20]
    return (a[15], heads + 2 * kv_heads, dim), (blocks * kv_heads * dim * block,)


def _float32(packed: Any) -> None:
    a = carray(packed, (_NUM_ARGUMENTS,))
    qkv, pages = _shapes(a)
    _run(
        a,
        carray(float_pointer(a[2]), qkv),
        carray(float_pointer(a[8]), pages),
        carray(float_pointer(a[9]), pages),
    )


def _bfloat16(packed: Any) -> None:
    a = carray(packed, (_NUM_ARGUMENTS,))
    qkv, pages = _shapes(a)
    _run(
        a,
        carray(half_pointer(a[2]), qkv),
        carray(half_pointer(a[8]), pages),
        carray(half_pointer(a[9]), pages),
    )


def _float32_int8(packed: Any) -> None:
    a = carray(packed, (_NUM_ARGUMENTS,))
    qkv, pages = _shapes(a)
    _run(
        a,
        carray(float_pointer(a[2]), qkv),
        carray(byte_pointer(a[8]), pages),
        carray(byte_pointer(a[9]), pages),
    )


def _bfloat16_int8(packed: Any) -> None:
    a = carray(packed, (_NUM_ARGUMENTS,))
    qkv, pages = _shapes(a)
    _run(
        a,
        carray(half_pointer(a[2]), qkv),
        carray(byte_pointer(a[8]), pages),
        carray(byte_pointer(a[9]), pages),
    )


_BODIES = {
    (torch.float32, torch.float32): _float32,
    (torch.bfloat16, torch.bfloat16): _bfloat16,
    (torch.float32, torch.int8): _float32_int8,
    (torch.bfloat16, torch.int8): _bfloat16_int8,
}


@cpu_op(mutates_args=("k_cache", "v_cache", "k_scale", "v_scale"))
def rope_and_cache(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Normalise the heads of Q and K (if asked), rotate them by position, write K and V to their slots, return Q.

    qkv: [T, (H + 2 * KV) * D] float32 or bfloat16 · cos, sin: [max position + 1, R / 2] float32: the first R numbers of
    a head are rotated, halves against each other as in Llama; R may be 0 · positions, slots: [T] int64, slot = page *
    B + offset · k_cache: [N, KV, D, B], v_cache: [N, KV, B, D] (`pages`): of qkv's dtype, or int8 with k_scale and
    v_scale: [N, KV, B] float32; all four are mutated. q_norm, k_norm: [D] float32, weights of an RMSNorm of each head
    with eps (Qwen3). Returns q: [T, H, D] float32.
    """
    qkv = qkv.contiguous()
    tokens, (blocks, kv_heads, dim, block) = qkv.shape[0], k_cache.shape
    heads = qkv.shape[1] // dim - 2 * kv_heads
    q = qkv.new_empty((tokens, heads, dim), dtype=torch.float32)
    eps_box = np.array([eps], np.float32)
    tensors = (qkv, cos, sin, positions, slots, q, k_cache, v_cache, k_scale, v_scale, q_norm, k_norm)
    pointers = [0 if one is None else one.data_ptr() for one in tensors]
    sizes = [tokens, heads, kv_heads, dim, blocks, block, *cos.shape]
    run(storage.body(_BODIES[qkv.dtype, k_cache.dtype]), [*pointers, eps_box.ctypes.data, *sizes], tokens)
    return q


@fake_of("rope_and_cache")
def _(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    del cos, sin, positions, slots, v_cache, k_scale, v_scale, q_norm, k_norm, eps
    dim = k_cache.shape[2]
    shape = (qkv.shape[0], qkv.shape[1] // dim - 2 * k_cache.shape[1], dim)
    return qkv.new_empty(shape, dtype=torch.float32)

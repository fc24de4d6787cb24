"""QK-norm, rotation and the paged write in one pass: a program takes a token and four of its Q, K and V heads.

    head < H            norm, rotate ─▶ q
    head < H + KV       norm, rotate ─▶ K page    (8-bit pages: divided by the slot's scale first)
    head < H + 2 * KV                ─▶ V page

Four heads of 128 are four numbers a thread. Eight would halve the programs, but spill where pages are 8-bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from streamrunner.kernels.gpu.launch import launch, next_power_of_2

Tensor = torch.Tensor

_HEADS_PER_PROGRAM = 4
# The largest number a page of these dtypes holds: what a slot's largest becomes.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


@triton.jit
def _slot_scale(x, LARGEST: tl.constexpr):
    """One scale per head; NaN where the head has one, so that the sequence fails as it would without quantisation."""
    top = tl.max(tl.abs(x), axis=1) / LARGEST
    has_nan = tl.max((x != x).to(tl.int32), axis=1) > 0
    return tl.where(has_nan, float("nan"), top)


@triton.jit
def _quantised(x, scale, INT8: tl.constexpr):
    scaled = tl.where((scale > 0)[:, None], x / scale[:, None], 0.0)
    return tl.floor(scaled + 0.5) if INT8 else scaled


@triton.jit
def rope_heads(
    qkv, cos, sin, positions, slots, q, k_cache, v_cache, k_scale, v_scale, q_norm, k_norm, eps,
    qkv_stride, cos_stride, k_page, k_head, k_dim, k_slot, v_page, v_head, v_slot, v_dim,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, ROTATED: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, NORM: tl.constexpr, LARGEST: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    is_q = head < HEADS
    is_k = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_v = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    inside = (is_q | is_k | is_v)[:, None] & (d < DIM)[None, :]
    row = qkv + token * qkv_stride + head[:, None] * DIM
    x = tl.load(row + d[None, :], mask=inside, other=0.0).to(tl.float32)

    HALF: tl.constexpr = ROTATED // 2
    # The number that this one is rotated against, itself where there is none.
    other = tl.where(d < HALF, d + HALF, tl.where(d < ROTATED, d - HALF, d))
    y = tl.load(row + other[None, :], mask=inside, other=0.0).to(tl.float32)
    if NORM:
        inverse = (1.0 / tl.sqrt_rn(tl.sum(x * x, axis=1) / DIM + eps))[:, None]
        in_q, in_k = is_q[:, None] & (d < DIM)[None, :], is_k[:, None] & (d < DIM)[None, :]
        blank = tl.where(in_q | in_k, 0.0, 1.0)
        weight_x = blank + tl.load(q_norm + d[None, :], mask=in_q, other=0.0)
        weight_x += tl.load(k_norm + d[None, :], mask=in_k, other=0.0)
        weight_y = blank + tl.load(q_norm + other[None, :], mask=in_q, other=0.0)
        weight_y += tl.load(k_norm + other[None, :], mask=in_k, other=0.0)
        inverse = tl.where((is_q | is_k)[:, None], inverse, 1.0)
        x = x * inverse * weight_x
        y = y * inverse * weight_y
    if ROTATED > 0:
        angle = tl.load(positions + token) * cos_stride + tl.where(d < HALF, d, d - HALF)
        c = tl.load(cos + angle, mask=d < ROTATED, other=1.0)
        s = tl.load(sin + angle, mask=d < ROTATED, other=0.0) * tl.where(d < HALF, -1.0, 1.0)
        x = tl.where(is_v[:, None], x, x * c[None, :] + y * s[None, :])

    target = q + (token * HEADS + head[:, None]) * DIM + d[None, :]
    tl.store(target, x, mask=is_q[:, None] & (d < DIM)[None, :])
    slot = tl.load(slots + token)
    if slot < 0:
        return
    page, place = slot // PAGE, slot % PAGE
    k_inside, v_inside = is_k[:, None] & (d < DIM)[None, :], is_v[:, None] & (d < DIM)[None, :]
    k_of, v_of = head - HEADS, head - HEADS - KV_HEADS
    if LARGEST > 0:
        scale = _slot_scale(x, LARGEST)
        tl.store(k_scale + (page * KV_HEADS + k_of) * PAGE + place, scale, mask=is_k)
        tl.store(v_scale + (page * KV_HEADS + v_of) * PAGE + place, scale, mask=is_v)
        x = _quantised(x, scale, INT8)
    stored = x.to(k_cache.dtype.element_ty)
    tl.store(
        k_cache + page * k_page + k_of[:, None] * k_head + place * k_slot + d[None, :] * k_dim, stored, mask=k_inside
    )
    tl.store(
        v_cache + page * v_page + v_of[:, None] * v_head + place * v_slot + d[None, :] * v_dim, stored, mask=v_inside
    )


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
    """See `kernels.rope.rope_and_cache`. Beside it: pages may be float8_e4m3fn, with scales or (scale 1) without;
    pages may have any strides; a slot of -1 is written nowhere, which pads a captured batch.
    """
    qkv = qkv if qkv.stride(1) == 1 else qkv.contiguous()
    tokens, (_, kv_heads, dim, block) = qkv.shape[0], k_cache.shape
    heads = qkv.shape[1] // dim - 2 * kv_heads
    q = qkv.new_empty((tokens, heads, dim), dtype=torch.float32)
    tensors = (qkv, cos, sin, positions, slots, q, k_cache, v_cache, k_scale, v_scale, q_norm, k_norm)
    strides = (qkv.stride(0), cos.stride(0), *k_cache.stride(), *v_cache.stride())
    constants: dict[str, Any] = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "DIM": dim,
        "ROTATED": 2 * cos.shape[1],
        "PAGE": block,
        "BLOCK_H": _HEADS_PER_PROGRAM,
        "BLOCK_D": next_power_of_2(dim),
        "NORM": q_norm is not None,
        "LARGEST": 0.0 if k_scale is None else LARGEST[k_cache.dtype],
        "INT8": k_cache.dtype == torch.int8,
    }
    grid = (tokens, triton.cdiv(heads + 2 * kv_heads, _HEADS_PER_PROGRAM))
    launch(rope_heads, grid, *tensors, eps, *strides, **constants)
    return q

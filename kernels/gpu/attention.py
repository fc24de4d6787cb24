"""Paged attention on the GPU: one kernel for prefill, chunked prefill and decode (arXiv 2205.14135, 2309.06180).

    program = tile of BLOCK_M rows x KV head (x split)

    rows      token 0, head 0..G-1 of the group | token 1, head 0..G-1 | ...      a decode tile is one token's group
    splits    [0 ........ SPLIT) [SPLIT ..... 2 SPLIT) [ ...                      of the sequence's slots

Which sequence a tile belongs to is searched in the kernel: tile numbers are handed out as if every span began a tile
of its own, so the grid needs the number of spans and tokens, never a length, and a captured graph fits any lengths.

A split has a fixed length and is a unit of arithmetic, not of scheduling: each is attended from a fresh softmax and
added to the row's total in order. One program may do all splits of a row, or many programs one each, with the totals
added by a second kernel in the same order: same bits, so a small batch may use the whole card and still agree with a
large one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from streamrunner.kernels.gpu.launch import capability, half_dtype, launch, next_power_of_2, num_sms

Tensor = torch.Tensor

_LOG2E = math.log2(math.e)
# Slots of a split. None for prefill: one running softmax costs fewer registers than adding up two.
_SPLIT = 512
_NO_SPLIT = 0
_TRITON_DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit
def _span_of(spans, num_spans, tile, BLOCK_Q: tl.constexpr):
    """The last span whose first tile is not after `tile`; span i begins at tile first_i // BLOCK_Q + i."""
    low, high = 0, num_spans - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(spans + 3 * middle + 1) // BLOCK_Q + middle <= tile:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def _attend_tile(
    query, m, mass, acc, k_cache, v_cache, k_scale, v_scale, table, slot, end, position, head,
    k_page, k_head, k_dim, k_slot, v_page, v_head, v_slot, v_dim, scale_log2, soft_cap, window,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK_D: tl.constexpr, DTYPE: tl.constexpr,
    SCALED: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BLOCK_D)
    stored = slot < end
    page = tl.load(table + slot // PAGE, mask=stored, other=0).to(tl.int64)
    place = slot % PAGE
    # Both tiles are masked: what nobody wrote may be NaN, and 0 * NaN would reach the sum through V.
    k_at = page[None, :] * k_page + head * k_head + place[None, :] * k_slot + d[:, None] * k_dim
    keys = tl.load(k_cache + k_at, mask=stored[None, :] & (d < DIM)[:, None], other=0.0).to(DTYPE)
    scores = tl.dot(query, keys, input_precision=PRECISION)
    if SCALED:
        scale_at = (page * KV_HEADS + head) * PAGE + place
        scores *= tl.load(k_scale + scale_at, mask=stored, other=0.0)[None, :]
    if CAPPED:
        x = scores * (scale_log2 / soft_cap)
        # tanh(s) = 1 - 2 / (1 + exp(2 s)); scale_log2 already turns exp into exp2, the cap is put back in log2 too.
        scores = (1.0 - 2.0 / (1.0 + tl.exp2(2.0 * x))) * (soft_cap * 1.4426950408889634)
    else:
        scores *= scale_log2
    seen = (slot[None, :] <= position[:, None]) & stored[None, :]
    if WINDOW:
        seen &= slot[None, :] > position[:, None] - window
    scores = tl.where(seen, scores, float("-inf"))
    new_m = tl.maximum(m, tl.max(scores, axis=1))
    base = tl.where(new_m == float("-inf"), 0.0, new_m)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(m - base)
    mass = mass * shrink + tl.sum(weights, axis=1)
    v_at = page[:, None] * v_page + head * v_head + place[:, None] * v_slot + d[None, :] * v_dim
    values = tl.load(v_cache + v_at, mask=stored[:, None] & (d < DIM)[None, :], other=0.0).to(DTYPE)
    if SCALED:
        weights *= tl.load(v_scale + scale_at, mask=stored, other=0.0)[None, :]
    acc = tl.dot(weights.to(DTYPE), values, acc * shrink[:, None], input_precision=PRECISION)
    return new_m, mass, acc


@triton.jit
def _attend_range(
    query, low, high, k_cache, v_cache, k_scale, v_scale, table, end, position, head,
    k_page, k_head, k_dim, k_slot, v_page, v_head, v_slot, v_dim, scale_log2, soft_cap, window,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, DTYPE: tl.constexpr,
    SCALED: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Slots low..high from a fresh softmax: (running maximum, sum, weighted values) per row."""
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for at in range(low, high, BLOCK_N):
        m, mass, acc = _attend_tile(
            query, m, mass, acc, k_cache, v_cache, k_scale, v_scale, table, at + tl.arange(0, BLOCK_N), end, position,
            head, k_page, k_head, k_dim, k_slot, v_page, v_head, v_slot, v_dim, scale_log2, soft_cap, window,
            KV_HEADS, DIM, PAGE, BLOCK_D, DTYPE, SCALED, WINDOW, CAPPED, PRECISION,
        )  # fmt: skip
    return m, mass, acc


@triton.jit
def _merge(m, mass, acc, split_m, split_mass, split_acc):
    """Add a split to the total. The products are rounded and added by explicit fma: both kernels get the same bits."""
    new_m = tl.maximum(m, split_m)
    base = tl.where(new_m == float("-inf"), 0.0, new_m)
    old, new = tl.exp2(m - base), tl.exp2(split_m - base)
    mass = tl.fma(mass, old, split_mass * new)
    acc = tl.fma(acc, tl.broadcast_to(old[:, None], acc.shape), split_acc * new[:, None])
    return new_m, mass, acc


@triton.jit(do_not_specialize=["num_spans", "table_stride", "window", "num_splits"])
def attend(
    q, k_cache, v_cache, k_scale, v_scale, tables, positions, spans, out, partial, partial_ml,
    num_spans, table_stride, k_page, k_head, k_dim, k_slot, v_page, v_head, v_slot, v_dim,
    scale_log2, soft_cap, window, num_splits,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT: tl.constexpr, PARALLEL: tl.constexpr,
    DTYPE: tl.constexpr, SCALED: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = HEADS // KV_HEADS
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    tile, head, chosen = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    span = _span_of(spans, num_spans, tile, BLOCK_Q)
    sequence = tl.load(spans + 3 * span)
    first, count = tl.load(spans + 3 * span + 1), tl.load(spans + 3 * span + 2)
    begin = (tile - (first // BLOCK_Q + span)) * BLOCK_Q
    if begin >= count:
        return
    rows = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    inside = (begin + rows // GROUP < count) & (rows < BLOCK_Q * GROUP)
    token = first + begin + rows // GROUP
    position = tl.load(positions + token, mask=inside, other=-1)
    end = tl.max(position) + 1
    start = 0
    if WINDOW:
        start = tl.maximum(tl.load(positions + first + begin) - window + 1, 0) // BLOCK_N * BLOCK_N
    head_row = token * HEADS + head * GROUP + rows % GROUP
    q_at = head_row[:, None] * DIM + d[None, :]
    wanted = inside[:, None] & (d < DIM)[None, :]
    query = tl.load(q + q_at, mask=wanted, other=0.0).to(DTYPE)
    table = tables + sequence * table_stride
    if SPLIT == 0:
        total_m, total_mass, total = _attend_range(
            query, start, end, k_cache, v_cache, k_scale, v_scale, table, end, position, head,
            k_page, k_head, k_dim, k_slot, v_page, v_head, v_slot, v_dim, scale_log2, soft_cap, window,
            KV_HEADS, DIM, PAGE, BLOCK_M, BLOCK_N, BLOCK_D, DTYPE, SCALED, WINDOW, CAPPED, PRECISION,
        )  # fmt: skip
    else:
        low, high = start // SPLIT, tl.cdiv(end, SPLIT)
        if PARALLEL:
            low, high = tl.maximum(low, chosen), tl.minimum(high, chosen + 1)
        total_m = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total_mass = tl.zeros([BLOCK_M], tl.float32)
        total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for split in range(low, high):
            m, mass, acc = _attend_range(
                query, tl.maximum(start, split * SPLIT), tl.minimum(end, (split + 1) * SPLIT),
                k_cache, v_cache, k_scale, v_scale, table, end, position, head,
                k_page, k_head, k_dim, k_slot, v_page, v_head, v_slot, v_dim, scale_log2, soft_cap, window,
                KV_HEADS, DIM, PAGE, BLOCK_M, BLOCK_N, BLOCK_D, DTYPE, SCALED, WINDOW, CAPPED, PRECISION,
            )  # fmt: skip
            total_m, total_mass, total = _merge(total_m, total_mass, total, m, mass, acc)
    if PARALLEL:
        at = head_row * num_splits + chosen
        tl.store(partial + at[:, None] * DIM + d[None, :], total, mask=wanted)
        tl.store(partial_ml + 2 * at, total_m, mask=inside)
        tl.store(partial_ml + 2 * at + 1, total_mass, mask=inside)
    else:
        tl.store(out + q_at, total / total_mass[:, None], mask=wanted)


@triton.jit(do_not_specialize=["num_splits"])
def merge_splits(
    partial, partial_ml, positions, out, num_splits,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    head_row = tl.program_id(0).to(tl.int64)
    row, d = tl.arange(0, 1), tl.arange(0, BLOCK_D)
    m = tl.full([1], float("-inf"), tl.float32)
    mass = tl.zeros([1], tl.float32)
    acc = tl.zeros([1, BLOCK_D], tl.float32)
    for split in range(tl.load(positions + head_row // HEADS) // SPLIT + 1):
        at = head_row * num_splits + split + row
        split_acc = tl.load(partial + at[:, None] * DIM + d[None, :], mask=(d < DIM)[None, :], other=0.0)
        m, mass, acc = _merge(m, mass, acc, tl.load(partial_ml + 2 * at), tl.load(partial_ml + 2 * at + 1), split_acc)
    tl.store(out + (head_row + row[:, None]) * DIM + d[None, :], acc / mass[:, None], mask=(d < DIM)[None, :])


class _Shape(NamedTuple):
    """A tile, and how its slots are taken. parallel: one program per split."""

    block_m: int
    block_n: int
    split: int
    parallel: bool
    num_warps: int
    num_stages: int


def _shape_of(q: Tensor, k_cache: Tensor, spans: Tensor, num_splits: int) -> _Shape:
    tokens, heads, dim = q.shape
    kv_heads, group = k_cache.shape[1], heads // k_cache.shape[1]
    least = max(16, next_power_of_2(group))
    wide = next_power_of_2(dim) > 128
    block_n = 32
    stages = 2 if wide or capability(q.device) < 90 else 3
    decode = tokens == spans.shape[0]
    # torch's own switch is ours too: the same tile and splits for prefill and decode, whatever the batch.
    if decode or torch.are_deterministic_algorithms_enabled():
        parallel = decode and num_splits > 1 and tokens * kv_heads < 2 * num_sms(q.device)
        return _Shape(least, block_n, _SPLIT, parallel, 4, stages)
    # Twice the slots a tile on Hopper, where keys and values reach the tensor cores through shared memory alone.
    direct = capability(q.device) == 90 and k_cache.dtype.itemsize == 2 and not wide
    return _Shape(max(least, 32 if wide else 64), 64 if direct else 32, _NO_SPLIT, False, 4, stages)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    positions: Tensor,
    tiles: Tensor,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """See `kernels.attention.paged_attention`. Beside it: a tile here may have any count, so that one for each
    sequence does; counts of 0 are skipped; pages may have any strides and be float16 or float8_e4m3fn.
    """
    q = q.contiguous()
    tokens, heads, dim = q.shape
    (_, kv_heads, _, block), out = k_cache.shape, torch.empty_like(q)
    num_splits = triton.cdiv(block_tables.shape[1] * block, _SPLIT)
    shape = _shape_of(q, k_cache, tiles, num_splits)
    dtype = k_cache.dtype if k_cache.dtype in _TRITON_DTYPES else half_dtype(q.device)
    constants: dict[str, Any] = {"HEADS": heads, "DIM": dim, "BLOCK_D": max(16, next_power_of_2(dim))}
    partial = partial_ml = None
    if shape.parallel:
        partial = q.new_empty((tokens * heads, num_splits, dim), dtype=torch.float32)
        partial_ml = q.new_empty((tokens * heads, num_splits, 2), dtype=torch.float32)
    launch(
        attend,
        (
            tokens // (shape.block_m // (heads // kv_heads)) + tiles.shape[0],
            kv_heads,
            num_splits if partial is not None else 1,
        ),
        *(q, k_cache, v_cache, k_scale, v_scale, block_tables, positions, tiles, out, partial, partial_ml),
        *(tiles.shape[0], block_tables.stride(0), *k_cache.stride(), *v_cache.stride()),
        *(scale * _LOG2E, soft_cap, window, num_splits),
        **constants,
        KV_HEADS=kv_heads,
        PAGE=block,
        BLOCK_M=shape.block_m,
        BLOCK_N=shape.block_n,
        SPLIT=shape.split,
        PARALLEL=shape.parallel,
        DTYPE=_TRITON_DTYPES[dtype],
        SCALED=k_scale is not None,
        WINDOW=window > 0,
        CAPPED=soft_cap > 0,
        PRECISION="ieee" if dtype == torch.float32 else "tf32",
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
    if partial is not None:
        rows = (partial, partial_ml, positions, out, num_splits)
        launch(merge_splits, (tokens * heads,), *rows, **constants, SPLIT=_SPLIT, num_warps=1 if dim <= 128 else 2)
    return out

"""Paged attention: one op for prefill, chunked prefill and decode."""

from __future__ import annotations

import numpy as np
import torch

from streamrunner.kernels.cpu_attention import attention_body
from streamrunner.kernels.op import cpu_op, fake_of
from streamrunner.kernels.parallel import run

Tensor = torch.Tensor


@cpu_op()
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
    """Causal attention of packed queries over paged keys and values.

    q: [T, H, D] float32, D a multiple of 8 · k_cache: [N, KV, D, B] · v_cache: [N, KV, B, D], both float32, bfloat16 or
    int8, contiguous · k_scale, v_scale: [N, KV, B] float32, what an int8 slot is multiplied by
    block_tables: [S, P] int64, pages of each sequence in order · positions: [T] int64, a query's place in its sequence
    tiles: [I, 3] int64, (sequence, first token, count <= 16) covering all T tokens, positions ascending in each
    window: slots a query sees, itself included (0: all) · soft_cap: scores become cap * tanh(score / cap) (0: none)
    Returns [T, H, D] float32. A query at position p sees slots max(0, p - window + 1)..p of its sequence, which must
    have been written (`rope_and_cache`).
    """
    q = q.contiguous()
    out = torch.empty_like(q)
    numbers = np.array([scale, soft_cap], np.float32)
    inputs = (q, k_cache, k_scale, v_cache, v_scale, block_tables, positions, tiles, out)
    arguments = [0 if tensor is None else tensor.data_ptr() for tensor in inputs] + [numbers.ctypes.data]
    pages = [k_cache.shape[0], k_cache.shape[1], k_cache.shape[3]]
    sizes = [*q.shape, *pages, *block_tables.shape, tiles.shape[0], window]
    run(attention_body(k_cache.dtype), arguments + sizes, tiles.shape[0] * k_cache.shape[1])
    return out


@fake_of("paged_attention")
def _(
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
    del k_cache, v_cache, block_tables, positions, tiles, scale, window, soft_cap, k_scale, v_scale
    return q.new_empty(q.shape)

"""Paged attention: one op for prefill, chunked prefill and decode."""

from __future__ import annotations

import numpy as np
import torch

from streamrunner.kernels import cpu_attention
from streamrunner.kernels.op import cpu_op, fake_of
from streamrunner.kernels.parallel import run

Tensor = torch.Tensor


@cpu_op()
def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, positions: Tensor, tiles: Tensor, scale: float
) -> Tensor:
    """Causal attention of packed queries over paged keys and values.

    q: [T, H, D] float32, D a multiple of 8 · k_cache: [N, KV, D, B] · v_cache: [N, KV, B, D], both float32
    block_tables: [S, P] int64, pages of each sequence in order · positions: [T] int64, a query's place in its sequence
    tiles: [I, 3] int64, (sequence, first token, count <= 16) covering all T tokens. Returns [T, H, D].
    A query sees the slots 0..position of its sequence, which must have been written (`write_kv`).
    """
    q = q.contiguous()
    out = torch.empty_like(q)
    scale_box = np.array([scale], np.float32)
    inputs = (q, k_cache, v_cache, block_tables, positions, tiles, out)
    sizes = [*q.shape, k_cache.shape[0], k_cache.shape[1], k_cache.shape[3], *block_tables.shape, tiles.shape[0]]
    arguments = [tensor.data_ptr() for tensor in inputs] + [scale_box.ctypes.data] + sizes
    run(cpu_attention.attention_body, arguments, tiles.shape[0] * k_cache.shape[1])
    return out


@fake_of("paged_attention")
def _(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, positions: Tensor, tiles: Tensor, scale: float
) -> Tensor:
    del k_cache, v_cache, block_tables, positions, tiles, scale
    return q.new_empty(q.shape)

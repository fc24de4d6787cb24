"""One layer's pages of keys and values."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

Tensor = torch.Tensor

_SCALE_BYTES = 4
_ALIGNMENT = 64


class KVCache(NamedTuple):
    """k: [N, KV, D, B] · v: [N, KV, B, D], float32, bfloat16, or int8 with k_scale, v_scale: [N, KV, B] float32."""

    k: Tensor
    v: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None


def empty_pages(num_blocks: int, block_size: int, kv_heads: int, dim: int, dtype: torch.dtype) -> KVCache:
    """Pages of one layer."""
    keys, values = (num_blocks, kv_heads, dim, block_size), (num_blocks, kv_heads, block_size, dim)
    pages = KVCache(_lazy_zeros(keys, dtype), _lazy_zeros(values, dtype))
    if dtype != torch.int8:
        return pages
    scales = (num_blocks, kv_heads, block_size)
    return pages._replace(k_scale=_lazy_zeros(scales, torch.float32), v_scale=_lazy_zeros(scales, torch.float32))


def bytes_per_token(kv_heads: int, dim: int, dtype: torch.dtype) -> int:
    """Memory of one token's key and value in one layer."""
    return 2 * kv_heads * (dim * dtype.itemsize + (_SCALE_BYTES if dtype == torch.int8 else 0))


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that take no memory until they are written: torch would touch 2 GiB at every start (1.3 s here).

    At the start of a cache line: otherwise every line of a page that is read is two.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = np.zeros(num_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return torch.from_numpy(memory[start : start + num_bytes]).view(dtype).view(shape)

"""How keys and values lie in a page on the CPU.

    float32, int8   K [D, B]        V [B, D]              one line of a page = one product with a row's number
    bfloat16        K [D/2, B, 2]   V [B/2, D, 2]         two, as the CPU's pairwise bf16 products want them

A tensor of pages has the plain shapes, [N, KV, D, B] and [N, KV, B, D], whatever its dtype: the pairs are a matter
between the op that writes and the op that reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from numba import njit

Tensor = torch.Tensor

_BFLOAT16_BYTES = 2


class Pages(NamedTuple):
    """One layer's cache as the loops see it, flat. Scales, one a slot, are empty unless the pages are int8."""

    keys: Any
    values: Any
    k_scales: Any
    v_scales: Any


@njit(nogil=True, inline="always")
def is_paired(pages: Any) -> bool:
    """Whether pages (an array as numba sees it) keep pairs together."""
    return bool(pages.itemsize == _BFLOAT16_BYTES)


@njit(nogil=True, inline="always")
def place(outer: int, inner: int, width: int, paired: bool) -> int:
    """Where in a page (outer, inner) lies: (d, slot) of a key, width B, or (slot, d) of a value, width D."""
    return ((outer >> 1) * width + inner) * 2 + (outer & 1) if paired else outer * width + inner


def paired(pages: Tensor) -> Tensor:
    """Pages in plain order, [N, KV, outer, inner], as bfloat16 pages keep them; others are as they are."""
    if pages.dtype != torch.bfloat16:
        return pages
    blocks, heads, outer, inner = pages.shape
    pairs = pages.view(blocks, heads, outer // 2, 2, inner).transpose(3, 4)
    return pairs.contiguous().view(blocks, heads, outer, inner)


def plain(pages: Tensor) -> Tensor:
    """The reverse of `paired`."""
    if pages.dtype != torch.bfloat16:
        return pages
    blocks, heads, outer, inner = pages.shape
    return pages.view(blocks, heads, outer // 2, inner, 2).transpose(3, 4).reshape(blocks, heads, outer, inner)

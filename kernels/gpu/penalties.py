"""Penalties, biases and masks on the GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from streamrunner.kernels.gpu.launch import launch

Tensor = torch.Tensor

_BLOCK = 256
_MASK_BLOCK = 1024


@triton.jit(do_not_specialize=["num_entries"])
def penalise(logits, rows, token_ids, counts, penalties, row_stride, num_entries, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_entries
    row = tl.load(rows + at, mask=inside, other=0)
    target = logits + row * row_stride + tl.load(token_ids + at, mask=inside, other=0)
    count = tl.load(counts + at, mask=inside, other=0)
    presence = tl.load(penalties + 3 * row, mask=inside, other=0.0)
    frequency = tl.load(penalties + 3 * row + 1, mask=inside, other=0.0)
    repetition = tl.load(penalties + 3 * row + 2, mask=inside, other=1.0)
    value = tl.load(target, mask=inside, other=0.0)
    value = tl.where(value > 0, value / repetition, value * repetition)
    value = value - frequency * count.to(tl.float32) - tl.where(count > 0, presence, 0.0)
    tl.store(target, value, mask=inside)


@triton.jit(do_not_specialize=["num_entries"])
def bias_entries(logits, rows, token_ids, bias, row_stride, num_entries, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_entries
    row = tl.load(rows + at, mask=inside, other=0)
    target = logits + row * row_stride + tl.load(token_ids + at, mask=inside, other=0)
    tl.store(target, tl.load(target, mask=inside, other=0.0) + tl.load(bias + at, mask=inside, other=0.0), mask=inside)


@triton.jit
def mask_row(logits, rows, masks, row_stride, mask_stride, size, words, BLOCK: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = logits + tl.load(rows + item) * row_stride + at
    word = at >> 6
    bits = tl.load(masks + item * mask_stride + word, mask=word < words, other=0)
    allowed = ((bits >> (at & 63)) & 1) != 0
    value = tl.load(target, mask=at < size, other=0.0)
    tl.store(target, value + tl.where(allowed, 0.0, float("-inf")), mask=at < size)


def apply_penalties(logits: Tensor, rows: Tensor, token_ids: Tensor, counts: Tensor, penalties: Tensor) -> None:
    """See `kernels.penalties.apply_penalties`; a row of logits must be contiguous."""
    entries = [one.contiguous() for one in (rows, token_ids, counts, penalties)]
    num_entries = rows.shape[0]
    grid = (triton.cdiv(num_entries, _BLOCK),)
    launch(penalise, grid, _in_place(logits), *entries, logits.stride(0), num_entries, BLOCK=_BLOCK)


def add_bias(logits: Tensor, rows: Tensor, token_ids: Tensor, bias: Tensor) -> None:
    """See `kernels.penalties.add_bias`; a row of logits must be contiguous."""
    entries = [one.contiguous() for one in (rows, token_ids, bias)]
    num_entries = rows.shape[0]
    grid = (triton.cdiv(num_entries, _BLOCK),)
    launch(bias_entries, grid, _in_place(logits), *entries, logits.stride(0), num_entries, BLOCK=_BLOCK)


def mask_tokens(logits: Tensor, rows: Tensor, masks: Tensor) -> None:
    """See `kernels.penalties.mask_tokens`."""
    rows, masks = rows.contiguous(), masks.contiguous()
    (num_rows, words), size = masks.shape, logits.shape[1]
    grid = (num_rows, triton.cdiv(size, _MASK_BLOCK))
    strides = (logits.stride(0), masks.stride(0))
    launch(mask_row, grid, _in_place(logits), rows, masks, *strides, size, words, BLOCK=_MASK_BLOCK)


def _in_place(logits: Tensor) -> Tensor:
    if logits.stride(1) != 1:
        raise ValueError("a row of logits must be contiguous: it is written in place")
    return logits

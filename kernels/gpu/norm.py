"""RMSNorm on the GPU: one program per row, so that a row's sum never depends on how many rows there are.

The row is read once when it fits a block and twice otherwise (the second time from L2); the block is the same for
every row of a width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from streamrunner.kernels.gpu.launch import launch, next_power_of_2

Tensor = torch.Tensor

_LARGEST_BLOCK = 8192


@triton.jit
def norm_rows(
    x, delta, weight, out, x_stride, delta_stride, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in tl.static_range(0, SIZE, BLOCK):
        at = start + columns
        values = tl.load(x + row * x_stride + at, mask=at < SIZE, other=0.0).to(tl.float32)
        if ADD:
            values += tl.load(delta + row * delta_stride + at, mask=at < SIZE, other=0.0).to(tl.float32)
            tl.store(x + row * x_stride + at, values, mask=at < SIZE)
        squares += values * values
    inverse = 1.0 / tl.sqrt_rn(tl.sum(squares) / SIZE + eps)
    for start in tl.static_range(0, SIZE, BLOCK):
        at = start + columns
        if SIZE > BLOCK:
            values = tl.load(x + row * x_stride + at, mask=at < SIZE, other=0.0).to(tl.float32)
        scaled = values * inverse * tl.load(weight + at, mask=at < SIZE, other=0.0).to(tl.float32)
        tl.store(out + row * SIZE + at, scaled, mask=at < SIZE)


def _norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    rows, size = x.shape
    out = x.new_empty((rows, size), dtype=dtype)
    block = min(next_power_of_2(size), _LARGEST_BLOCK)
    warps = 8 if block > 2048 else 4
    strides = (x.stride(0), 0 if delta is None else delta.stride(0))
    constants = {"SIZE": size, "BLOCK": block, "ADD": delta is not None}
    launch(norm_rows, (rows,), x, delta, weight, out, *strides, eps, **constants, num_warps=warps)
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """See `kernels.norm.rms_norm`; x may have any float dtype, the sum is float32."""
    return _norm(x if x.stride(1) == 1 else x.contiguous(), None, weight, eps, dtype)


def add_rms_norm(residual: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `kernels.norm.add_rms_norm`. residual must have contiguous rows: it is written in place."""
    if residual.stride(1) != 1:
        raise ValueError("residual must have contiguous rows: it is written in place")
    return _norm(residual, delta if delta.stride(1) == 1 else delta.contiguous(), weight, eps, delta.dtype)

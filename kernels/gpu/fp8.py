"""FP8 on the GPU: a quantiser kernel, one program per row; the product is cuBLASLt's, through `torch._scaled_mm`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from streamrunner.kernels.gpu.launch import launch, next_power_of_2

Tensor = torch.Tensor

_LARGEST = tl.constexpr(448.0)
_LARGEST_BLOCK = 4096


@triton.jit
def quantize_rows(x, q, scales, row_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    highest = tl.zeros([BLOCK], tl.float32)
    for start in tl.static_range(0, SIZE, BLOCK):
        at = start + columns
        values = tl.load(x + row * row_stride + at, mask=at < SIZE, other=0.0).to(tl.float32)
        highest = tl.maximum(highest, tl.abs(values))
    largest = tl.max(highest)
    scale = tl.where(largest > 0, largest / _LARGEST, 1.0)
    for start in tl.static_range(0, SIZE, BLOCK):
        at = start + columns
        if SIZE > BLOCK:
            values = tl.load(x + row * row_stride + at, mask=at < SIZE, other=0.0).to(tl.float32)
        # Division may end an ulp above the largest number, which is beyond what the type holds.
        scaled = tl.minimum(tl.maximum(values / scale, -_LARGEST), _LARGEST)
        tl.store(q + row * SIZE + at, scaled.to(q.dtype.element_ty), mask=at < SIZE)
    tl.store(scales + row, scale)


def quantize_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """See `kernels.fp8.quantize_fp8`."""
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, size = x.shape
    q, scales = x.new_empty((rows, size), dtype=torch.float8_e4m3fn), x.new_empty((rows, 1), dtype=torch.float32)
    block = min(next_power_of_2(size), _LARGEST_BLOCK)
    launch(quantize_rows, (rows,), x, q, scales, x.stride(0), SIZE=size, BLOCK=block)
    return q, scales


def fp8_linear(
    q: Tensor, scale: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """See `kernels.fp8.fp8_linear`."""
    product: Tensor = torch._scaled_mm(  # noqa: SLF001 - the only name torch has for it
        q, weight.t(), scale_a=scale, scale_b=weight_scale.t(), bias=bias, out_dtype=dtype
    )
    return product

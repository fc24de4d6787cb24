"""FP8 linear layers: e4m3 weights with a scale per output, activations with a scale per token."""

from __future__ import annotations

import torch

from streamrunner.kernels.op import cpu_op, fake_of

Tensor = torch.Tensor

LARGEST = 448.0


@cpu_op()
def quantize_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Scale each row so that its largest number becomes e4m3's largest, 448.

    x: [R, K] any float dtype. Returns q: [R, K] float8_e4m3fn and scale: [R, 1] float32 with x ~ q * scale; a row of
    zeros has scale 1. Used on activations (a row is a token) and once on weights (a row is an output).
    """
    wide = x.float()
    largest = wide.abs().amax(1, keepdim=True)
    scale = torch.where(largest > 0, largest / LARGEST, torch.ones_like(largest))
    return (wide / scale).to(torch.float8_e4m3fn), scale


@fake_of("quantize_fp8")
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=torch.float8_e4m3fn), x.new_empty((x.shape[0], 1), dtype=torch.float32)


@cpu_op()
def fp8_linear(
    q: Tensor, scale: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """(q * scale) @ (weight * weight_scale).T + bias, accumulated in float32.

    q: [R, in], weight: [out, in] float8_e4m3fn · scale: [R, 1], weight_scale: [out, 1] float32 · bias: [out] of dtype
    Returns [R, out] of dtype. On a GPU `torch._scaled_mm`: capability 9.0 or newer, in and out multiples of 16.
    """
    out = (q.float() @ weight.float().t()) * scale * weight_scale.t()
    return (out if bias is None else out + bias.float()).to(dtype)


@fake_of("fp8_linear")
def _(
    q: Tensor, scale: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    del scale, weight_scale, bias
    return q.new_empty((q.shape[0], weight.shape[0]), dtype=dtype)

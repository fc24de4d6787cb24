"""Gated activations on the GPU: one program per 1,024 columns of a row, bandwidth-bound."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from streamrunner.kernels.gpu.launch import launch

Tensor = torch.Tensor

_BLOCK = 1024


@triton.jit
def gate_rows(gate_up, out, row_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_up + row * row_stride + at, mask=at < SIZE, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + SIZE + at, mask=at < SIZE, other=0.0).to(tl.float32)
    # Gelu's tanh form is gate * sigmoid(2 * inner): tanh(x) = 2 * sigmoid(2x) - 1.
    inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if GELU else gate
    tl.store(out + row * SIZE + at, gate * tl.sigmoid(inner) * up, mask=at < SIZE)


def _gated(gate_up: Tensor, gelu: bool) -> Tensor:
    gate_up = gate_up if gate_up.stride(1) == 1 else gate_up.contiguous()
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, size))
    grid = (rows, triton.cdiv(size, _BLOCK))
    launch(gate_rows, grid, gate_up, out, gate_up.stride(0), SIZE=size, BLOCK=_BLOCK, GELU=gelu)
    return out


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """See `kernels.activation.silu_and_mul`; any I."""
    return _gated(gate_up, gelu=False)


def gelu_tanh_and_mul(gate_up: Tensor) -> Tensor:
    """See `kernels.activation.gelu_tanh_and_mul`; any I."""
    return _gated(gate_up, gelu=True)

"""A linear layer whose rows do not depend on how many there are: the deterministic mode's GEMM.

CPUs have `PackedLinear`, which tests oneDNN for the same promise; here the plain product stands for the op's meaning.
"""

from __future__ import annotations

import torch

from streamrunner.kernels.op import cpu_op, fake_of

Tensor = torch.Tensor


@cpu_op()
def invariant_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, summed over the inputs in one order, in float32, rounded once at the end.

    x: [R, in] float32, float16 or bfloat16 · weight: [out, in] of x's dtype · bias: [out] or None
    Returns [R, out] of x's dtype.
    """
    out = x.float() @ weight.float().t()
    return (out if bias is None else out + bias.float()).to(x.dtype)


@fake_of("invariant_linear")
def _(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    del bias
    return x.new_empty((x.shape[0], weight.shape[0]))

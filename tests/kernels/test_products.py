"""Runs twice: here on the CPU bodies, and in `test_interpreted.py` on the Triton ones."""

from __future__ import annotations

import pytest
import torch

from streamrunner.kernels.fp8 import fp8_linear, quantize_fp8
from streamrunner.kernels.matmul import invariant_linear

Tensor = torch.Tensor


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 2e-3)])
@pytest.mark.parametrize(("rows", "size", "out_size"), [(1, 16, 8), (3, 100, 70), (17, 64, 130), (70, 33, 64)])
def test_a_product_against_float64(rows: int, size: int, out_size: int, dtype: torch.dtype, tolerance: float) -> None:
    x, weight = random(rows, size).to(dtype), random(out_size, size, seed=1).to(dtype)
    bias = random(out_size, seed=2).to(dtype)
    plain = x.double() @ weight.double().t()
    for actual, wanted in ((invariant_linear(x, weight), plain), (invariant_linear(x, weight, bias), plain + bias)):
        torch.testing.assert_close(actual.double(), wanted.double(), atol=tolerance * 10, rtol=tolerance)


def test_permuted_and_sliced_factors_and_no_rows() -> None:
    x, weight = random(6, 20), random(9, 20, seed=1)
    plain = invariant_linear(x, weight)
    torch.testing.assert_close(invariant_linear(x.t().contiguous().t(), weight.t().contiguous().t()), plain)
    torch.testing.assert_close(invariant_linear(torch.cat((x, x), 1)[:, :20], weight), plain)
    assert invariant_linear(x[:0], weight).shape == (0, 9)


@pytest.mark.parametrize("size", [16, 100, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_largest_number_of_a_row_becomes_448(size: int, dtype: torch.dtype) -> None:
    x = (random(3, size) * torch.tensor([[1.0], [1e-3], [0.0]])).to(dtype)
    q, scale = quantize_fp8(x)
    assert q.dtype == torch.float8_e4m3fn
    torch.testing.assert_close(scale[:2, 0], x[:2].float().abs().amax(1) / 448, rtol=1e-6, atol=0)
    assert scale[2] == 1
    assert not q[2].float().any()
    error = (q.double() * scale.double() - x.double()).abs()
    # Triton's interpreter loses the carry where a number rounds up to a power of two; nothing else does.
    assert (error <= x.double().abs() / 16 + scale.double() * 2**-9).double().mean() > 0.8


def test_an_fp8_product_is_that_of_its_quantised_factors() -> None:
    (q, scale), (weight, weight_scale) = quantize_fp8(random(5, 32)), quantize_fp8(random(16, 32, seed=1))
    bias = random(16, seed=2)
    wanted = (q.double() * scale.double()) @ (weight.double() * weight_scale.double()).t() + bias
    out = fp8_linear(q, scale, weight, weight_scale, bias, torch.float32)
    torch.testing.assert_close(out.double(), wanted, atol=1e-4, rtol=1e-5)


def test_opcheck() -> None:
    x, weight = random(3, 16), random(8, 16)
    torch.library.opcheck(invariant_linear, (x, weight, None))
    torch.library.opcheck(quantize_fp8, (x,))
    (q, scale), (w, w_scale) = quantize_fp8(x), quantize_fp8(weight)
    # The schema test multiplies inputs by a number, which torch cannot do in fp8.
    others = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(fp8_linear, (q, scale, w, w_scale, None, torch.float32), test_utils=others)

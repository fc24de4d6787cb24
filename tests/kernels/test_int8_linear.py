from __future__ import annotations

import pytest
import torch

from streamrunner.kernels.int8_linear import Int8Linear
from streamrunner.kernels.quantize import quantize_rows, scale_rows


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_comes_back_to_a_254th_of_its_largest_number(dtype: torch.dtype) -> None:
    x = (random(7, 48) * torch.tensor([1e-3, 1, 5, 100, 1, 1, 1])[:, None]).to(dtype)
    whole, scales = quantize_rows(x)
    back = (whole.float() - 128) * scales[:, None]
    assert ((back - x.float()).abs() <= scales[:, None] * 0.501).all()
    assert ((whole.int() - 128).abs().amax(1) == 127).all()


def test_a_row_of_zeros_stays_zeros_and_a_row_with_nan_shows_it() -> None:
    x = torch.zeros(3, 16)
    x[1, 5] = float("nan")
    x[2, 3] = float("inf")
    whole, scales = quantize_rows(x)
    assert (whole[0] == 128).all()
    assert scales[0] == 0
    assert scales[1].isnan()
    assert not scales[2].isfinite()


@pytest.mark.parametrize("with_bias", [False, True])
def test_it_multiplies_to_int8_accuracy(with_bias: bool) -> None:
    weight, x = random(101, 64), random(70, 64, seed=1)
    bias = random(101, seed=2) if with_bias else None
    expected = x @ weight.t() + (0 if bias is None else bias)
    error = (Int8Linear(weight, bias)(x) - expected).abs().max() / expected.abs().max()
    assert error < 0.02


def test_a_rows_bits_do_not_depend_on_how_many_rows_there_are() -> None:
    linear, x = Int8Linear(random(96, 64).bfloat16()), random(300, 64, seed=1).bfloat16()
    whole = linear(x)
    assert whole.dtype == torch.bfloat16
    for count in (1, 2, 3, 16, 63, 64, 65, 130):
        assert torch.equal(linear(x[:count]), whole[:count])


def test_sizes_the_loops_cannot_take_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        quantize_rows(random(2, 20))


def test_opcheck() -> None:
    torch.library.opcheck(quantize_rows, (random(3, 32),))
    torch.library.opcheck(scale_rows, (random(3, 32), random(3), random(32), torch.bfloat16))
    torch.library.opcheck(scale_rows, (random(3, 32), random(3), None, torch.float32))

from __future__ import annotations

import pytest
import torch

from streamrunner.kernels.linear import PackedLinear, RowRule

SHAPES = [(96, 64), (960, 576), (33, 40), (576, 1536)]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("out", "inner"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_it_multiplies(out: int, inner: int, with_bias: bool) -> None:
    weight, x = random(out, inner), random(70, inner, seed=1)
    bias = random(out, seed=2) if with_bias else None
    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    torch.testing.assert_close(PackedLinear(weight, bias)(x).double(), expected, atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize(("out", "inner"), SHAPES)
def test_a_rows_bits_do_not_depend_on_how_many_rows_there_are_or_where_it_stands(out: int, inner: int) -> None:
    linear, x = PackedLinear(random(out, inner)), random(600, inner, seed=1)
    whole = linear(x)
    order = torch.randperm(600, generator=torch.Generator().manual_seed(2))
    assert torch.equal(linear(x[order]), whole[order])
    for count in (1, 2, 3, 7, 16, 63, 64, 65, 130, 513):
        assert torch.equal(linear(x[:count]), whole[:count])


def test_a_rule_pads_and_cuts_without_changing_the_result_shape() -> None:
    linear = PackedLinear(random(24, 16), rule=RowRule(multiple=16, largest=32))
    x = random(70, 16, seed=1)
    assert linear(x).shape == (70, 24)
    torch.testing.assert_close(linear(x), PackedLinear(random(24, 16))(x))


def test_bf16_weights_take_float32_and_give_bf16() -> None:
    weight, x = random(64, 48).bfloat16(), random(10, 48, seed=1)
    linear = PackedLinear(weight)
    out = linear(x)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, linear(x.bfloat16()))
    torch.testing.assert_close(out.float(), x @ weight.float().t(), atol=0.2, rtol=0.05)

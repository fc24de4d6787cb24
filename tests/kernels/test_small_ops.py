from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from streamrunner.kernels.activation import gelu_tanh_and_mul, silu_and_mul
from streamrunner.kernels.norm import add_rms_norm, rms_norm
from streamrunner.kernels.rope import rope_and_cache

if TYPE_CHECKING:
    from collections.abc import Callable

Tensor = torch.Tensor


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 64), (70, 576), (2, 33)])
def test_rms_norm_against_float64(rows: int, size: int) -> None:
    x, weight = random(rows, size), random(size, seed=1)
    wide = x.double()
    expected = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5).double(), expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize(("rows", "size"), [(1, 16), (5, 96), (64, 1536)])
def test_silu_and_mul_against_float64(rows: int, size: int) -> None:
    x = random(rows, 2 * size) * 8
    gate, up = x.double().chunk(2, dim=-1)
    torch.testing.assert_close(silu_and_mul(x).double(), gate * gate.sigmoid() * up, atol=2e-5, rtol=2e-6)


def test_silu_of_huge_numbers_is_finite() -> None:
    x = torch.tensor([[1e4, -1e4, 88.0, -88.0] + [0.0] * 12 + [1.0] * 16])
    out = silu_and_mul(x)
    assert torch.isfinite(out).all()
    assert out[0, 0] == 1e4
    assert out[0, 1].abs() < 1e-30


class Rotation:
    """Inputs of the op: 3 query heads over 1 key head, pages of 8 slots."""

    heads, kv_heads, dim, block = 3, 1, 16, 8

    def __init__(self, tokens: int = 5) -> None:
        self.qkv = random(tokens, (self.heads + 2 * self.kv_heads) * self.dim)
        angles = torch.outer(torch.arange(32.0), 10000 ** -(torch.arange(0, self.dim, 2) / self.dim))
        self.cos, self.sin = angles.cos(), angles.sin()
        self.positions = torch.arange(3, 3 + tokens)
        self.slots = torch.tensor([40, 7, 8, 15, 31])[:tokens]
        self.k_cache = torch.zeros(6, self.kv_heads, self.dim, self.block)
        self.v_cache = torch.zeros(6, self.kv_heads, self.block, self.dim)

    @property
    def args(self) -> tuple[Tensor, ...]:
        return (self.qkv, self.cos, self.sin, self.positions, self.slots, self.k_cache, self.v_cache)

    def rotated(self, x: Tensor) -> Tensor:
        cos = torch.cat((self.cos, self.cos), -1)[self.positions].double()[:, None]
        sin = torch.cat((self.sin, self.sin), -1)[self.positions].double()[:, None]
        low, high = x.double().chunk(2, dim=-1)
        return x.double() * cos + torch.cat((-high, low), -1) * sin


def test_queries_are_rotated_and_keys_and_values_go_to_their_slots() -> None:
    case = Rotation()
    q = rope_and_cache(*case.args)
    heads = case.qkv.view(5, -1, case.dim)
    torch.testing.assert_close(q.double(), case.rotated(heads[:, :3]), atol=1e-6, rtol=1e-6)
    keys = case.rotated(heads[:, 3:4])
    for token, slot in enumerate(case.slots.tolist()):
        page, place = slot // case.block, slot % case.block
        torch.testing.assert_close(case.k_cache[page, :, :, place].double(), keys[token], atol=1e-6, rtol=1e-6)
        assert torch.equal(case.v_cache[page, :, place], heads[token, 4:5])
    assert int((case.v_cache != 0).any(-1).sum()) == 5, "no other slot was touched"


def test_opcheck() -> None:
    torch.library.opcheck(rms_norm, (random(4, 32), random(32), 1e-5))
    torch.library.opcheck(silu_and_mul, (random(4, 32),))
    torch.library.opcheck(gelu_tanh_and_mul, (random(4, 32),))
    torch.library.opcheck(add_rms_norm, (random(4, 32), random(4, 32), random(32), 1e-5))
    torch.library.opcheck(rope_and_cache, Rotation().args)


def test_permuted_inputs_are_taken_as_they_are_meant() -> None:
    x = random(32, 6).t()
    assert torch.equal(rms_norm(x, torch.ones(32), 1e-5), rms_norm(x.contiguous(), torch.ones(32), 1e-5))
    wide = random(64, 6).t()
    assert torch.equal(silu_and_mul(wide), silu_and_mul(wide.contiguous()))
    torch.library.opcheck(rms_norm, (x, torch.ones(32), 1e-5))


def test_a_gate_of_a_size_the_vectors_cannot_take_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        silu_and_mul(random(2, 20))


@pytest.mark.parametrize("op", [silu_and_mul, gelu_tanh_and_mul])
def test_bf16_is_rounded_once_at_the_end(op: Callable[[Tensor], Tensor]) -> None:
    x = (random(5, 96) * 4).bfloat16()
    assert torch.equal(op(x), op(x.float()).bfloat16())


def test_bf16_rounds_to_nearest_even_and_keeps_nan_and_infinity() -> None:
    ups = [1.00390625, 1.01171875, -1.00390625, float("nan"), float("inf"), 3.4e38, 0.0, 1e-40] * 2
    out = silu_and_mul(torch.tensor([[100.0] * 16 + ups]))  # silu(100) is 100
    rounded = silu_and_mul(torch.tensor([[100.0] * 16 + ups]).bfloat16())
    expected = (torch.tensor([ups]).bfloat16().float() * 100).bfloat16()
    assert torch.equal(rounded.nan_to_num(7), expected.nan_to_num(7))
    assert out[0, 3].isnan()
    assert rounded[0, 3].isnan()


def test_gelu_against_float64() -> None:
    x = random(5, 96) * 8
    gate, up = x.double().chunk(2, dim=-1)
    expected = torch.nn.functional.gelu(gate, approximate="tanh") * up
    torch.testing.assert_close(gelu_tanh_and_mul(x).double(), expected, atol=2e-5, rtol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_residual_add_is_part_of_the_norm(dtype: torch.dtype) -> None:
    residual, delta, weight = random(7, 40), random(7, 40, seed=1).to(dtype), random(40, seed=2)
    expected = residual + delta.float()
    out = add_rms_norm(residual, delta, weight, 1e-5)
    assert out.dtype == dtype
    assert torch.equal(residual, expected)
    assert torch.equal(out, rms_norm(expected, weight, 1e-5, dtype))


def test_heads_are_normalised_before_they_are_rotated() -> None:
    plain, normed = Rotation(), Rotation()
    weights = random(2, Rotation.dim, seed=3)
    q = rope_and_cache(*normed.args, q_norm=weights[0], k_norm=weights[1], eps=1e-6)
    heads = plain.qkv.view(5, -1, plain.dim)
    expected = [
        rms_norm(part.reshape(-1, 16), weight, 1e-6)
        for part, weight in zip((heads[:, :3], heads[:, 3:4]), weights, strict=True)
    ]
    torch.testing.assert_close(q.double(), plain.rotated(expected[0].view(5, 3, 16)), atol=1e-6, rtol=1e-6)
    keys = plain.rotated(expected[1].view(5, 1, 16))
    stored = torch.stack([normed.k_cache[slot // 8, :, :, slot % 8] for slot in normed.slots.tolist()])
    torch.testing.assert_close(stored.double(), keys, atol=1e-6, rtol=1e-6)


def test_only_the_first_numbers_of_a_head_are_rotated_where_the_tables_are_narrow() -> None:
    case = Rotation()
    q = rope_and_cache(case.qkv, case.cos[:, :4].contiguous(), case.sin[:, :4].contiguous(), *case.args[3:])
    heads = case.qkv.view(5, -1, 16)[:, :3]
    assert torch.equal(q[:, :, 8:], heads[:, :, 8:])
    assert not torch.equal(q[:, :, :8], heads[:, :, :8])
    none = torch.empty(32, 0)
    assert torch.equal(rope_and_cache(case.qkv, none, none, *case.args[3:]), heads)


def test_int8_pages_hold_a_slot_to_a_254th_of_its_largest_number() -> None:
    case = Rotation()
    k, v = (cache.to(torch.int8) for cache in (case.k_cache, case.v_cache))
    k_scale, v_scale = (torch.zeros(6, 1, 8) for _ in range(2))
    exact = rope_and_cache(*case.args)
    assert torch.equal(rope_and_cache(*case.args[:5], k, v, k_scale, v_scale), exact)
    for cache, scale, stored in (
        (case.k_cache, k_scale, k * k_scale[:, :, None]),
        (case.v_cache, v_scale, v * v_scale[..., None]),
    ):
        assert ((stored - cache).abs().amax() <= scale.amax() * 0.51).item()
        assert scale.count_nonzero() == 5


@pytest.mark.parametrize("op", ["norm", "silu"])
def test_a_row_has_the_same_bits_in_any_batch(op: str) -> None:
    x, weight = random(100, 64), random(64, seed=1)
    run = (lambda part: rms_norm(part, weight, 1e-5)) if op == "norm" else silu_and_mul
    whole = run(x)
    assert all(torch.equal(run(x[row : row + 1])[0], whole[row]) for row in (0, 1, 50, 99))

from __future__ import annotations

import pytest
import torch

from streamrunner.kernels.activation import silu_and_mul
from streamrunner.kernels.norm import rms_norm
from streamrunner.kernels.rope import rope_and_cache

Tensor = torch.Tensor


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 64), (70, 576), (2, 33)])
def test_rms_norm_against_float64(rows: int, size: int) -> None:
    x, weight = random(rows, size), random(size, seed=1)
    wide = x.double()
    expected = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5).double(), expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize(("rows", "size"), [(1, 8), (5, 96), (64, 1536)])
def test_silu_and_mul_against_float64(rows: int, size: int) -> None:
    x = random(rows, 2 * size) * 8
    gate, up = x.double().chunk(2, dim=-1)
    torch.testing.assert_close(silu_and_mul(x).double(), gate * gate.sigmoid() * up, atol=2e-5, rtol=2e-6)


def test_silu_of_huge_numbers_is_finite() -> None:
    x = torch.tensor([[1e4, -1e4, 88.0, -88.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
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
    torch.library.opcheck(rope_and_cache, Rotation().args)


def test_permuted_inputs_are_taken_as_they_are_meant() -> None:
    x = random(32, 6).t()
    assert torch.equal(rms_norm(x, torch.ones(32), 1e-5), rms_norm(x.contiguous(), torch.ones(32), 1e-5))
    assert torch.equal(silu_and_mul(x), silu_and_mul(x.contiguous()))
    torch.library.opcheck(rms_norm, (x, torch.ones(32), 1e-5))


@pytest.mark.parametrize("op", ["norm", "silu"])
def test_a_row_has_the_same_bits_in_any_batch(op: str) -> None:
    x, weight = random(100, 64), random(64, seed=1)
    run = (lambda part: rms_norm(part, weight, 1e-5)) if op == "norm" else silu_and_mul
    whole = run(x)
    assert all(torch.equal(run(x[row : row + 1])[0], whole[row]) for row in (0, 1, 50, 99))

from __future__ import annotations

import pytest
import torch

from streamrunner.kernels.activation import gelu_tanh_and_mul, silu_and_mul
from streamrunner.kernels.norm import add_rms_norm, rms_norm
from streamrunner.kernels.rope import rope_and_cache

Tensor = torch.Tensor
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3}
FLOATS = [torch.float32, torch.float16]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype = torch.float32) -> None:
    torch.testing.assert_close(actual.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def normed(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 33), (5, 576), (2, 9001)])
def test_rms_norm(rows: int, size: int, dtype: torch.dtype) -> None:
    x, weight = random(rows, size), random(size, seed=1)
    close(rms_norm(x, weight, 1e-5, dtype), normed(x, weight), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [24, 8200])
def test_the_residual_is_added_in_place_before_the_norm(size: int, dtype: torch.dtype) -> None:
    residual, delta, weight = random(3, size), random(3, size, seed=2, dtype=dtype), random(size, seed=1)
    total = residual.double() + delta.double()
    close(add_rms_norm(residual, delta, weight, 1e-5), normed(total, weight), dtype)
    close(residual, total)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (5, 100), (2, 2050)])
def test_gated_activations(rows: int, size: int, dtype: torch.dtype) -> None:
    x = random(rows, 2 * size, dtype=dtype) * 6
    gate, up = x.double().chunk(2, dim=-1)
    silu = gate * gate.sigmoid() * up
    gelu = torch.nn.functional.gelu(gate, approximate="tanh") * up
    torch.testing.assert_close(silu_and_mul(x).double(), silu, atol=3e-5, rtol=TOLERANCE[dtype])
    torch.testing.assert_close(gelu_tanh_and_mul(x).double(), gelu, atol=3e-5, rtol=TOLERANCE[dtype])


def test_no_rows_are_no_work() -> None:
    assert rms_norm(random(0, 8), random(8), 1e-5).shape == (0, 8)
    assert silu_and_mul(random(0, 8)).shape == (0, 4)


def test_permuted_and_sliced_inputs_are_taken_as_they_are_meant() -> None:
    x, weight = random(32, 6), random(32, seed=1)
    assert torch.equal(rms_norm(x.t(), weight, 1e-5), rms_norm(x.t().contiguous(), weight, 1e-5))
    assert torch.equal(silu_and_mul(x.t()), silu_and_mul(x.t().contiguous()))
    wide = random(4, 96)
    assert torch.equal(rms_norm(wide[:, :32], weight, 1e-5), rms_norm(wide[:, :32].contiguous(), weight, 1e-5))
    assert torch.equal(silu_and_mul(wide[::2, :32]), silu_and_mul(wide[::2, :32].contiguous()))


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    x, weight = random(9, 64), random(64, seed=1)
    whole = rms_norm(x, weight, 1e-5)
    assert all(torch.equal(rms_norm(x[row : row + 1], weight, 1e-5)[0], whole[row]) for row in range(9))


class Rotation:
    """Inputs of the op: 5 query heads over 2 key heads, pages of 8 slots that hold poison."""

    def __init__(self, *, dim: int = 16, rotated: int = 16, dtype: torch.dtype = torch.float32, norms: bool = False):
        self.dim, self.rotated, self.dtype = dim, rotated, dtype
        self.qkv = random(6, 9 * dim, dtype=dtype if dtype.itemsize > 1 else torch.float16)
        angles = torch.outer(torch.arange(32.0), 10000 ** -(torch.arange(0, rotated, 2) / max(rotated, 1)))
        self.cos, self.sin = angles.cos(), angles.sin()
        self.positions = torch.tensor([3, 4, 5, 0, 31, 7])
        self.slots = torch.tensor([40, 7, 8, 15, 31, 0])
        self.k_cache = torch.full((6, 2, dim, 8), 99.0).to(dtype)
        self.v_cache = torch.full((6, 2, 8, dim), 99.0).to(dtype)
        self.scales = [torch.full((6, 2, 8), 99.0) for _ in "kv"] if dtype.itemsize == 1 else [None, None]
        self.norms = [random(dim, seed=8), random(dim, seed=9)] if norms else [None, None]

    def run(self) -> Tensor:
        pages = (self.k_cache, self.v_cache, *self.scales)
        return rope_and_cache(
            self.qkv,
            self.cos,
            self.sin,
            self.positions,
            self.slots,
            *pages,
            *self.norms,
            1e-5 if self.norms[0] is not None else 0.0,
        )

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv.double().view(6, 9, self.dim).split([5, 2, 2], dim=1)
        if self.norms[0] is not None and self.norms[1] is not None:
            q, k = normed(q, self.norms[0]), normed(k, self.norms[1])
        return self._rotate(q), self._rotate(k), v

    def _rotate(self, x: Tensor) -> Tensor:
        turned, rest = x[..., : self.rotated], x[..., self.rotated :]
        cos = torch.cat((self.cos, self.cos), -1)[self.positions].double()[:, None]
        sin = torch.cat((self.sin, self.sin), -1)[self.positions].double()[:, None]
        low, high = turned.chunk(2, dim=-1)
        return torch.cat((turned * cos + torch.cat((-high, low), -1) * sin, rest), -1)

    def written(self) -> tuple[Tensor, Tensor]:
        k = torch.stack([self.k_cache[slot // 8, :, :, slot % 8] for slot in self.slots.tolist()]).double()
        v = torch.stack([self.v_cache[slot // 8, :, slot % 8] for slot in self.slots.tolist()]).double()
        if self.scales[0] is not None and self.scales[1] is not None:
            k *= torch.stack([self.scales[0][slot // 8, :, slot % 8] for slot in self.slots.tolist()])[..., None]
            v *= torch.stack([self.scales[1][slot // 8, :, slot % 8] for slot in self.slots.tolist()])[..., None]
        return k, v


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize(("dim", "rotated"), [(16, 16), (16, 8), (24, 24), (8, 0)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_heads_are_normed_and_rotated_and_go_to_their_slots(
    dim: int, rotated: int, norms: bool, dtype: torch.dtype
) -> None:
    case = Rotation(dim=dim, rotated=rotated, dtype=dtype, norms=norms)
    q, k, v = case.expected()
    close(case.run(), q, torch.float32 if dtype == torch.float32 else dtype)
    for actual, wanted in zip(case.written(), (k, v), strict=True):
        close(actual, wanted, dtype)
    assert int((case.v_cache != 99.0).any(-1).sum()) == 12, "no other slot was touched"


def test_pages_may_lie_token_by_token_in_memory() -> None:
    plain, turned = Rotation(), Rotation()
    turned.k_cache = turned.k_cache.transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(plain.run(), turned.run())
    assert torch.equal(plain.k_cache, turned.k_cache)


def test_a_slot_of_minus_one_is_written_nowhere() -> None:
    case = Rotation()
    case.slots[2] = -1
    q, _, _ = case.expected()
    close(case.run(), q)
    assert int((case.v_cache != 99.0).any(-1).sum()) == 10


def test_int8_pages_hold_a_slot_to_a_254th_of_its_largest_number() -> None:
    case = Rotation(dtype=torch.int8)
    case.run()
    _, k, v = case.expected()
    for actual, wanted in zip(case.written(), (k, v), strict=True):
        assert ((actual - wanted).abs() <= wanted.abs().amax(-1, keepdim=True) / 254 * 1.01).all()


@pytest.mark.parametrize("scaled", [True, False])
def test_fp8_pages_hold_numbers_to_a_16th(scaled: bool) -> None:
    case = Rotation(dtype=torch.float8_e4m3fn)
    case.scales = case.scales if scaled else [None, None]
    case.run()
    _, k, v = case.expected()
    for actual, wanted in zip(case.written(), (k, v), strict=True):
        # The interpreter loses the carry where a number rounds up to a power of two; a GPU does not.
        close_enough = (actual - wanted).abs() <= wanted.abs() / 16 + 2**-10
        assert close_enough.double().mean() > 0.8
        assert (actual.abs() <= wanted.abs() * 1.07).all()


def test_opcheck() -> None:
    torch.library.opcheck(rms_norm, (random(4, 32), random(32), 1e-5))
    torch.library.opcheck(rms_norm, (random(32, 4).t(), random(32), 1e-5, torch.float16))
    torch.library.opcheck(add_rms_norm, (random(4, 32), random(4, 32), random(32), 1e-5))
    torch.library.opcheck(silu_and_mul, (random(4, 32),))
    torch.library.opcheck(gelu_tanh_and_mul, (random(32, 4).t(),))
    case = Rotation(norms=True)
    pages = (case.k_cache, case.v_cache, None, None, *case.norms, 1e-5)
    torch.library.opcheck(rope_and_cache, (case.qkv, case.cos, case.sin, case.positions, case.slots, *pages))

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from streamrunner.kernels.attention import paged_attention
from streamrunner.kernels.pages import paired

Tensor = torch.Tensor


class Case(NamedTuple):
    """Sequences of some lengths, each with its last `queries` tokens to attend."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    positions: Tensor
    tiles: Tensor
    window: int = 0
    soft_cap: float = 0.0

    def run(self, tiles: Tensor | None = None) -> Tensor:
        scale = self.q.shape[2] ** -0.5
        return paged_attention(
            self.q,
            self.k_cache,
            self.v_cache,
            self.block_tables,
            self.positions,
            tiles if tiles is not None else self.tiles,
            scale,
            self.window,
            self.soft_cap,
        )


def make(
    lengths: list[int], queries: list[int], *, heads: int = 6, kv_heads: int = 2, dim: int = 32, block: int = 16
) -> Case:
    generator = torch.Generator().manual_seed(sum(lengths) + len(queries))
    pages = max(-(-length // block) for length in lengths)
    num_blocks = len(lengths) * pages + 3
    # What nobody wrote is poison: it must never reach a result.
    k_cache = torch.full((num_blocks, kv_heads, dim, block), float("nan"))
    v_cache = torch.full((num_blocks, kv_heads, block, dim), float("nan"))
    tables = torch.randperm(num_blocks, generator=generator)[: len(lengths) * pages].reshape(len(lengths), pages)
    for sequence, length in enumerate(lengths):
        for slot in range(length):
            page = tables[sequence, slot // block]
            k_cache[page, :, :, slot % block] = torch.randn(kv_heads, dim, generator=generator)
            v_cache[page, :, slot % block] = torch.randn(kv_heads, dim, generator=generator)
    positions, tiles, row = [], [], 0
    for sequence, (length, count) in enumerate(zip(lengths, queries, strict=True)):
        positions += range(length - count, length)
        tiles += [(sequence, first, min(16, row + count - first)) for first in range(row, row + count, 16)]
        row += count
    q = torch.randn(row, heads, dim, generator=generator)
    return Case(q, k_cache, v_cache, tables.contiguous(), torch.tensor(positions), torch.tensor(tiles))


def reference(case: Case) -> Tensor:
    """The same in float64, one query at a time, from gathered pages."""
    out = torch.empty(case.q.shape, dtype=torch.float64)
    group = case.q.shape[1] // case.k_cache.shape[1]
    for sequence, first, count in case.tiles.tolist():
        keys = case.k_cache[case.block_tables[sequence]].permute(0, 3, 1, 2).flatten(0, 1)
        values = case.v_cache[case.block_tables[sequence]].permute(0, 2, 1, 3).flatten(0, 1)
        for row in range(first, first + count):
            end = int(case.positions[row]) + 1
            start = max(0, end - case.window) if case.window else 0
            k = keys[start:end].double().repeat_interleave(group, 1)
            v = values[start:end].double().repeat_interleave(group, 1)
            scores = torch.einsum("hd,khd->hk", case.q[row].double(), k) * case.q.shape[2] ** -0.5
            if case.soft_cap:
                scores = case.soft_cap * (scores / case.soft_cap).tanh()
            out[row] = torch.einsum("hk,khd->hd", scores.softmax(-1), v)
    return out


SHAPES = [
    ([1], [1]),
    ([16], [16]),
    ([17], [17]),
    ([100], [1]),
    ([100], [37]),
    ([5, 64, 33], [5, 1, 20]),
    ([40] * 9, [1] * 9),
]


@pytest.mark.parametrize(("lengths", "queries"), SHAPES)
def test_it_is_attention_to_float32_accuracy(lengths: list[int], queries: list[int]) -> None:
    case = make(lengths, queries)
    torch.testing.assert_close(case.run().double(), reference(case), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 64), (9, 3, 64), (8, 1, 128), (2, 2, 8)])
def test_head_groups_and_sizes(heads: int, kv_heads: int, dim: int) -> None:
    case = make([50, 3], [10, 1], heads=heads, kv_heads=kv_heads, dim=dim)
    torch.testing.assert_close(case.run().double(), reference(case), atol=3e-6, rtol=3e-6)


def test_a_query_has_the_same_bits_in_prefill_in_chunks_and_in_decode() -> None:
    case = make([90], [90])
    together = case.run()
    alone = case.run(torch.tensor([[0, row, 1] for row in range(90)]))
    chunks = case.run(
        torch.tensor([[0, 0, 7], [0, 7, 16], [0, 23, 3], [0, 26, 16], [0, 42, 16], [0, 58, 16], [0, 74, 16]])
    )
    assert torch.equal(together, alone)
    assert torch.equal(together, chunks)


def test_a_query_does_not_depend_on_its_neighbours() -> None:
    case = make([40, 70, 20], [1, 1, 1])
    together = case.run()
    for sequence in range(3):
        alone = case._replace(
            q=case.q[sequence : sequence + 1],
            positions=case.positions[sequence : sequence + 1],
            block_tables=case.block_tables[sequence : sequence + 1].contiguous(),
            tiles=torch.tensor([[0, 0, 1]]),
        ).run()
        assert torch.equal(alone[0], together[sequence])


def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    case = make([48], [1])
    big = case._replace(q=case.q * 1e4)
    torch.testing.assert_close(big.run().double(), reference(big), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("window", [1, 3, 16, 17, 40])
def test_a_window_hides_what_lies_before_it(window: int) -> None:
    case = make([90, 5], [90, 1])._replace(window=window)
    torch.testing.assert_close(case.run().double(), reference(case), atol=2e-6, rtol=2e-6)
    alone = case._replace(block_tables=case.block_tables[:1].contiguous()).run(
        torch.tensor([[0, r, 1] for r in range(90)])
    )
    assert torch.equal(alone[:90], case.run()[:90])


def test_a_soft_cap_bounds_the_scores() -> None:
    case = make([50], [20])
    capped = case._replace(q=case.q * 10, soft_cap=5.0)
    torch.testing.assert_close(capped.run().double(), reference(capped), atol=3e-6, rtol=3e-6)


def in_bfloat16(case: Case) -> Case:
    """Pages as bfloat16 keeps them, with what nobody wrote as poison still."""
    return case._replace(k_cache=paired(case.k_cache.bfloat16()), v_cache=paired(case.v_cache.bfloat16()))


@pytest.mark.parametrize(("lengths", "queries"), SHAPES)
def test_bf16_pages_are_attended_to_bf16_accuracy(lengths: list[int], queries: list[int]) -> None:
    case = make(lengths, queries)
    wide = case._replace(k_cache=case.k_cache.bfloat16().float(), v_cache=case.v_cache.bfloat16().float())
    torch.testing.assert_close(in_bfloat16(case).run().double(), reference(wide), atol=2e-2, rtol=2e-2)


def test_with_bf16_pages_too_a_query_has_the_same_bits_in_prefill_in_chunks_and_in_decode() -> None:
    case = in_bfloat16(make([90], [90]))
    together = case.run()
    assert torch.equal(together, case.run(torch.tensor([[0, row, 1] for row in range(90)])))
    assert torch.equal(together, case.run(torch.tensor([[0, row, min(7, 90 - row)] for row in range(0, 90, 7)])))
    windowed = case._replace(window=21)
    assert torch.equal(windowed.run(), windowed.run(torch.tensor([[0, row, 1] for row in range(90)])))


def test_int8_pages_have_one_scale_for_each_slot() -> None:
    case = make([70, 33], [20, 1], dim=64)
    scales = [torch.rand(case.k_cache.shape[0], 2, 16) * 0.02 for _ in range(2)]
    k = torch.randint(-127, 128, case.k_cache.shape, dtype=torch.int8)
    v = torch.randint(-127, 128, case.v_cache.shape, dtype=torch.int8)
    wide = case._replace(k_cache=k * scales[0][:, :, None], v_cache=v * scales[1][..., None])
    out = paged_attention(case.q, k, v, *case[3:6], 0.125, 0, 0.0, *scales)
    torch.testing.assert_close(out, paged_attention(*wide[:6], 0.125), atol=1e-5, rtol=1e-4)


def test_opcheck() -> None:
    case = make([20, 3], [20, 1])
    torch.library.opcheck(paged_attention, (*case[:6], 0.125))

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
import torch

from streamrunner.kernels.attention import paged_attention

Tensor = torch.Tensor
TOLERANCE = {torch.float32: 3e-6, torch.float16: 4e-3}


class Case(NamedTuple):
    """Sequences of some lengths, each with its last `queries` tokens to attend; unwritten slots hold NaN."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    positions: Tensor
    tiles: Tensor

    def run(self, window: int = 0, soft_cap: float = 0.0) -> Tensor:
        return paged_attention(*self, self.q.shape[2] ** -0.5, window, soft_cap)

    def rows(self, first: int, count: int) -> Case:
        """The same pages, asked for some tokens of the first sequence only."""
        tiles = torch.tensor([[0, 0, count]])
        some = slice(first, first + count)
        return self._replace(q=self.q[some], positions=self.positions[some].contiguous(), tiles=tiles)


def make(
    lengths: list[int],
    queries: list[int],
    *,
    heads: int = 6,
    kv_heads: int = 2,
    dim: int = 16,
    block: int = 16,
    dtype: torch.dtype = torch.float32,
) -> Case:
    generator = torch.Generator().manual_seed(sum(lengths) + len(queries) + dim)
    pages = max(-(-length // block) for length in lengths)
    num_blocks = len(lengths) * pages + 3
    k_cache = torch.full((num_blocks, kv_heads, dim, block), float("nan"), dtype=dtype)
    v_cache = torch.full((num_blocks, kv_heads, block, dim), float("nan"), dtype=dtype)
    tables = torch.randperm(num_blocks, generator=generator)[: len(lengths) * pages].reshape(len(lengths), pages)
    for sequence, length in enumerate(lengths):
        keys, values = torch.randn(2, pages * block, kv_heads, dim, generator=generator).to(dtype)
        for slot in range(length):
            k_cache[tables[sequence, slot // block], :, :, slot % block] = keys[slot]
            v_cache[tables[sequence, slot // block], :, slot % block] = values[slot]
    positions = [p for length, count in zip(lengths, queries, strict=True) for p in range(length - count, length)]
    starts = [sum(queries[:i]) for i in range(len(queries))]
    tiles = torch.tensor([[i, start, count] for i, (start, count) in enumerate(zip(starts, queries, strict=True))])
    q = torch.randn(sum(queries), heads, dim, generator=generator)
    return Case(q, k_cache, v_cache, tables.contiguous(), torch.tensor(positions), tiles)


def reference(case: Case, window: int = 0, soft_cap: float = 0.0) -> Tensor:
    """The same in float64, one query at a time, from gathered pages."""
    out = torch.full(case.q.shape, float("nan"), dtype=torch.float64)
    group = case.q.shape[1] // case.k_cache.shape[1]
    for sequence, first, count in case.tiles.tolist():
        keys = case.k_cache[case.block_tables[sequence]].permute(0, 3, 1, 2).flatten(0, 1).double()
        values = case.v_cache[case.block_tables[sequence]].permute(0, 2, 1, 3).flatten(0, 1).double()
        for row in range(first, first + count):
            end = int(case.positions[row]) + 1
            seen = slice(max(0, end - window) if window else 0, end)
            k, v = keys[seen].repeat_interleave(group, 1), values[seen].repeat_interleave(group, 1)
            scores = torch.einsum("hd,khd->hk", case.q[row].double(), k) * case.q.shape[2] ** -0.5
            if soft_cap:
                scores = soft_cap * (scores / soft_cap).tanh()
            out[row] = torch.einsum("hk,khd->hd", scores.softmax(-1), v)
    return out


def check(case: Case, window: int = 0, soft_cap: float = 0.0) -> None:
    tolerance = TOLERANCE[case.k_cache.dtype]
    out = case.run(window, soft_cap).double()
    torch.testing.assert_close(out, reference(case, window, soft_cap), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("lengths", "queries"),
    [([1], [1]), ([17], [17]), ([100], [1]), ([100], [37]), ([5, 64, 33], [5, 1, 20]), ([40] * 5, [1] * 5)],
)
def test_prefill_chunks_and_decode(lengths: list[int], queries: list[int], dtype: torch.dtype) -> None:
    check(make(lengths, queries, dtype=dtype))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block"),
    [(4, 4, 16, 16), (9, 3, 64, 32), (7, 1, 24, 16), (16, 1, 8, 8), (17, 1, 16, 16), (2, 2, 96, 64)],
)
def test_head_groups_head_sizes_and_page_sizes(heads: int, kv_heads: int, dim: int, block: int) -> None:
    check(make([50, 3], [10, 1], heads=heads, kv_heads=kv_heads, dim=dim, block=block))


def test_random_batches() -> None:
    chance = random.Random(7)
    for _ in range(4):
        lengths = [chance.randint(1, 70) for _ in range(chance.randint(1, 5))]
        check(make(lengths, [chance.randint(1, min(length, 30)) for length in lengths], dtype=torch.float16))


def test_sequences_without_tokens_are_skipped_wherever_they_stand() -> None:
    check(make([9, 20, 31, 5], [0, 3, 0, 2]))
    check(make([9, 20], [4, 0]))


@pytest.mark.parametrize("window", [1, 7, 16, 50, 1000])
def test_a_sliding_window(window: int) -> None:
    check(make([90, 12], [40, 12]), window)
    check(make([90, 600], [1, 1]), window)


def test_a_soft_cap() -> None:
    case = make([60, 9], [30, 1])
    check(case._replace(q=case.q * 20), soft_cap=5.0)


def test_long_decodes_are_split_and_one_split_more_changes_no_bit(deterministic: None) -> None:
    case = make([1300], [4], heads=2, kv_heads=1)
    check(case)
    together = case.run()
    for row in range(4):
        # One token alone is attended by a program for each split; four by one program for all splits.
        assert torch.equal(case.rows(row, 1).run()[0], together[row])


def test_a_query_has_the_same_bits_in_prefill_in_chunks_and_in_decode(deterministic: None) -> None:
    case = make([40], [40])
    together = case.run()
    for first, count in [(0, 7), (7, 16), (23, 1), (24, 16)]:
        assert torch.equal(case.rows(first, count).run(), together[first : first + count])


def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    case = make([48], [1])
    big = case._replace(q=case.q * 1e4)
    torch.testing.assert_close(big.run().double(), reference(big), atol=1e-4, rtol=1e-4)


def test_pages_and_queries_may_have_any_strides() -> None:
    case = make([40, 21], [3, 1])
    turned = case._replace(
        k_cache=case.k_cache.transpose(2, 3).contiguous().transpose(2, 3),
        q=case.q.transpose(0, 1).contiguous().transpose(0, 1),
    )
    assert torch.equal(turned.run(), case.run())


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_eight_bit_pages_are_multiplied_by_the_scale_of_their_slot(dtype: torch.dtype) -> None:
    case = make([40, 21], [20, 1])
    scales = torch.rand(2, *case.v_cache.shape[:3]) / 64
    pages = [torch.randint(-100, 100, one.shape).to(dtype) for one in (case.k_cache, case.v_cache)]
    wide = case._replace(
        k_cache=pages[0].float() * scales[0][:, :, None], v_cache=pages[1].float() * scales[1][..., None]
    )
    out = paged_attention(case.q, *pages, *case[3:], 0.25, 0, 0.0, *scales)
    torch.testing.assert_close(out.double(), reference(wide), atol=4e-3, rtol=4e-3)


def test_opcheck() -> None:
    case = make([20, 3], [20, 1])
    torch.library.opcheck(paged_attention, (*case, 0.125))

"""Runs twice: here on the CPU bodies, and in `test_interpreted.py` on the Triton ones."""

from __future__ import annotations

import pytest
import torch

from streamrunner.kernels.logprobs import logprobs_at, top_logprobs
from streamrunner.kernels.penalties import add_bias, apply_penalties, mask_tokens

Tensor = torch.Tensor


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("rows", "size", "count"), [(1, 7, 1), (3, 1500, 5), (2, 2049, 21)])
def test_logprobs_and_ranks_against_float64(rows: int, size: int, count: int) -> None:
    logits = random(rows, size) * 5
    ids = torch.randint(0, size, (rows, count), generator=torch.Generator().manual_seed(1))
    logprobs, ranks = logprobs_at(logits, ids)
    wide = logits.double().log_softmax(1).gather(1, ids)
    torch.testing.assert_close(logprobs.double(), wide, atol=5e-6, rtol=2e-6)
    above = (logits[:, None, :] > logits.gather(1, ids)[:, :, None]).sum(-1)
    assert torch.equal(ranks, above + 1)


def test_equal_logits_share_a_rank_and_forbidden_tokens_have_no_probability() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, float("-inf")]])
    logprobs, ranks = logprobs_at(logits, torch.tensor([[0, 1, 2, 3]]))
    assert ranks.tolist() == [[3, 1, 1, 4]]
    assert logprobs[0, 3] == float("-inf")
    torch.testing.assert_close(logprobs[0, :3].exp().sum(), torch.tensor(1.0))


def test_logits_may_be_slices() -> None:
    wide, ids = random(4, 60), torch.tensor([[1, 2], [3, 4]])
    part = wide[::2, 5:45]
    assert torch.equal(logprobs_at(part, ids)[0], logprobs_at(part.contiguous(), ids)[0])


def test_penalties_touch_what_a_row_has_seen_and_nothing_else() -> None:
    logits = torch.tensor([[2.0, -2.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    rows, tokens, counts = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 2, 3]), torch.tensor([3, 1, 0, 2])
    apply_penalties(logits, rows, tokens, counts, torch.tensor([[0.5, 0.25, 2.0], [0.0, 0.0, 1.0]]))
    # Token 2 stands in the prompt only: repetition touches it, the other two do not.
    assert logits.tolist() == [[1 - 0.75 - 0.5, -4 - 0.25 - 0.5, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]


def test_a_bias_is_added_and_minus_infinity_forbids() -> None:
    logits = torch.zeros(2, 300)
    rows, tokens = torch.arange(2).repeat_interleave(290), torch.arange(290).repeat(2)
    bias = random(580)
    bias[7] = float("-inf")
    add_bias(logits, rows, tokens, bias)
    assert torch.equal(logits[:, :290], bias.view(2, 290))
    assert not logits[:, 290:].any()


@pytest.mark.parametrize(("rows", "size", "count"), [(1, 7, 7), (3, 1500, 5), (2, 9001, 20), (4, 33, 0)])
def test_the_likeliest_tokens_against_float64(rows: int, size: int, count: int) -> None:
    logits = random(rows, size) * 5
    picked = torch.arange(rows).flip(0)
    tokens = torch.randint(0, size, (rows,), generator=torch.Generator().manual_seed(2))
    ids, logprobs, ranks = top_logprobs(logits, picked, tokens, count)
    wide = logits.double().log_softmax(1)[picked]
    top = wide.topk(count, dim=1)
    assert torch.equal(ids, torch.cat([tokens[:, None], top.indices], 1))
    expected = torch.cat([wide.gather(1, tokens[:, None]), top.values], 1)
    torch.testing.assert_close(logprobs.double(), expected, atol=5e-6, rtol=2e-6)
    assert torch.equal(ranks, (wide > wide.gather(1, tokens[:, None])).sum(1) + 1)


def test_forbidden_tokens_fill_the_last_places() -> None:
    logits = torch.full((1, 6), float("-inf"))
    logits[0, 4] = 2.0
    ids, logprobs, ranks = top_logprobs(logits, torch.tensor([0]), torch.tensor([1]), 3)
    assert (ids[0, 0], ids[0, 1], ranks.tolist()) == (1, 4, [2])
    assert len(set(ids[0, 1:].tolist())) == 3
    assert logprobs[0, 1] == 0
    assert logprobs[0, [0, 2, 3]].tolist() == [float("-inf")] * 3


def test_a_mask_forbids_what_has_no_bit_and_hides_no_nan() -> None:
    logits, before = random(3, 150), random(3, 150)
    logits[0, 5] = before[0, 5] = float("nan")
    words = [[(1 << 3) | (1 << 62), -1], [0, 0]]
    mask_tokens(logits, torch.tensor([2, 0]), torch.tensor(words))
    allowed = torch.zeros(150, dtype=torch.bool)
    allowed[[3, 62, *range(64, 128)]] = True
    assert torch.equal(logits[1], before[1])
    assert torch.equal(logits[2, allowed], before[2, allowed])
    assert (logits[2, ~allowed] == float("-inf")).all()
    assert torch.isnan(logits[0]).nonzero().flatten().tolist() == [5]
    assert logits[0].isneginf().sum() == 149


def test_nothing_to_do_is_no_error() -> None:
    logits, none = random(2, 5), torch.zeros(0, dtype=torch.int64)
    before = logits.clone()
    apply_penalties(logits, none, none, none, torch.zeros(2, 3))
    add_bias(logits, none, none, torch.zeros(0))
    assert torch.equal(logits, before)
    assert logprobs_at(logits[:0], none.view(0, 3))[0].shape == (0, 3)
    assert top_logprobs(logits, none, none, 2)[1].shape == (0, 3)
    mask_tokens(logits, none, none.view(0, 1))
    assert torch.equal(logits, before)


def test_opcheck() -> None:
    logits, rows, tokens = random(2, 9), torch.tensor([0, 1]), torch.tensor([3, 4])
    torch.library.opcheck(logprobs_at, (logits, torch.tensor([[1, 2], [3, 4]])))
    torch.library.opcheck(apply_penalties, (logits, rows, tokens, torch.tensor([1, 0]), torch.ones(2, 3)))
    torch.library.opcheck(add_bias, (logits, rows, tokens, torch.ones(2)))
    torch.library.opcheck(mask_tokens, (logits, torch.tensor([1]), torch.tensor([[0b1010]])))
    torch.library.opcheck(top_logprobs, (logits, rows, tokens, 3))

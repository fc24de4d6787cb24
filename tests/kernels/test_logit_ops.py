"""Runs twice: here on the CPU bodies, and in `test_interpreted.py` on the Triton ones."""

from __future__ import annotations

import pytest
import torch

from streamrunner.kernels.logprobs import logprobs_at
from streamrunner.kernels.penalties import add_bias, apply_penalties

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


def test_nothing_to_do_is_no_error() -> None:
    logits, none = random(2, 5), torch.zeros(0, dtype=torch.int64)
    before = logits.clone()
    apply_penalties(logits, none, none, none, torch.zeros(2, 3))
    add_bias(logits, none, none, torch.zeros(0))
    assert torch.equal(logits, before)
    assert logprobs_at(logits[:0], none.view(0, 3))[0].shape == (0, 3)


def test_opcheck() -> None:
    logits, rows, tokens = random(2, 9), torch.tensor([0, 1]), torch.tensor([3, 4])
    torch.library.opcheck(logprobs_at, (logits, torch.tensor([[1, 2], [3, 4]])))
    torch.library.opcheck(apply_penalties, (logits, rows, tokens, torch.tensor([1, 0]), torch.ones(2, 3)))
    torch.library.opcheck(add_bias, (logits, rows, tokens, torch.ones(2)))

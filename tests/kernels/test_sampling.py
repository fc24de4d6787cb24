from __future__ import annotations

import math

import pytest
import torch

from streamrunner.kernels.sampling import NO_TOKEN, sample

Tensor = torch.Tensor
VOCAB = 12


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def draw(
    logits: Tensor, count: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Tensor:
    """`count` tokens for one row of logits, at positions 0, 1, …"""
    settings = torch.tensor([[temperature, top_k, top_p, min_p]]).expand(count, 4)
    keys = torch.stack([torch.tensor([7, 0, position]) for position in range(count)])
    return sample(logits.expand(count, -1), settings, keys)


def filtered(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """The exact distribution: temperature, then top-k, then top-p over what is left, then min-p."""
    scaled = logits.double() / temperature
    if top_k:
        scaled[scaled < scaled.topk(top_k).values[-1]] = -math.inf
    probabilities = scaled.softmax(-1)
    if top_p < 1:
        order = probabilities.argsort(descending=True)
        before = probabilities[order].cumsum(0) - probabilities[order]
        probabilities[order[before >= top_p]] = 0
    probabilities[probabilities < min_p * probabilities.max()] = 0
    return probabilities / probabilities.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.6, 0, 1.0, 0.0),
        (2.0, 5, 1.0, 0.0),
        (1.0, 0, 0.7, 0.0),
        (1.0, 0, 1.0, 0.2),
        (0.8, 6, 0.8, 0.1),
    ],
)
def test_tokens_follow_the_exact_distribution(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    logits, count = random(VOCAB, seed=3) * 1.5, 20_000
    tokens = draw(logits, count, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = filtered(logits.clone(), temperature, top_k, top_p, min_p) * count
    observed = torch.bincount(tokens, minlength=VOCAB).double()
    assert (observed[expected == 0] == 0).all()
    kept = expected > 0
    chi_square = ((observed[kept] - expected[kept]) ** 2 / expected[kept]).sum().item()
    degrees = int(kept.sum()) - 1
    # Six standard deviations of the chi-square distribution: once in some million seeds, and the seed is fixed.
    assert chi_square < degrees + 6 * math.sqrt(2 * max(degrees, 1))


def test_greedy_is_argmax_and_ties_go_to_the_lowest_index() -> None:
    logits = random(5, 1000)
    logits[0, [17, 400]] = 99.0
    tokens = sample(logits, torch.tensor([[0.0, 0, 1.0, 0.0]]).repeat(5, 1), torch.zeros(5, 3, dtype=torch.int64))
    assert tokens[0] == 17
    assert tokens.tolist()[1:] == logits.argmax(-1).tolist()[1:]


def test_noise_is_a_function_of_seed_choice_and_position_alone() -> None:
    logits = random(1, 5000).repeat(6, 1)
    settings = torch.tensor([[1.0, 0, 1.0, 0.0]]).repeat(6, 1)
    keys = torch.tensor([[1, 0, 5], [2, 0, 5], [1, 1, 5], [1, 0, 6], [1, 0, 5], [-1, 0, 5]])
    tokens = sample(logits, settings, keys)
    assert tokens[0] == tokens[4]
    assert len(set(tokens.tolist())) == 5
    alone = [sample(logits[i : i + 1], settings[:1], keys[i : i + 1]).item() for i in range(6)]
    assert alone == tokens.tolist()


def test_filters_do_not_change_the_noise_of_what_they_keep() -> None:
    logits = random(1, 300)
    free = draw(logits[0], 200)
    kept = set(logits[0].topk(50).indices.tolist())
    narrow = draw(logits[0], 200, top_k=50)
    assert all(
        token == narrowed for token, narrowed in zip(free.tolist(), narrow.tolist(), strict=True) if token in kept
    )


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_row_without_a_sane_maximum_has_no_token_and_harms_no_other(poison: float) -> None:
    logits = random(3, 50)
    logits[1, 7] = poison
    settings = torch.tensor([[1.0, 0, 0.9, 0.0]]).repeat(3, 1)
    tokens = sample(logits, settings, torch.tensor([[1, 0, 0]]).repeat(3, 1))
    assert tokens[1] == NO_TOKEN
    assert (tokens[[0, 2]] >= 0).all()


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.full((40,), float("-inf"))
    logits[[3, 9]] = 0.0
    for settings in ({}, {"top_p": 0.99}, {"top_k": 30}, {"min_p": 0.5}):
        assert set(draw(logits, 100, **settings).tolist()) == {3, 9}  # type: ignore[arg-type]


def test_opcheck() -> None:
    torch.library.opcheck(
        sample, (random(3, 50), torch.tensor([[0.8, 5, 0.9, 0.1]]).repeat(3, 1), torch.zeros(3, 3, dtype=torch.int64))
    )

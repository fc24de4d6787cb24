from __future__ import annotations

import math

import pytest
import torch

from streamrunner.kernels.sampling import NO_TOKEN, sample

Tensor = torch.Tensor
MASK = 2**64 - 1


def mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def noise(seed: int, choice: int, position: int, token: int) -> float:
    key = mix(mix(mix(seed & MASK) ^ choice) ^ position)
    return -math.log(-math.log(((mix(key ^ mix(token)) >> 32) + 0.5) * 2.0**-32))


def kept_tokens(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    """Top-k, then top-p, then min-p, by sorting; tokens that tie with the last one kept are kept."""
    ordered = sorted(logits, reverse=True)
    floor = ordered[top_k - 1] if 0 < top_k < len(logits) else -math.inf
    weights = [math.exp((x - ordered[0]) / temperature) for x in ordered if x >= floor]
    running = 0.0
    for x, weight in zip(ordered, weights, strict=False):
        running += weight
        if running >= top_p * sum(weights) and top_p < 1:
            floor = max(floor, x)
            break
    if min_p > 0:
        floor = max(floor, ordered[0] + temperature * math.log(min_p))
    return {token for token, x in enumerate(logits) if x >= floor}


def expected(logits: list[float], settings: list[float], key: list[int]) -> int:
    temperature, top_k, top_p, min_p = settings
    if temperature == 0:
        return logits.index(max(logits))
    kept = sorted(kept_tokens(logits, temperature, int(top_k), top_p, min_p))
    return max(kept, key=lambda token: logits[token] / temperature + noise(*key, token))


def draw(logits: Tensor, settings: list[list[float]], keys: list[list[int]]) -> list[int]:
    return sample(logits, torch.tensor(settings), torch.tensor(keys)).tolist()


SETTINGS = [
    [0.0, 0.0, 1.0, 0.0],
    [1.0, 0.0, 1.0, 0.0],
    [0.7, 5.0, 1.0, 0.0],
    [1.5, 0.0, 0.8, 0.0],
    [1.0, 0.0, 1.0, 0.1],
    [0.9, 40.0, 0.95, 0.02],
    [3.0, 1.0, 0.5, 0.0],
]


@pytest.mark.parametrize("size", [1, 50, 1500, 8200])
def test_it_draws_what_the_definition_says(size: int) -> None:
    logits = torch.randn(len(SETTINGS), size, generator=torch.Generator().manual_seed(size)) * 3
    keys = [[row * 7919 - 3, row % 3, 10 + row] for row in range(len(SETTINGS))]
    settings = torch.tensor(SETTINGS).tolist()
    wanted = [expected(*row) for row in zip(logits.tolist(), settings, keys, strict=True)]
    assert draw(logits, SETTINGS, keys) == wanted


def test_many_positions_of_one_row_use_their_own_noise() -> None:
    logits, rows = torch.linspace(-1, 2, 40), 24
    keys = [[5, 0, position] for position in range(rows)]
    drawn = draw(logits.expand(rows, 40), [[1.0, 0.0, 1.0, 0.0]] * rows, keys)
    assert drawn == [expected(logits.tolist(), [1.0, 0, 1.0, 0.0], key) for key in keys]
    assert len(set(drawn)) > 5


def test_ties_go_to_the_lowest_index_across_blocks() -> None:
    logits = torch.zeros(1, 20_000)
    logits[0, [9_000, 9_500, 17_000]] = 4.0
    assert draw(logits, [[0.0, 0.0, 1.0, 0.0]], [[1, 0, 0]]) == [9_000]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_row_without_a_sane_maximum_has_no_token_and_harms_no_other(poison: float) -> None:
    logits = torch.randn(4, 9_000, generator=torch.Generator().manual_seed(1))
    logits[1, 8_500] = poison
    logits[2] = float("-inf")
    drawn = draw(logits, [[1.0, 0.0, 0.9, 0.0]] * 4, [[1, 0, 0]] * 4)
    assert drawn[1:3] == [NO_TOKEN, NO_TOKEN]
    assert drawn[0] >= 0
    assert drawn[3] >= 0


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.full((8, 64), float("-inf"))
    logits[:, [3, 60]] = 0.0
    keys = [[9, 0, position] for position in range(8)]
    assert set(draw(logits, [[5.0, 0.0, 1.0, 0.0]] * 8, keys)) <= {3, 60}


def test_sliced_and_permuted_logits() -> None:
    wide = torch.randn(6, 90, generator=torch.Generator().manual_seed(2))
    settings, keys = [[0.8, 7.0, 0.9, 0.0]] * 3, [[4, 0, row] for row in range(3)]
    assert draw(wide[::2, 10:70], settings, keys) == draw(wide[::2, 10:70].contiguous(), settings, keys)
    turned = wide.t()[:3]
    assert draw(turned, settings, keys) == draw(turned.contiguous(), settings, keys)


def test_opcheck() -> None:
    settings, keys = torch.tensor([[1.0, 5.0, 0.9, 0.1]] * 2), torch.tensor([[1, 0, 2], [3, 0, 4]])
    torch.library.opcheck(sample, (torch.randn(2, 100), settings, keys))

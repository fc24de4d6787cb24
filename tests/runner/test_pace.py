from __future__ import annotations

import random

import pytest

from streamrunner.runner.pace import Pace, StepCost


def learned(cost: StepCost, batches: list[tuple[int, int]], noise: float = 0.0) -> StepCost:
    draw, pace = random.Random(0), Pace()
    for output_tokens, prompt_tokens in batches:
        pace.take(
            output_tokens, prompt_tokens, cost.of(1, output_tokens, prompt_tokens) * draw.uniform(1 - noise, 1 + noise)
        )
    found = pace.cost()
    assert found is not None
    return found


MIXED = [(output, prompt) for output in range(1, 65) for prompt in (0, 50, 190)]


def test_nothing_is_known_before_the_first_step() -> None:
    assert Pace().cost() is None


@pytest.mark.parametrize("cost", [StepCost(5.0, 1.2, 0.6), StepCost(6.0, 0.0, 0.0), StepCost(0.0, 2.0, 0.5)])
def test_the_parts_of_a_steps_cost_are_told_apart(cost: StepCost) -> None:
    assert tuple(learned(cost, MIXED)) == pytest.approx(tuple(cost), abs=0.02)
    noisy = learned(cost, MIXED, noise=0.2)
    for output_tokens, prompt_tokens in ((32, 50), (64, 190)):
        known = cost.of(1, output_tokens, prompt_tokens)
        assert noisy.of(1, output_tokens, prompt_tokens) == pytest.approx(known, rel=0.15, abs=2.0)


def test_no_part_is_ever_negative() -> None:
    found = learned(StepCost(1.0, 0.0, 0.0), [(1, 0), (2, 0), (64, 190)], noise=0.9)
    assert min(found) >= 0.0


def test_batches_that_are_all_alike_still_give_the_cost_of_such_a_batch() -> None:
    found = learned(StepCost(10.0, 0.5, 0.0), [(64, 0)] * 50)
    assert found.of(1, 64, 0) == pytest.approx(42.0, rel=0.001)
    assert found.base == pytest.approx(21.0, rel=0.01)

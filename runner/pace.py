"""What an engine step costs: so much whatever it does, so much a sequence, so much a prompt token.

    step_ms = base + per_output · output tokens + per_prompt · prompt tokens        (least squares, none negative)

A rate alone cannot tell how long the last rows take: on a GPU a step with one sequence lasts nearly as long as one
with all of them, on a CPU it is far shorter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Older steps fade: half of the weight lies on the last 3,500.
_FADE = 0.9998
_RIDGE = 1e-6


class StepCost(NamedTuple):
    """Milliseconds."""

    base: float
    per_output: float
    per_prompt: float

    def of(self, num_steps: float, output_tokens: float, prompt_tokens: float) -> float:
        """Milliseconds that these steps take in all."""
        return num_steps * self.base + output_tokens * self.per_output + prompt_tokens * self.per_prompt


class Pace:
    """Learns the cost of a step from every step."""

    def __init__(self) -> None:
        self._products = np.zeros((3, 3))
        self._targets = np.zeros(3)
        self._weight = 0.0

    def take(self, output_tokens: int, prompt_tokens: int, step_ms: float) -> None:
        """Learn from one step."""
        features = np.array((1.0, float(output_tokens), float(prompt_tokens)))
        self._products = self._products * _FADE + np.outer(features, features)
        self._targets = self._targets * _FADE + features * step_ms
        self._weight = self._weight * _FADE + 1.0

    def cost(self) -> StepCost | None:
        """The costs; None before the first step. Features that always come together share theirs evenly."""
        if self._weight == 0.0:
            return None
        scale = np.sqrt(np.maximum(np.diag(self._products) / self._weight, 1e-12))
        products = self._products / self._weight / np.outer(scale, scale)
        targets = self._targets / self._weight / scale
        active = [i for i in range(3) if self._products[i, i] > 0]
        solution = np.zeros(3)
        while active:
            part = products[np.ix_(active, active)] + _RIDGE * np.eye(len(active))
            found = np.linalg.solve(part, targets[active])
            if found.min() >= 0:
                solution[active] = found
                break
            active.pop(int(found.argmin()))
        return StepCost(*(float(one) for one in solution / scale))

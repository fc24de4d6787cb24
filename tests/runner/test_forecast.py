"""Forecasts against a simulated engine on a simulated clock: deterministic, so the errors are facts, not luck."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from streamrunner.runner.forecast import Forecast
from streamrunner.runner.lengths import Answer
from streamrunner.runner.pace import StepCost
from streamrunner.runner.row_work import NO_WORK, Kind, RowWork, WorkSum

ROWS = 2000
SLOTS = 64
BUDGET = 256  # tokens a step


@dataclass
class SimRow:
    """A row that will make `length` tokens, which nobody knows."""

    number: int
    num_chars: int
    limit: int
    length: int
    made: int = 0

    @property
    def prompt(self) -> int:
        return max(self.num_chars // 4, 1)


@dataclass
class Simulation:
    """Continuous batching whose steps take what `cost` says, and a forecast that sees what a worker sees."""

    rows: list[SimRow]
    cost: StepCost
    slots: int = SLOTS
    forecast: Forecast = field(default_factory=Forecast)
    now_ms: float = 0.0
    ended: int = 0

    def __post_init__(self) -> None:
        self.waiting = deque(self.rows)
        self.running: list[SimRow] = []
        self.prefill: deque[list[int]] = deque()

    def kind(self, row: SimRow) -> Kind:
        return RowWork(row.num_chars, 1, row.limit).kind

    def step(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            row = self.waiting.popleft()
            self.running.append(row)
            self.prefill.append([row.number, row.prompt])
            self.forecast.admitted(row.num_chars, row.prompt)
        unready = {number for number, _ in self.prefill}
        decoding = [row for row in self.running if row.number not in unready]
        budget, prompt_tokens = BUDGET - len(decoding), 0
        while self.prefill and budget > 0:
            part = min(budget, self.prefill[0][1])
            self.prefill[0][1] -= part
            budget, prompt_tokens = budget - part, prompt_tokens + part
            if not self.prefill[0][1]:
                self.prefill.popleft()
        for row in decoding:
            row.made += 1
            if row.made >= row.length:
                self.running.remove(row)
                self.ended += 1
                self.forecast.lengths.ended(Answer(self.kind(row), row.made, row.limit))
        took = self.cost.of(1, len(decoding), prompt_tokens)
        self.now_ms += took
        self.forecast.take_step(len(decoding), prompt_tokens, len(decoding), took)

    def estimate_s(self) -> float | None:
        open_rows: dict[Kind, WorkSum] = {}
        for row in self.waiting:
            kind = self.kind(row)
            open_rows[kind] = open_rows.get(kind, NO_WORK).plus(WorkSum(1, row.num_chars, 1, row.limit))
        running = [Answer(self.kind(row), row.made, row.limit) for row in self.running]
        found = self.forecast.estimate(open_rows, running, sum(left for _, left in self.prefill))
        return None if found is None else found.total_s

    def error_at(self, share: float) -> float:
        """Signed relative error of the time left, when this share of the rows has ended."""
        while self.ended < share * len(self.rows):
            self.step()
        said, then = self.estimate_s(), self.now_ms
        assert said is not None
        while self.running or self.waiting:
            self.step()
        return said * 1000 / (self.now_ms - then) - 1.0


def mixed(seed: int, order: str = "shuffled") -> list[SimRow]:
    """Prompts of 100 B to 4 KB, limits of 32 to 512; half the answers depend on the prompt, some reach their limit."""
    draw = random.Random(seed)
    rows = []
    for number in range(ROWS):
        num_chars = int(100 * 40 ** draw.random())
        limit = draw.choice((32, 128, 256, 512))
        natural = num_chars // 16 if draw.random() < 0.5 else int(draw.expovariate(1 / 120)) + 1
        rows.append(SimRow(number, num_chars, limit, max(1, min(natural, limit))))
    if order != "shuffled":
        rows.sort(key=lambda row: row.num_chars, reverse=order == "longest first")
        for number, row in enumerate(rows):
            row.number = number
    return rows


CPU, GPU, FIXED = StepCost(5.0, 1.2, 0.6), StepCost(6.0, 0.02, 0.01), StepCost(10.0, 0.0, 0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cost", [CPU, GPU, FIXED], ids=["cpu", "gpu", "fixed step"])
def test_halfway_through_2000_mixed_rows_the_time_left_is_right_within_15_percent(cost: StepCost, seed: int) -> None:
    assert abs(Simulation(mixed(seed), cost).error_at(0.5)) < 0.15

"""How long answers get, learned while they are made.

Short answers end first, so the mean of those that ended says too little about those still open. Each answer is
therefore followed over the share of its token limit it has used, and one that still runs counts as "longer than this":
the product-limit estimate of Kaplan and Meier (1958).

    share of max_tokens used    0 ──────── 0.25 ──────── 0.5 ──────── 1
    answers that get there      1.00       0.80          0.35         0.10
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from streamrunner.runner.row_work import Kind

BINS = 64
# How many answers of its own outweigh what is known of all the others.
_BORROWED = 8.0


class Answer(NamedTuple):
    """One choice of one row: `made` tokens so far, at most `limit`."""

    kind: Kind
    made: int
    limit: float


class Survival:
    """For one kind of row: `kept[b]` is the chance that an answer uses at least b/BINS of its limit."""

    def __init__(self, deaths: NDArray[np.float64], at_risk: NDArray[np.float64], tail: float) -> None:
        hazard = np.where(at_risk > 1e-9, deaths / np.maximum(at_risk, 1e-9), tail)
        self.kept = np.concatenate(([1.0], np.cumprod(1.0 - np.clip(hazard, 0.0, 1.0))))
        middle = (self.kept[1:] + self.kept[:-1]) / 2
        self._later = np.concatenate((np.cumsum(middle[::-1])[::-1], [0.0])) / BINS
        self.mean_share = float(self._later[0])
        self.mean_square = float(2.0 * np.sum((np.arange(BINS) + 0.5) / BINS * middle) / BINS)

    def left(self, share: float) -> float:
        """The mean share still to come for an answer that has used `share` of its limit."""
        at = min(int(share * BINS), BINS - 1)
        kept = self.kept[at]
        return float(min(self._later[at] / kept, 1.0 - at / BINS)) if kept > 1e-12 else 0.0

    def exceeds(self, share: float, more: float) -> float:
        """The chance that an answer that has used `share` of its limit uses `more` beside it."""
        if share + more >= 1.0:
            return 0.0
        now = np.interp(share * BINS, _EDGES, self.kept)
        return float(np.interp((share + more) * BINS, _EDGES, self.kept) / now) if now > 1e-12 else 0.0

    def caught_exceeds(self, more: float) -> float:
        """`mean_share` times the chance that an answer caught at a random moment has more than `more` to go."""
        return float(np.interp(more * BINS, _EDGES, self._later)) if more < 1.0 else 0.0


_EDGES = np.arange(BINS + 1)


class LengthModel:
    """Counts of ended answers by kind. A kind seldom seen borrows from the others, most from those most like it."""

    def __init__(self) -> None:
        self.num_ended = 0
        self._deaths: dict[Kind, NDArray[np.float64]] = {}
        self._at_risk: dict[Kind, NDArray[np.float64]] = {}

    def ended(self, answer: Answer) -> None:
        """Learn from an answer that has ended, by itself or at its limit."""
        self.num_ended += 1
        at = _bin(answer)
        _row(self._at_risk, answer.kind)[: at + 1] += 1.0
        if at < BINS:
            _row(self._deaths, answer.kind)[at] += 1.0

    def survivals(self, running: Iterable[Answer], wanted: Iterable[Kind]) -> dict[Kind, Survival]:
        """The estimate for each kind wanted or running; an answer that runs counts as longer than it is."""
        at_risk = {kind: counts.copy() for kind, counts in self._at_risk.items()}
        kinds = set(wanted)
        for answer in running:
            kinds.add(answer.kind)
            _row(at_risk, answer.kind)[: _bin(answer)] += 1.0
        seen = list(at_risk)
        all_at_risk = np.array([at_risk[kind] for kind in seen]).reshape(-1, BINS)
        all_deaths = np.array([self._deaths.get(kind, _NONE) for kind in seen]).reshape(-1, BINS)
        found = {}
        for kind in kinds:
            likeness = np.array([4.0 ** -_distance(kind, other) for other in seen])
            deaths, at_risk_there = likeness @ all_deaths, likeness @ all_at_risk
            share = _BORROWED / max(float(at_risk_there[0]), _BORROWED) if len(seen) else 0.0
            own_deaths, own_at_risk = self._deaths.get(kind, _NONE), at_risk.get(kind, _NONE)
            tail = float(deaths.sum() / max(at_risk_there.sum(), 1e-9))
            found[kind] = Survival(own_deaths + share * deaths, own_at_risk + share * at_risk_there, tail)
        return found


_NONE = np.zeros(BINS)


def _row(counts: dict[Kind, NDArray[np.float64]], kind: Kind) -> NDArray[np.float64]:
    return counts.setdefault(kind, np.zeros(BINS))


def _distance(one: Kind, other: Kind) -> int:
    return abs(one.prompt - other.prompt) + abs(one.limit - other.limit)


def _bin(answer: Answer) -> int:
    return min(int(answer.made * BINS / answer.limit), BINS) if answer.limit > 0 else BINS

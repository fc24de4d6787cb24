"""The tokens a row already has in the log: what a killed worker leaves to whoever continues.

Per row and choice the highest claim wins, its deltas lie over each other by `at`, and whatever follows a hole is
ignored; so repeats, resends and takeovers never double a token.

    claim 3   [0 ───── 12)[12 ── 20)        ──▶  20 tokens
    claim 5   [0 ──────────── 20)[20 ─ 24)  ──▶  24 tokens   ◀ this one
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamrunner.sinks.wire import StepDelta, StepEntry


class ChoiceKey(NamedTuple):
    """One choice of one row."""

    row: int
    choice: int


@dataclass(slots=True)
class DurableChoice:
    """Tokens (and logprobs, if asked for) of one choice, whole from its first one."""

    claim: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    has_hole: bool = False

    def overlay(self, delta: StepDelta) -> None:
        """Lay one delta of this claim over what is known."""
        if self.has_hole and delta.at > len(self.token_ids):
            return
        if delta.at > len(self.token_ids):
            self.has_hole = True
            return
        self.has_hole = False
        self.token_ids[delta.at :] = delta.token_ids
        self.logprobs[delta.at :] = delta.logprobs or []


def fold_steps(entries: Iterable[StepEntry], rows: range) -> dict[ChoiceKey, DurableChoice]:
    """The durable tokens of `rows`, from the step entries of every worker that ever held them."""
    found: dict[ChoiceKey, DurableChoice] = {}
    for entry in entries:
        for delta in entry.deltas:
            if delta.row in rows:
                _take(found, delta)
    return {key: choice for key, choice in found.items() if choice.token_ids}


def _take(found: dict[ChoiceKey, DurableChoice], delta: StepDelta) -> None:
    key = ChoiceKey(delta.row, delta.choice)
    known = found.get(key)
    if known is None or delta.claim > known.claim:
        known = found[key] = DurableChoice(delta.claim)
    if delta.claim == known.claim:
        known.overlay(delta)

"""The texts of rows in flight, from token events, by the rule of docs/log.md: the highest claim counts, deltas are laid
over what stands at their position, and what follows a hole is ignored. So takeovers, repeats and resyncs are harmless.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from streamrunner.runner.job_events import ResyncEvent, TokensEvent

if TYPE_CHECKING:
    from streamrunner.runner.job_events import Event, TokenDelta

_ENDINGS = frozenset({"request.completed", "request.failed", "request.cancelled", "request.expired", "request.retried"})


class _Piece(NamedTuple):
    at: int
    num_tokens: int
    text: str


@dataclass(slots=True)
class _Choice:
    claim: int
    pieces: list[_Piece] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return self.pieces[-1].at + self.pieces[-1].num_tokens if self.pieces else 0


class LiveText:
    """Texts of the rows that are being generated; a row is forgotten with the event that ends it."""

    def __init__(self) -> None:
        self._choices: dict[tuple[int, int], _Choice] = {}

    def apply(self, event: Event) -> list[tuple[int, int]]:
        """Take in one event; returns the (row, choice) pairs whose text may have changed."""
        if isinstance(event, TokensEvent):
            return [(delta.row, delta.choice) for delta in event.deltas if self._lay(delta)]
        if isinstance(event, ResyncEvent):
            self._choices.clear()
        elif event.type in _ENDINGS and event.row is not None:
            for key in [key for key in self._choices if key[0] == event.row]:
                del self._choices[key]
        return []

    def text(self, row: int, choice: int = 0) -> str:
        """The text so far; empty for a row that has not begun or has ended."""
        found = self._choices.get((row, choice))
        return "".join(piece.text for piece in found.pieces) if found else ""

    def num_tokens(self, row: int, choice: int = 0) -> int:
        """How many tokens the choice has so far."""
        found = self._choices.get((row, choice))
        return found.num_tokens if found else 0

    def _lay(self, delta: TokenDelta) -> bool:
        key = (delta.row, delta.choice)
        known = self._choices.get(key)
        if known is None or delta.claim > known.claim:
            known = self._choices[key] = _Choice(delta.claim)
        if delta.claim < known.claim or delta.at > known.num_tokens:
            return False
        while known.pieces and known.pieces[-1].at >= delta.at:
            known.pieces.pop()
        known.pieces.append(_Piece(delta.at, len(delta.token_ids), delta.text))
        return True

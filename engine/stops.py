"""Stop strings in a text that arrives in pieces: one pass, whatever the pieces and however long the strings.

A match is reported at the first character where any stop string is complete; if several end there, the longest counts.
That rule needs no look ahead, so the same text cut in other pieces ends at the same place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopMatch(NamedTuple):
    """A stop string, and where it ends in the piece that completed it."""

    stop: str
    end: int


class StopSearch:
    """Knuth-Morris-Pratt over several strings; `held` characters at the end of the text may still become a match."""

    __slots__ = ("_patterns", "held")

    def __init__(self, stops: Sequence[str]) -> None:
        self._patterns = [_Pattern(stop) for stop in stops]
        self.held = 0

    def advance(self, piece: str, *, may_stop: bool) -> StopMatch | None:
        """Take in the next piece. With may_stop False, matches that end in it do not count."""
        best: StopMatch | None = None
        for pattern in self._patterns:
            end = pattern.advance(piece, len(piece) if best is None else best.end, may_stop)
            if end is not None and (best is None or (end, -len(pattern.stop)) < (best.end, -len(best.stop))):
                best = StopMatch(pattern.stop, end)
        self.held = max(pattern.matched for pattern in self._patterns)
        return best


class _Pattern:
    """One stop string; `matched` characters of it stand at the end of the text so far."""

    __slots__ = ("_fallback", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._fallback = _fallbacks(stop)

    def advance(self, piece: str, limit: int, may_stop: bool) -> int | None:
        """Where the string first ends in piece[:limit]; None if it does not, or may not."""
        stop, fallback, matched = self.stop, self._fallback, self.matched
        # Most pieces do not even contain the first character: that is settled without a loop.
        at = 0 if matched else piece.find(stop[0], 0, limit)
        for index in range(at if at >= 0 else limit, limit):
            character = piece[index]
            while matched and stop[matched] != character:
                matched = fallback[matched - 1]
            matched += stop[matched] == character
            if matched == len(stop):
                if may_stop:
                    return index + 1
                matched = fallback[-1]
        self.matched = matched
        return None


def _fallbacks(stop: str) -> list[int]:
    """For each prefix of the string: the length of its longest true prefix that is also its end."""
    lengths = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = lengths[length - 1]
        length += stop[index] == stop[length]
        lengths[index] = length
    return lengths

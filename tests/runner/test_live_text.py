from __future__ import annotations

from types import MappingProxyType

from streamrunner.runner.job_events import LogEvent, ResyncEvent, TokenDelta, TokensEvent
from streamrunner.runner.live_text import LiveText


def tokens(*deltas: tuple[int, int, int, int, str]) -> TokensEvent:
    """(row, claim, choice, at, text): a token a character."""
    made = tuple(TokenDelta(*one[:4], tuple(range(len(one[4]))), one[4]) for one in deltas)
    return TokensEvent(type="tokens", time=1, cursor="c", by="w", step="1-1", deltas=made)


def ended(row: int) -> LogEvent:
    data = MappingProxyType({"row": row})
    return LogEvent(type="request.completed", time=1, cursor="c", data=data, seq=1, v=1, by="w")


def test_deltas_join_to_the_text_of_each_choice() -> None:
    live = LiveText()
    assert live.apply(tokens((0, 1, 0, 0, "ab"), (0, 1, 1, 0, "x"), (3, 1, 0, 0, "?"))) == [(0, 0), (0, 1), (3, 0)]
    live.apply(tokens((0, 1, 0, 2, "c")))
    assert (live.text(0), live.text(0, 1), live.text(3), live.text(7)) == ("abc", "x", "?", "")
    assert live.num_tokens(0) == 3


def test_a_repeat_changes_nothing() -> None:
    live = LiveText()
    for _ in range(2):
        live.apply(tokens((0, 1, 0, 0, "ab")))
        live.apply(tokens((0, 1, 0, 2, "c")))
    assert live.text(0) == "abc"


def test_a_takeover_starts_the_text_again_and_the_old_owner_is_ignored() -> None:
    live = LiveText()
    live.apply(tokens((0, 1, 0, 0, "abc")))
    live.apply(tokens((0, 2, 0, 0, "ab")))
    assert live.apply(tokens((0, 1, 0, 3, "zzz"))) == []
    live.apply(tokens((0, 2, 0, 2, "d")))
    assert live.text(0) == "abd"


def test_what_follows_a_hole_is_ignored() -> None:
    live = LiveText()
    live.apply(tokens((0, 1, 0, 0, "ab")))
    assert live.apply(tokens((0, 1, 0, 5, "far"))) == []
    assert live.apply(tokens((1, 1, 0, 4, "late"))) == []
    assert (live.text(0), live.text(1)) == ("ab", "")


def test_rows_that_ended_are_forgotten_and_a_resync_forgets_all() -> None:
    live = LiveText()
    live.apply(tokens((0, 1, 0, 0, "a"), (1, 1, 0, 0, "b")))
    live.apply(ended(0))
    assert (live.text(0), live.text(1)) == ("", "b")
    live.apply(ResyncEvent(type="resync", time=1, cursor="c", data=MappingProxyType({"reason": "r"})))
    assert live.text(1) == ""

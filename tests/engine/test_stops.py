"""A stop string is found at its last character, in whatever pieces the text comes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from streamrunner.engine.stops import StopMatch, StopSearch

letters = st.text("ab", max_size=30)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4, unique=True)


def search(pieces: list[str], stops: list[str]) -> tuple[str, int] | None:
    """The match and where it ends in the whole text."""
    found, before = StopSearch(stops), 0
    for piece in pieces:
        match = found.advance(piece, may_stop=True)
        if match is not None:
            return match.stop, before + match.end
        before += len(piece)
    return None


def by_hand(text: str, stops: list[str]) -> tuple[str, int] | None:
    for end in range(1, len(text) + 1):
        here = [stop for stop in stops if text[:end].endswith(stop)]
        if here:
            return max(here, key=len), end
    return None


@given(text=letters, stops=stop_lists, cuts=st.lists(st.integers(0, 30), max_size=8))
def test_pieces_do_not_matter(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(edges)]
    assert search(pieces, stops) == by_hand(text, stops)


@given(text=letters, stops=stop_lists)
def test_held_is_the_longest_end_of_the_text_that_may_become_a_stop(text: str, stops: list[str]) -> None:
    found = StopSearch(stops)
    if found.advance(text, may_stop=True) is not None:
        return
    true_prefixes = {stop[:length] for stop in stops for length in range(1, len(stop))}
    held = [length for length in range(1, len(text) + 1) if text[-length:] in true_prefixes]
    assert found.held == max(held, default=0)


def test_the_earliest_of_several_wins_and_the_longest_of_those_that_end_together() -> None:
    assert StopSearch(["world", "lo"]).advance("hello world", may_stop=True) == StopMatch("lo", 5)
    assert StopSearch(["b", "ab"]).advance("xab", may_stop=True) == StopMatch("ab", 3)


def test_a_match_that_may_not_stop_is_passed_over_but_can_begin_the_next() -> None:
    found = StopSearch(["aa"])
    assert found.advance("aa", may_stop=False) is None
    assert found.held == 1
    assert found.advance("a", may_stop=True) == StopMatch("aa", 1)


def test_characters_beyond_the_basic_plane_and_newlines() -> None:
    assert search(["one\n", "\ntwo"], ["\n\n"]) == ("\n\n", 5)
    assert search(["ab🙂", "🙂c"], ["🙂🙂"]) == ("🙂🙂", 4)

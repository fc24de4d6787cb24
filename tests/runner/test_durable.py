from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamrunner.runner.durable import ChoiceKey, fold_steps
from streamrunner.sinks.wire import StepDelta, StepEntry

KEY = ChoiceKey(0, 0)


def entry(*deltas: StepDelta, worker: str = "a", n: int = 1) -> StepEntry:
    return StepEntry(worker, 1, n, 0, list(deltas))


def delta(at: int, *tokens: int, claim: int = 1, row: int = 0, choice: int = 0) -> StepDelta:
    return StepDelta(row, claim, choice, at, list(tokens), "")


def tokens(*entries: StepEntry) -> list[int]:
    found = fold_steps(entries, range(1))
    return found[KEY].token_ids if KEY in found else []


def test_deltas_add_up_in_order() -> None:
    assert tokens(entry(delta(0, 1, 2)), entry(delta(2, 3))) == [1, 2, 3]


def test_a_resent_delta_doubles_nothing() -> None:
    assert tokens(entry(delta(0, 1, 2)), entry(delta(0, 1, 2)), entry(delta(2, 3)), entry(delta(2, 3))) == [1, 2, 3]


def test_what_follows_a_hole_is_ignored_until_it_is_filled() -> None:
    assert tokens(entry(delta(0, 1)), entry(delta(5, 9)), entry(delta(6, 9))) == [1]
    assert tokens(entry(delta(0, 1)), entry(delta(5, 9)), entry(delta(0, 1, 2, 3))) == [1, 2, 3]


def test_the_highest_claim_wins_whatever_the_order_of_the_streams() -> None:
    old = entry(delta(0, 1, 2, 3, 4, claim=1))
    new = entry(delta(0, 1, 2, claim=2), delta(2, 7, claim=2), worker="b")
    assert tokens(old, new) == tokens(new, old) == [1, 2, 7]


def test_a_claimer_that_wrote_nothing_for_a_row_leaves_the_older_tokens_valid() -> None:
    old = entry(delta(0, 1, 2), delta(0, 5, row=1))
    new = entry(delta(0, 1, 2, claim=2), worker="b")
    found = fold_steps([old, new], range(2))
    assert found[ChoiceKey(1, 0)].token_ids == [5]


def test_only_the_rows_asked_for_are_kept() -> None:
    found = fold_steps([entry(delta(0, 1), delta(0, 2, row=7), delta(0, 3, choice=1))], range(1))
    assert {key: one.token_ids for key, one in found.items()} == {KEY: [1], ChoiceKey(0, 1): [3]}


def test_logprobs_stay_in_step_with_their_tokens() -> None:
    first = StepDelta(0, 1, 0, 0, [1, 2], "", [["p1"], ["p2"]])
    again = StepDelta(0, 1, 0, 1, [2, 3], "", [["p2"], ["p3"]])
    found = fold_steps([entry(first), entry(again)], range(1))
    assert found[KEY].logprobs == [["p1"], ["p2"], ["p3"]]


@given(st.lists(st.integers(0, 99), min_size=1, max_size=20), st.data())
def test_any_cut_of_a_stream_is_a_prefix_of_the_tokens(output: list[int], data: st.DataObject) -> None:
    """Flushes of any size, some sent twice, then a kill anywhere: what is durable is how the output began."""
    cuts = sorted(data.draw(st.sets(st.integers(1, len(output)))) | {len(output)})
    entries = [entry(delta(start, *output[start:end])) for start, end in zip([0, *cuts], cuts, strict=False)]
    sent = [one for one in entries for _ in range(data.draw(st.integers(1, 2)))]
    killed = data.draw(st.integers(0, len(sent)))
    durable = tokens(*sent[:killed])
    assert durable == output[: len(durable)]
    assert tokens(*sent) == output

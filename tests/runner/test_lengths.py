from __future__ import annotations

import random

import pytest

from streamrunner.runner.lengths import Answer, LengthModel, Survival
from streamrunner.runner.row_work import Kind

SHORT, LONG = Kind(7, 9), Kind(12, 9)
LIMIT = 400


def survival(model: LengthModel, kind: Kind = SHORT, running: tuple[Answer, ...] = ()) -> Survival:
    return model.survivals(running, [kind])[kind]


def test_a_mean_is_learned_from_answers_that_ended() -> None:
    model = LengthModel()
    for made in (100, 200, 300, 400) * 25:
        model.ended(Answer(SHORT, made, LIMIT))
    assert survival(model).mean_share * LIMIT == pytest.approx(250, abs=4)


def test_short_answers_that_end_first_do_not_make_all_look_short() -> None:
    draw = random.Random(1)
    lengths = [draw.choice((20, 400)) for _ in range(400)]
    model = LengthModel()
    for length in lengths:
        if length == 20:
            model.ended(Answer(SHORT, length, LIMIT))
    running = tuple(Answer(SHORT, 380, LIMIT) for length in lengths if length == 400)
    assert survival(model, running=running).mean_share * LIMIT == pytest.approx(sum(lengths) / 400, rel=0.1)


def test_what_is_left_is_what_answers_of_that_length_had_left() -> None:
    model = LengthModel()
    for made in (10, 390) * 50:
        model.ended(Answer(SHORT, made, LIMIT))
    found = survival(model)
    assert found.left(0.0) * LIMIT == pytest.approx(200, abs=8)
    assert found.left(0.5) * LIMIT == pytest.approx(190, abs=8)
    assert found.left(0.999) <= 1 / 64


def test_kinds_are_told_apart_and_one_never_seen_borrows_from_those_most_like_it() -> None:
    model = LengthModel()
    for _ in range(100):
        model.ended(Answer(SHORT, 40, LIMIT))
        model.ended(Answer(LONG, 360, LIMIT))
    assert survival(model, SHORT).mean_share < 0.2
    assert survival(model, LONG).mean_share > 0.8
    assert survival(model, Kind(8, 9)).mean_share < 0.2
    assert survival(model, Kind(11, 9)).mean_share > 0.8


def test_without_any_ended_answer_the_limit_is_what_is_expected() -> None:
    assert survival(LengthModel()).mean_share == 1.0
    assert survival(LengthModel(), running=(Answer(SHORT, 5, LIMIT),)).mean_share == 1.0


def test_answers_without_room_for_a_token_do_no_harm() -> None:
    model = LengthModel()
    model.ended(Answer(SHORT, 0, 0))
    assert survival(model).mean_share == 1.0


def test_the_chance_to_go_on_falls_with_every_token() -> None:
    model = LengthModel()
    for made in range(1, 400):
        model.ended(Answer(SHORT, made, LIMIT))
    found = survival(model)
    chances = [found.exceeds(0.25, more / 20) for more in range(20)]
    assert chances == sorted(chances, reverse=True)
    assert (chances[0], found.exceeds(0.25, 0.75)) == (1.0, 0.0)
    assert found.caught_exceeds(0.0) == pytest.approx(found.mean_share)

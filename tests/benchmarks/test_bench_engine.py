"""The engine benchmark in small: its processes run the same work in turn, and its table adds up."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

import pytest

from bench_accuracy import agreement
from bench_engine import BASELINE, CEILING, compare, print_table, ratio

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.model
def test_engines_do_the_same_work_in_turn(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["streamrunner", BASELINE, CEILING]
    peers = compare(smollm2, names, 2, Namespace(new_tokens=2, rounds=1))
    assert [len(peer.rates) for peer in peers] == [1, 1, 1]
    assert all(peer.rates[0] > 0 and peer.load_s > 0 and peer.peak_mib > 100 for peer in peers)
    print_table(2, peers)
    assert "2 requests" in capsys.readouterr().out


def test_a_ratio_is_the_median_of_neighbouring_runs() -> None:
    assert ratio([2.0, 8.0, 3.0], [1.0, 2.0, 3.0], "8.2f").strip() == "2.00"
    assert ratio([1.0], None, "8.2f").strip() == ""


def test_agreement_ends_at_the_first_token_that_differs() -> None:
    assert agreement([[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 9, 4], [5, 6, 7, 8]]) == 6 / 8

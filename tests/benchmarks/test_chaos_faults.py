from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

import chaos_faults
from chaos_kit import trial as trial_module
from chaos_kit.driver import find_runner
from chaos_kit.faults import FAULTS, Fault, kill_both
from chaos_kit.trial import Outcome, Trial, answers_of, median_ms

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def new_trial(folder: Path, name: str) -> Trial:
    (folder / name).mkdir()
    return Trial(find_runner(), folder / name, random.Random(1), timeout_s=90)


def test_a_job_whose_server_and_runner_are_killed_ends_like_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_module, "NUM_ROWS", 48)
    undisturbed = new_trial(tmp_path, "undisturbed").run(None)
    assert len(undisturbed) == 48
    fault = Fault("both", kill_both, times=1, at_edges=True)
    trial = new_trial(tmp_path, "killed")
    assert trial.run(fault) == undisturbed
    outcome = trial.judge(fault, undisturbed)
    assert (outcome.faults, outcome.rows) == (1, 48)
    assert outcome[2:6] == (0, 0, 0, [])


def test_what_is_lost_doubled_or_wrong_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_module, "NUM_ROWS", 8)
    trial = new_trial(tmp_path, "spoiled")
    undisturbed = trial.run(None)
    output = tmp_path / "spoiled" / "out.jsonl"
    first, second, *rest = output.read_bytes().splitlines(keepends=True)
    word = next(iter(answers_of([trial.lines[0]]).values()))[0].split()[0].encode()
    output.write_bytes(b"".join([first.replace(word, b"other"), *rest, rest[-1]]))
    assert second not in output.read_bytes()
    outcome = trial.judge(FAULTS[0], undisturbed)
    assert (outcome.lost, outcome.doubled, outcome.wrong) == (1, 1, 1)


def test_a_row_of_the_table_says_what_was_unsound(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome(3, 192, 0, 0, 0, ["exit code 4"], 20_000, 12, [1000, 3000])
    chaos_faults._print_row(FAULTS[0], [outcome, outcome])
    row, *more = capsys.readouterr().out.splitlines()
    assert row.split()[-10:] == ["2", "6", "384", "0", "0", "0", "2", "40000", "24", "2.0"]
    assert more == ["  unsound: exit code 4"] * 2


def test_no_recovery_is_told_where_none_was_needed() -> None:
    assert median_ms([]) == "-"

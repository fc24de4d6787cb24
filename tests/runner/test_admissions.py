from __future__ import annotations

import os
from typing import TYPE_CHECKING

from streamrunner.engine.params import SamplingParams
from streamrunner.runner.admissions import AdmissionFile
from streamrunner.runner.flight import ChoiceRun, RowRun
from streamrunner.runner.rows import Row

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

RUN = RowRun(
    Row(7, "c", "completion", prompt="x"), "1-0", 3, 2, [1, 2], SamplingParams(n=2),
    [ChoiceRun("7.0.3"), ChoiceRun("7.1.3", token_ids=[5, 6, 7])],
)  # fmt: skip


def test_every_admission_is_one_line_with_what_was_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "admissions.txt"
    monkeypatch.setenv("RUNNER_ADMISSIONS_FILE", str(path))
    file = AdmissionFile.from_env("job_x")
    file.note(RUN, 0)
    file.note(RUN, 1)
    assert path.read_text() == f"job_x 7 0 2 3 0 {os.getpid()}\njob_x 7 1 2 3 3 {os.getpid()}\n"


def test_an_earlier_process_of_the_job_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "admissions.txt"
    path.write_text("job_x 0 0 1 1 0 1\n")
    AdmissionFile(path, "job_x").note(RUN, 0)
    assert len(path.read_text().splitlines()) == 2


def test_nothing_is_written_without_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for value in (None, ""):
        if value is not None:
            monkeypatch.setenv("RUNNER_ADMISSIONS_FILE", value)
        AdmissionFile.from_env("job_x").note(RUN, 0)
    assert list(tmp_path.iterdir()) == []

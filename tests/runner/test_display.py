from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace

import pytest

from streamrunner.runner import display as module
from streamrunner.runner.display import Display, describe
from streamrunner.runner.fold import JobState, WorkerState


class Terminal(io.StringIO):
    """A stderr that somebody sits at."""

    def isatty(self) -> bool:
        return True


def working(completed: int = 3, failed: int = 0, rate: float = 40.0, eta: float | None = 7.2) -> JobState:
    progress = {"phase": "running", "running": 4, "output_tokens_per_s": rate, "eta_s": eta, "drain_s": 1.0}
    return JobState(
        num_rows=10, completed=completed, failed=failed, output_tokens=500,
        workers={"a": WorkerState(1, "h", 1, progress=progress), "gone": WorkerState(1, "h", 2, alive=False)},
    )  # fmt: skip


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_the_facts_are_rows_tokens_rate_and_time_left() -> None:
    assert describe(working(), "") == "4 running  500 tokens  40 tok/s  ~7 s left"
    assert describe(working(failed=2, eta=4000.0), "").endswith("~1 h 6 min left  2 failed")


def test_nothing_is_promised_while_nothing_is_known() -> None:
    assert "left" not in describe(working(eta=None), "")


def test_while_no_worker_works_the_phase_is_told() -> None:
    assert describe(JobState(num_rows=10), "loading the model") == "loading the model"
    assert describe(JobState(num_rows=10), "") == "waiting for a worker"
    loading = JobState(num_rows=10, workers={"a": WorkerState(1, "h", 1, progress={"phase": "loading m"})})
    assert describe(loading, "") == "loading m"


def test_two_workers_add_up() -> None:
    state = working()
    state.workers["b"] = WorkerState(1, "h", 3, progress=state.workers["a"].progress)
    assert describe(state, "").startswith("8 running  500 tokens  80 tok/s  ~4 s left")


def test_without_a_terminal_a_line_comes_now_and_then(
    capsys: pytest.CaptureFixture[str], clock: SimpleNamespace
) -> None:
    with Display() as display:
        for clock.now in (1.0, 4.9, 5.0, 5.5, 9.9):
            display.update(working())
        clock.now = 10.0
        display.update(working())  # nothing new to say
        display.update(working(completed=5))
    written = capsys.readouterr()
    assert written.out == ""
    assert [line.split("  ")[0] for line in written.err.splitlines()] == ["3/10 rows", "5/10 rows"]


def test_the_last_line_has_all_rows_whenever_it_comes(
    capsys: pytest.CaptureFixture[str], clock: SimpleNamespace
) -> None:
    with Display() as display:
        clock.now = 5.0
        display.update(working())
        display.finish(working(completed=10))
    assert capsys.readouterr().err.splitlines()[-1] == "10/10 rows  500 tokens"


@pytest.mark.parametrize("width", [30, 50, 80, 200])
def test_a_narrow_terminal_gets_one_line_all_the_same(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    with Display() as display:
        display.update(working(failed=2))
    frames = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]", stderr.getvalue())]
    shown = [frame for frame in frames if "rows" in frame]
    assert all("5/10" in frame and len(frame.rstrip()) <= width for frame in shown)
    assert shown


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str], clock: SimpleNamespace) -> None:
    with Display(quiet=True) as display:
        clock.now = 100.0
        display.say("hello")
        display.update(working())
    assert capsys.readouterr() == ("", "")


def test_a_job_without_rows_has_no_progress(capsys: pytest.CaptureFixture[str], clock: SimpleNamespace) -> None:
    with Display() as display:
        clock.now = 100.0
        display.update(JobState())
    assert capsys.readouterr().err == ""


def test_text_of_rows_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Display() as display:
        display.say("line 7: \x1b]0;owned\x07[red]\x1b[31mtext")
    assert capsys.readouterr().err == "line 7: [red]text\n"


def test_on_a_terminal_a_bar_counts_rows_and_lines_go_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    with Display() as display:
        display.update(working())
        display.say("[bold]note[/bold] \x1b[2J:smile:")
        display.update(working(completed=10))
    shown = stderr.getvalue()
    assert "10/10" in shown
    assert "[bold]note[/bold] :smile:" in shown
    assert "\x1b[2J" not in shown

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, NoReturn

import click
import pytest
import redis

from streamrunner.engine.errors import EngineError
from streamrunner.runner.cli.fail import exit_code_of, guarded
from streamrunner.runner.errors import ExitCode, RunnerError
from streamrunner.sinks.errors import LogUnreachable, SinkError

if TYPE_CHECKING:
    from collections.abc import Callable


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def command() -> NoReturn:
        raise error

    return command


FORESEEN = [
    (RunnerError("input_missing", "there is no input file x"), ExitCode.INVALID, "[input_missing]"),
    (RunnerError("stopped", "stopped", ExitCode.STOPPED), ExitCode.STOPPED, "[stopped]"),
    (LogUnreachable("no answer"), ExitCode.LOG_UNREACHABLE, "[log_unreachable]"),
    (SinkError("job_not_found", "no such job"), ExitCode.INVALID, "[job_not_found]"),
    (SinkError("output_exists", "holds something else"), ExitCode.INVALID, "[output_exists]"),
    (SinkError("output_disk_full", "no room"), ExitCode.STOPPED, "[output_disk_full]"),
    (SinkError("data_dir_locked", "in use"), ExitCode.LOG_UNREACHABLE, "[data_dir_locked]"),
    (EngineError("model_not_found", "no such model"), ExitCode.INVALID, "[model_not_found]"),
    (redis.ConnectionError("refused"), ExitCode.LOG_UNREACHABLE, "[log_unreachable]"),
    (redis.TimeoutError("slow"), ExitCode.LOG_UNREACHABLE, "[log_unreachable]"),
]


@pytest.mark.parametrize(("error", "code", "shown"), FORESEEN, ids=[shown for _, _, shown in FORESEEN])
def test_a_foreseen_error_is_one_line_and_its_exit_code(
    error: Exception, code: ExitCode, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(raising(error)) == code
    written = capsys.readouterr()
    assert written.out == ""
    [line] = written.err.splitlines()
    assert line.startswith("error: ")
    assert line.endswith(shown)


def test_what_nobody_foresaw_is_a_bug_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUNNER_TRACEBACK", raising=False)
    assert guarded(raising(ZeroDivisionError("oops"))) == ExitCode.INTERNAL
    shown = capsys.readouterr().err
    assert "ZeroDivisionError: oops [internal]" in shown
    assert "Traceback" not in shown
    monkeypatch.setenv("RUNNER_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        guarded(raising(ZeroDivisionError("oops")))


def test_wrong_usage_is_2_and_a_key_that_interrupts_75(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(click.UsageError("no such option"))) == ExitCode.USAGE
    assert "no such option" in capsys.readouterr().err
    assert guarded(raising(KeyboardInterrupt())) == ExitCode.STOPPED
    assert guarded(raising(click.Abort())) == ExitCode.STOPPED


@pytest.mark.parametrize(("result", "code"), [(None, 0), (3, 3), (ExitCode.CANCELLED, 5), ("text", 0)])
def test_a_command_says_its_own_code_or_none(result: object, code: int) -> None:
    assert guarded(lambda: result) == code


def test_an_error_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    guarded(raising(RunnerError("bad_yaml", "the key \x1b[31m\x1b]0;x\x07'a'")))
    assert capsys.readouterr().err == "error: the key 'a' [bad_yaml]\n"


def test_only_our_own_errors_have_a_documented_code() -> None:
    assert exit_code_of(ValueError("x")) is None


def test_a_reader_that_goes_away_is_no_error() -> None:
    program = (
        "import sys\nfrom streamrunner.runner.cli.fail import guarded\n"
        "def command():\n    while True:\n        sys.stdout.write('x' * 65536)\n        sys.stdout.flush()\n"
        "sys.exit(guarded(command))"
    )
    reading, writing = os.pipe()
    process = subprocess.Popen([sys.executable, "-P", "-c", program], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    os.read(reading, 10)
    os.close(reading)
    assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 0

"""The command line itself: verbs, their suggestions, and what is imported for them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from streamrunner.runner.cli.fail import guarded
from streamrunner.runner.cli.main import _VERBS, cli

if TYPE_CHECKING:
    from pathlib import Path

VERBS = list(_VERBS)


def run(*arguments: str) -> int:
    return guarded(lambda: cli(list(arguments), standalone_mode=False))


@pytest.mark.parametrize(
    ("typed", "meant"), [("sbmit", "submit"), ("state", "status"), ("result", "results"), ("pasue", "pause")]
)
def test_an_unknown_verb_is_answered_with_the_one_that_was_meant(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed, "job.yaml") == 2
    shown = capsys.readouterr().err
    assert f"there is no verb '{typed}'. Did you mean `runner {meant}`?" in shown
    assert sum(line.startswith("Error:") for line in shown.splitlines()) == 1


def test_a_verb_like_nothing_else_leads_to_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("frobnicate") == 2
    assert "`runner --help` lists the verbs" in capsys.readouterr().err


def test_the_help_lists_every_verb_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert [
        line.split()[0] for line in shown.split("Verbs:")[1].splitlines() if line.startswith("  ") and line[2] != " "
    ] == VERBS


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "completion"])
def test_every_verb_has_a_help_and_the_options_of_the_log(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(verb, "--help") == 0
    shown = capsys.readouterr().out
    assert "--redis-url" in shown
    assert "--data-dir" in shown


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("streamrunner ")


@pytest.mark.parametrize("verb", ["status", "watch", "events", "results", "cancel", "pause", "resume"])
def test_a_job_that_nobody_submitted_is_4_whoever_asks(
    verb: str, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(verb, "nosuch", "--data-dir", str(data_dir)) == 4
    written = capsys.readouterr()
    assert written.out == ""
    [line] = written.err.splitlines()
    assert line.startswith("error: ")
    assert line.endswith("[job_not_found]")


@pytest.mark.parametrize(
    ("url", "says"),
    [("nonsense", "scheme"), ("redis://127.0.0.1:port", "port"), ("unix:///no/socket/here", "no server")],
)
def test_a_log_that_is_not_there_is_69(url: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--redis-url", url) == 69
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert says in line


def test_a_help_text_imports_neither_engine_nor_log() -> None:
    program = (
        "import sys\nfrom streamrunner.runner.cli.fail import guarded\nfrom streamrunner.runner.cli.main import cli\n"
        "guarded(lambda: cli(['--help'], standalone_mode=False))\n"
        "guarded(lambda: cli(['submit', '--help'], standalone_mode=False))\n"
        "heavy = {'torch', 'numba', 'transformers', 'pydantic', 'redis', 'rich'} & set(sys.modules)\n"
        "print('imported:', *sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported:"

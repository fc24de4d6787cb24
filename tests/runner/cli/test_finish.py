"""What holds for every verb: examples that work, completion, settings from the environment and from a file."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from streamrunner.runner.cli.finish import examples_of
from streamrunner.runner.cli.main import _VERBS, cli

if TYPE_CHECKING:
    from streamrunner.sinks.embedded.server import EmbeddedServer

RUNNER = Path(sys.executable).with_name("runner")


def command_of(verb: str) -> click.Command:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    return command


def complete(*words: str, **env: str) -> list[str]:
    """What a TAB at the end of these words offers in bash."""
    asked = {
        **os.environ, "_RUNNER_COMPLETE": "bash_complete", "COMP_WORDS": shlex.join(["runner", *words]),
        "COMP_CWORD": str(len(words)), **env,
    }  # fmt: skip
    done = subprocess.run([RUNNER], env=asked, capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("verb", _VERBS)
def test_every_verb_shows_examples_that_its_own_parser_takes(verb: str) -> None:
    command = command_of(verb)
    examples = examples_of(command)
    assert examples
    for example in examples:
        ours = next(part for part in re.split(r" [|>] ", example) if part.startswith("runner "))
        words = shlex.split(ours)
        assert words[:2] == ["runner", verb]
        command_of(verb).make_context(verb, words[2:], resilient_parsing=False)


@pytest.mark.parametrize("verb", _VERBS)
def test_a_help_asked_for_twice_says_the_same(verb: str) -> None:
    first = command_of(verb).help
    assert command_of(verb).help == first
    assert (first or "").count("Examples:") == 1


@pytest.mark.parametrize("verb", ["list", "status", "watch", "events", "validate", "submit", "retry"])
def test_every_verb_that_reads_has_json(verb: str) -> None:
    assert "--json" in {name for parameter in command_of(verb).params for name in parameter.opts}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_that_shell(shell: str) -> None:
    done = subprocess.run([RUNNER, "completion", shell], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert f"_RUNNER_COMPLETE={shell}_complete" in done.stdout
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)


def test_verbs_and_options_are_completed() -> None:
    assert complete("sta") == ["status"]
    assert set(complete("submit", "--re")) == {"--redis-url"}


def test_jobs_are_completed_from_a_server_that_runs(embedded: EmbeddedServer, data_dir: Path) -> None:
    from streamrunner.runner.submission import PREFIX
    from streamrunner.sinks.directory import JobDirectory
    from streamrunner.sinks.keys import JobKeys
    from streamrunner.sinks.log import JobLog

    JobDirectory(embedded.client(), PREFIX).announce("job_7", "capitals")
    JobLog(embedded, JobKeys("job_7", PREFIX), "t").submit({"name": "capitals"}, 1, [{"first": 0, "count": 1}])
    assert complete("status", "", RUNNER_DATA_DIR=str(data_dir)) == ["last", "capitals", "job_7"]
    assert complete("cancel", "cap", RUNNER_DATA_DIR=str(data_dir)) == ["capitals"]
    assert complete("status", "--data-dir", str(data_dir), "job") == ["job_7"]


def test_completion_starts_no_server_and_never_complains(tmp_path: Path) -> None:
    assert complete("status", "", RUNNER_DATA_DIR=str(tmp_path)) == ["last"]
    assert list(tmp_path.iterdir()) == []
    assert complete("status", "", RUNNER_REDIS_URL="redis://127.0.0.1:1") == ["last"]
    assert complete("status", "", RUNNER_REDIS_URL="nonsense") == ["last"]


def test_a_pipe_that_closes_early_is_no_error(tmp_path: Path) -> None:
    env = {**os.environ, "RUNNER_DATA_DIR": str(tmp_path)}
    for line in (
        "runner --help | head -1",
        "runner validate no.yaml 2>&1 | head -0",
        "runner completion bash | head -1",
    ):
        script = line.replace("runner", str(RUNNER), 1) + "; echo ${PIPESTATUS[0]}"
        done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=30)
        assert done.stderr == ""
        assert int(done.stdout.splitlines()[-1]) in (0, 4, 141)


def test_no_color_is_an_option_of_the_command_and_of_every_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["--no-color", "validate", "nothing.yaml"], ["validate", "--no-color", "nothing.yaml"]):
        monkeypatch.delenv("NO_COLOR", raising=False)
        with pytest.raises(Exception, match=r"nothing\.yaml"):
            cli(words, standalone_mode=False)
        assert os.environ["NO_COLOR"] == "1"
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_the_page_about_the_command_line_lists_all_verbs_and_settings() -> None:
    from streamrunner.runner.cli.config import SETTINGS

    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    listed = re.findall(r"^\| `(\w+)`", page.partition("## Progress")[0], re.MULTILINE)
    assert listed == [*_VERBS, *SETTINGS]
    assert all(f"`{setting.variable}`" in page for setting in SETTINGS.values())

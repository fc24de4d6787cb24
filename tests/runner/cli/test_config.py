from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from streamrunner.runner.cli.config import SETTINGS, config_path, read_config, sources
from streamrunner.runner.cli.fail import guarded
from streamrunner.runner.cli.finish import ENVIRONMENT
from streamrunner.runner.cli.main import cli
from streamrunner.runner.errors import RunnerError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own file, in a home of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    path = tmp_path / "config" / "streamrunner" / "config.yaml"
    path.parent.mkdir(parents=True)
    return path


def resolved(*words: str) -> dict[str, object]:
    """The options that a verb would see."""
    with cli.make_context("runner", list(words)) as group:
        name, command, rest = cli.resolve_command(group, [*group._protected_args, *group.args])
        assert name is not None
        assert command is not None
        with command.make_context(name, rest, parent=group) as ctx:
            return dict(ctx.params)


def test_without_a_file_there_are_no_settings(config: Path) -> None:
    assert config_path() == config
    assert read_config(config) == {}
    config.write_text("\n")
    assert read_config(config) == {}


def test_an_option_wins_over_the_environment_and_that_over_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("redis_url: redis://file\nlog_timeout: 7\nquiet: true\n")
    assert resolved("submit", "job.yaml")["redis_url"] == "redis://file"
    assert (resolved("worker")["log_timeout"], resolved("worker")["quiet"]) == (7.0, True)
    monkeypatch.setenv("RUNNER_REDIS_URL", "redis://env")
    monkeypatch.setenv("RUNNER_LOG_TIMEOUT", "9")
    assert resolved("submit", "job.yaml")["redis_url"] == "redis://env"
    assert resolved("submit", "job.yaml")["log_timeout"] == 9.0
    assert resolved("submit", "job.yaml", "--redis-url", "redis://option")["redis_url"] == "redis://option"


def test_a_relative_folder_starts_from_the_file(config: Path) -> None:
    config.write_text("data_dir: ../data\n")
    assert read_config(config)["data_dir"] == str(config.parent / ".." / "data")


def test_another_file_may_be_named(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("redis_url: redis://other\n")
    assert resolved("--config", str(other), "list")["redis_url"] == "redis://other"
    monkeypatch.setenv("RUNNER_CONFIG", str(other))
    assert config_path() == other
    assert resolved("list")["redis_url"] == "redis://other"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("redis-url: x", "unknown_key", "did you mean `redis_url`?"),
        ("frobnicate: 1", "unknown_key", "there are redis_url, data_dir"),
        ("log_timeout: soon", "invalid_config", "write a number of seconds"),
        ("log_timeout: true", "invalid_config", "write a number of seconds"),
        ("quiet: 1", "invalid_config", "write true or false"),
        ("data_dir: ''", "invalid_config", "write text"),
        ("- a", "bad_yaml", "a list"),
    ],
)
def test_what_is_wrong_with_it_is_said_in_a_line(
    config: Path, text: str, code: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(text)
    assert guarded(lambda: cli(["list"], standalone_mode=False)) == 4
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {config}")
    assert line.endswith(f"[{code}]")
    assert says in line


def test_a_wrong_file_does_not_keep_anybody_from_the_help(config: Path) -> None:
    config.write_text("frobnicate: 1")
    for words in (["--help"], ["list", "--help"]):
        assert guarded(lambda words=words: cli(words, standalone_mode=False)) == 0


def test_a_password_in_a_wrong_value_is_not_repeated(config: Path) -> None:
    config.write_text("redis_url: [redis://user:secret@host]")
    with pytest.raises(RunnerError) as error:
        read_config(config)
    assert "secret" not in error.value.message


def test_where_a_setting_comes_from_can_be_told(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("quiet: true")
    monkeypatch.setenv("RUNNER_DATA_DIR", "x")
    told = sources(read_config(config))
    assert (told["data_dir"], told["quiet"], told["redis_url"]) == ("RUNNER_DATA_DIR", "config.yaml", "default")


def test_every_setting_is_an_option_of_some_verb_with_that_variable() -> None:
    variables: dict[str, object] = dict(ENVIRONMENT)
    for verb in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        variables |= {one.name: one.envvar for one in command.params if one.name and one.envvar}
    assert {name: one.variable for name, one in SETTINGS.items() if name != "no_color"} == {
        name: variables[name] for name in SETTINGS if name != "no_color"
    }

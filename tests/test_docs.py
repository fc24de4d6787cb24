"""The pages do not lie: every command is checked, every link leads somewhere, every table is the code's own.

Commands are taken from fenced bash and console blocks. COMMANDS says how each kind is checked; a command that no
entry knows fails, so that whoever writes one also says what makes it true.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
_INCLUDE = re.compile(r"^<!-- (examples/\S+) -->\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What redis-cli is asked to do in the pages: reading, and nothing else.
_REDIS_READS = {"XRANGE", "XREVRANGE", "XREAD", "XLEN", "HGETALL", "PING"}


def pages() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, check=True, capture_output=True).stdout
    names = {name for name in listed.decode().split("\0") if name and (ROOT / name).exists()}
    return [ROOT / name for name in sorted(names)]


class Command(NamedTuple):
    """One command of one page."""

    page: str
    text: str


def commands() -> Iterator[Command]:
    for page in pages():
        for language, block in _FENCE.findall(page.read_text()):
            if language in ("bash", "console"):
                yield from _commands_of(str(page.relative_to(ROOT)), language, block)


def _commands_of(page: str, language: str, block: str) -> Iterator[Command]:
    for line in re.sub(r"\\\n\s*", " ", block).splitlines():
        text = line.partition(" # ")[0].strip()
        if language == "console":
            # The other lines are what the command printed.
            if text.startswith("$ "):
                yield Command(page, text.removeprefix("$ "))
        elif text and not text.startswith("#"):
            yield Command(page, text)


def check_make(words: list[str]) -> None:
    """The target exists, and its recipe can be expanded with these variables."""
    targets = [word for word in words[1:] if "=" not in word]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE) for target in targets)
    for name, _, value in (word.partition("=") for word in words[1:] if "=" in word):
        assert f"$({name})" in makefile, f"the Makefile does not use {name}"
        if name == "ARGS":
            assert (ROOT / value).exists()


def check_runner(words: list[str]) -> None:
    """The verb exists and has these options and arguments; a job file that is named exists."""
    import click

    from streamrunner.runner.cli.main import cli

    # Exporting options for the verb's own parser says more than comparing names: it refuses a surplus argument too.
    command = cli.get_command(click.Context(cli), words[1])
    assert command is not None, f"there is no verb {words[1]}"
    command.make_context(words[1], words[2:], resilient_parsing=False)
    for word in words[2:]:
        assert not word.startswith("examples/") or (ROOT / word).exists()


def check_redis_cli(words: list[str]) -> None:
    """It only reads."""
    assert _REDIS_READS & set(words), f"{words} is no reading command"


def check_compose(words: list[str]) -> None:
    """The file is there; tests/deploy starts what it describes."""
    assert words[:2] == ["docker", "compose"]
    assert (ROOT / "docker-compose.yml").exists()


def check_kill(words: list[str]) -> None:
    """What tests/runner/test_end_to_end.py does to a running job."""
    assert words[:2] == ["kill", "-9"]


def check_export(words: list[str]) -> None:
    """The variable is one that the command line reads."""
    [assignment] = words[1:]
    name = assignment.partition("=")[0]
    sources = "".join(path.read_text() for path in (ROOT / "runner").rglob("*.py"))
    assert f'"{name}"' in sources, f"nothing reads {name}"


def check_python(words: list[str]) -> None:
    """The script is there; tests/examples and tests/benchmarks run it."""
    assert words[1].startswith(("examples/", "benchmarks/"))
    assert (ROOT / words[1]).exists()


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "make": check_make,
    "runner": check_runner,
    "redis-cli": check_redis_cli,
    "docker": check_compose,
    "export": check_export,
    "kill": check_kill,
    "python": check_python,
}


@pytest.mark.parametrize("command", sorted(set(commands())), ids=lambda command: f"{command.page}: {command.text}")
def test_every_command_of_the_pages_is_true(command: Command) -> None:
    words = shlex.split(command.text)
    assert words[0] in COMMANDS, f"{command.page} shows `{command.text}`: add to COMMANDS how that is checked"
    COMMANDS[words[0]](words)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    # Fenced text is no Markdown: `[[0,1]](x)` there is no link.
    text = _FENCE.sub("", page.read_text())
    broken = [link for link in _LINK.findall(text) if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_example_that_a_page_shows_is_the_file(page: Path) -> None:
    for name, shown in _INCLUDE.findall(page.read_text()):
        assert shown == (ROOT / name).read_text(), name


def test_the_readme_shows_all_consumers() -> None:
    shown = dict(_INCLUDE.findall((ROOT / "README.md").read_text()))
    files = {path for path in (ROOT / "examples" / "consumers").iterdir() if path.suffix in (".sh", ".py", ".mjs")}
    assert {str(path.relative_to(ROOT)) for path in files} <= set(shown)


def test_the_job_of_the_readme_is_the_quickstart() -> None:
    [shown] = [block for language, block in _FENCE.findall((ROOT / "README.md").read_text()) if language == "yaml"]
    assert yaml.safe_load(shown) == yaml.safe_load((ROOT / "examples/quickstart/job.yaml").read_text())


def first_column(page: str) -> list[str]:
    """The code spans in the first column of a page's tables."""
    rows = [line.split("|")[1] for line in (ROOT / page).read_text().splitlines() if line.startswith("|")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_the_log_page_names_every_event_and_every_key() -> None:
    from streamrunner.sinks.events import EVENT_MODELS
    from streamrunner.sinks.keys import JobKeys

    names = {name.replace("<worker>", "w") for name in first_column("docs/log.md")}
    keys = JobKeys("J")
    assert set(EVENT_MODELS) <= names
    assert {keys.log, keys.res, keys.work, keys.claims, keys.done, keys.meta, keys.lease("w"), keys.steps("w")} <= names


def test_the_exit_code_page_lists_the_codes_of_the_code() -> None:
    from streamrunner.runner.errors import ExitCode

    lines = (ROOT / "docs/exit-codes.md").read_text().splitlines()
    listed = [int(found[1]) for line in lines if (found := re.match(r"\| (\d+) \|", line))]
    assert sorted(listed) == sorted(int(code) for code in ExitCode)


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    assert [path.name for path in folder.glob("0*.md") if path.name not in index] == []


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted names that a job file may use, from the models that check it."""
    for name, field in model.model_fields.items():
        inner = [part for part in (field.annotation, *get_args(field.annotation)) if hasattr(part, "model_fields")]
        if inner:
            yield from keys_of(inner[0], f"{prefix}{field.alias or name}.")
        else:
            yield f"{prefix}{field.alias or name}"


def test_the_job_page_lists_the_keys_of_the_code() -> None:
    from streamrunner.runner.spec import JobSpec

    assert sorted(first_column("docs/job-yaml.md")) == sorted(keys_of(JobSpec))


def test_the_engine_page_lists_the_options_of_the_code() -> None:
    from dataclasses import fields

    from streamrunner.engine.config import EngineConfig

    options = (ROOT / "docs/engine.md").read_text().partition("## Options")[2].partition("##")[0]
    listed = re.findall(r"^\| `(\w+)`", options, re.MULTILINE)
    assert sorted(listed) == sorted([*(field.name for field in fields(EngineConfig)), "seed", "cache_dir"])


@pytest.mark.parametrize("page", ["README.md", "docs/job-yaml.md", "docs/outputs.md"])
def test_every_job_file_that_a_page_shows_is_accepted(page: str, tmp_path: Path) -> None:
    from streamrunner.runner.spec import load_spec

    (tmp_path / "requests.jsonl").touch()
    for language, block in _FENCE.findall((ROOT / page).read_text()):
        if language == "yaml":
            (tmp_path / "job.yaml").write_text(block)
            assert load_spec(tmp_path / "job.yaml").name

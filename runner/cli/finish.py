"""What every verb gets, whoever wrote it: examples in its help, completion of jobs, options from the environment."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from streamrunner.runner.cli.common import Where

# option → the variable that sets it, where the option does not say so itself.
ENVIRONMENT = {"log_timeout": "RUNNER_LOG_TIMEOUT", "quiet": "RUNNER_QUIET"}
_EXAMPLES = re.compile(r"^\x08\n(runner (?:.+\n?)+)", re.MULTILINE)


def finished(command: click.Command) -> click.Command:
    """The command with all of it; a second time changes nothing."""
    command.help = _with_examples(inspect.cleandoc(command.help or ""))
    for parameter in command.params:
        if parameter.envvar is None and parameter.name in ENVIRONMENT:
            parameter.envvar = ENVIRONMENT[parameter.name]
            if isinstance(parameter, click.Option):
                parameter.help = f"{(parameter.help or '').rstrip('.')} ({parameter.envvar})."
        if isinstance(parameter, click.Argument) and parameter.name == "job":
            parameter.type = JobName()
    return command


def _with_examples(text: str) -> str:
    r"""A block (`\b`) whose lines begin with `runner` is what the help shows as Examples."""

    def titled(found: re.Match[str]) -> str:
        return "\b\nExamples:\n" + "".join(f"  {line}\n" for line in found[1].splitlines())

    return _EXAMPLES.sub(titled, text, count=1)


def examples_of(command: click.Command) -> list[str]:
    """The command lines that its help shows, without the words that explain them."""
    _, _, block = (command.help or "").partition("\b\nExamples:\n")
    lines = block.partition("\n\n")[0].splitlines()
    return [re.split(r"\s{2,}", line.strip())[0] for line in lines]


class JobName(click.types.StringParamType):
    """A job's id, a unique prefix, a name, or `last`."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Names and ids of the jobs of a log that is up; completing starts no server and never complains."""
        del param
        from click.shell_completion import CompletionItem

        try:
            known = _known_jobs(ctx)
        except Exception:  # noqa: BLE001 - whatever is wrong with the log, a TAB is no place to say so
            known = []
        found = [("last", "the newest job"), *known]
        return [CompletionItem(value, help=what) for value, what in found if value.startswith(incomplete)]


def _known_jobs(ctx: click.Context) -> list[tuple[str, str]]:
    from streamrunner.runner.place import PREFIX
    from streamrunner.sinks.directory import JobDirectory

    reader = running_reader(_where(ctx))
    jobs = JobDirectory(reader, PREFIX).jobs()[::-1] if reader is not None else []
    names = dict.fromkeys(one.name for one in jobs)
    return [*((name, "its newest job") for name in names), *((one.job_id, one.name) for one in jobs)]


def _where(ctx: click.Context) -> Where:
    from streamrunner.runner.cli.common import Where
    from streamrunner.runner.cli.config import default_map
    from streamrunner.runner.place import default_data_dir

    options = {param.name: param for param in ctx.command.params}
    settings = {**default_map(None), **{name: value for name, value in ctx.params.items() if value}}
    for name in ("redis_url", "data_dir"):
        if name in options and not ctx.params.get(name) and (value := options[name].value_from_envvar(ctx)):
            settings[name] = value
    return Where(settings.get("redis_url"), Path(settings.get("data_dir") or default_data_dir()))


def running_reader(where: Where) -> Any:
    """A client of a server that runs already; None where the private one does not."""
    if where.redis_url:
        from streamrunner.sinks.server import ExternalServer

        return ExternalServer(where.redis_url).reader()
    from streamrunner.sinks.embedded.peek import running_socket
    from streamrunner.sinks.embedded.quick import QuickClient

    socket = running_socket(where.data_dir)
    return None if socket is None else QuickClient(socket)

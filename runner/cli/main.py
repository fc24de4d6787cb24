"""The `runner` command: verbs are loaded when called, so that a help text or a status never imports the engine."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from streamrunner.runner.cli.common import no_color_option
from streamrunner.runner.cli.config import default_map
from streamrunner.runner.cli.finish import finished

# verb → module that holds a click command of that name; the one-line help stands here so that listing imports nothing.
_VERBS = {
    "submit": ("submit", "Run a job, or go on with it: the same command again is the whole recovery procedure."),
    "validate": ("validate", "Check a job file and every row of its input, without running anything."),
    "list": ("list_jobs", "Show the jobs of this log."),
    "status": ("status", "Show where a job is."),
    "watch": ("watch", "Follow a job's progress until it ends."),
    "events": ("events", "Print a job's events, token by token, from any point on."),
    "results": ("results", "Print or save a job's result lines, at any time."),
    "cancel": ("control", "Stop a job for good; finished rows are kept."),
    "pause": ("control", "Stop a job for now; `submit` or `resume` goes on with it."),
    "resume": ("control", "Lift a pause."),
    "retry": ("retry", "Give rows that failed, were cancelled or expired another attempt."),
    "priority": ("control", "Let workers prefer a job, or leave it for later."),
    "worker": ("worker", "Add this machine to the jobs of a log; any number of workers share a job's rows."),
    "fsck": ("fsck", "Prove a job from its log, and rebuild what is derived from it."),
    "archive": ("archive", "Move an ended job from the server to files that are still read."),
    "purge": ("purge", "Delete ended jobs from the server; output files stay."),
    "doctor": ("doctor", "Check this machine, the data dir and the log's server, and say what to do."),
    "completion": ("completion", "Print what makes TAB complete verbs, options and jobs."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported one by one, on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of a job's life."""
        del ctx
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one verb; None (a usage error with a suggestion) for an unknown one."""
        del ctx
        if cmd_name not in _VERBS:
            return None
        module = importlib.import_module(f"streamrunner.runner.cli.{_VERBS[cmd_name][0]}")
        name = "list_jobs" if cmd_name == "list" else cmd_name
        command: click.Command = getattr(module, name)
        return finished(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the verb that was meant."""
        import difflib

        if args and args[0] not in _VERBS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], _VERBS, n=1)
            hint = f" Did you mean `runner {close[0]}`?" if close else " `runner --help` lists the verbs."
            ctx.fail(f"there is no verb {args[0]!r}.{hint}")
        if not {"-h", "--help"} & set(args):
            # A help text must not depend on a file that may be wrong.
            settings = default_map(ctx.params.get("config"))
            ctx.default_map = dict.fromkeys(_VERBS, settings)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        del ctx
        with formatter.section("Verbs"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in _VERBS.items()])


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import version

        click.echo(f"streamrunner {version('streamrunner')}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version."
)
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False, exists=True), envvar="RUNNER_CONFIG",
    help="Settings of all verbs (RUNNER_CONFIG); by default $XDG_CONFIG_HOME/streamrunner/config.yaml.",
)  # fmt: skip
@no_color_option
def cli(config: Path | None) -> None:
    """Run offline LLM jobs that survive kill -9, and follow them token by token.

    \b
    runner submit job.yaml        run it; the same command again goes on where it stopped
    runner status last            where it is
    runner events last --follow   tokens as they are made

    JOB is a job's id, a unique prefix of it, its name, or `last`. Without --redis-url (RUNNER_REDIS_URL)
    a private server in --data-dir (RUNNER_DATA_DIR) holds the log. All settings: docs/cli.md, exit codes:
    docs/exit-codes.md.
    """
    del config


def main() -> NoReturn:
    """Entry point of the `runner` command: every foreseen error is one line and a documented exit code."""
    from streamrunner.runner.cli.fail import guarded

    code = guarded(lambda: cli(standalone_mode=False))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):
            stream.flush()
    # Not sys.exit: a model that is still loading in its thread must not hold up (or crash) the end of the process.
    os._exit(code)

"""`runner completion`."""

from __future__ import annotations

import click

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print what makes TAB complete verbs, options, jobs and files.

    \b
    runner completion bash > ~/.local/share/bash-completion/completions/runner
    runner completion zsh > ~/.zfunc/_runner
    runner completion fish > ~/.config/fish/completions/runner.fish

    zsh needs `fpath+=~/.zfunc` before `compinit` in ~/.zshrc; bash 4.4 or newer is needed.
    """
    from click.shell_completion import get_completion_class

    from streamrunner.runner.cli.main import cli

    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"there is no completion for {shell}")
    # The script alone: asking the shell for its version would run it.
    writer = made(cli, {}, "runner", "_RUNNER_COMPLETE")
    click.echo(writer.source_template % writer.source_vars())

"""`runner cancel`, `runner pause`, `runner resume`, `runner priority`: each an event, the same one twice is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streamrunner.runner.cli.common import FoundJob, Where, found_job, where_options

if TYPE_CHECKING:
    from streamrunner.runner.control import Controller


@click.command()
@click.argument("job")
@click.option("--row", "rows", type=click.IntRange(min=0), multiple=True, help="Only this row (numbered from 0).")
@where_options
def cancel(where: Where, job: str, rows: tuple[int, ...]) -> None:
    """Stop a job for good, or some rows of it. Finished rows are kept; open rows end as cancelled.

    Cancelling what is cancelled already is no error; a job that has ended otherwise cannot be cancelled any more.

    \b
    runner cancel last
    runner cancel last --row 17
    """
    with found_job(where, job) as found:
        job_id, controller = found.pointer.job_id, _controller(found)
        if not rows:
            click.echo(f"{job_id} {controller.cancel()}")
            return
        for row in rows:
            was_open = controller.cancel_rows([row])[row]
            click.echo(f"{job_id} row {row} {'cancelled' if was_open else 'has its ending already'}")


@click.command()
@click.argument("job")
@where_options
def pause(where: Where, job: str) -> None:
    """Stop a job for now: its runner keeps all tokens and exits with 75.

    \b
    runner pause last
    """
    with found_job(where, job) as found:
        _controller(found).pause()
        click.echo(f"{found.pointer.job_id} paused: `runner submit` the same file, or `runner resume`, goes on with it")


@click.command()
@click.argument("job")
@where_options
def resume(where: Where, job: str) -> None:
    """Lift a pause; a runner that is attached goes on at once.

    \b
    runner resume last
    """
    with found_job(where, job) as found:
        _controller(found).resume()
        click.echo(f"{found.pointer.job_id} resumed: a runner that `submit`s the same file goes on with it")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("job")
@click.argument("number", type=int)
@where_options
def priority(where: Where, job: str, number: int) -> None:
    """Let `runner worker` prefer a job: a higher number goes first, then the older job. A job begins with 0.

    A worker that runs another job finishes the rows it has taken, and then comes over.

    \b
    runner priority last 10
    runner priority last -5
    """
    with found_job(where, job) as found:
        _controller(found).prefer(number)
        click.echo(f"{found.pointer.job_id} has priority {number}")


def _controller(found: FoundJob) -> Controller:
    from streamrunner.runner.control import Controller

    return Controller(found.server, found.keys, "cli")

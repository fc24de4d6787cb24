"""`runner worker`."""

from __future__ import annotations

import click

from streamrunner.runner.cli.common import Where, opened, where_options


@click.command()
@click.argument("job", required=False)
@click.option("--exit-when-idle", is_flag=True, help="End once no job is open, instead of waiting for the next.")
@click.option("--quiet", "-q", is_flag=True, help="Say nothing but errors.")
@click.option(
    "--log-timeout", default=600.0, show_default=True, metavar="SECONDS", help="Wait this long for a log that is away."
)
@where_options
def worker(where: Where, job: str | None, exit_when_idle: bool, quiet: bool, log_timeout: float) -> int:
    """Add this machine to the jobs of a log: any number of workers share a job's rows, and may come and go.

    \b
    runner worker                    work on every open job, by priority, and wait for more
    runner worker last               work on one job until it has ended
    runner worker --exit-when-idle   work on what is open, then end

    The input must lie under the same path here. Output files are written by the process that submitted the job.
    Ctrl-C, SIGTERM and SIGHUP give the rows back and exit with 75; after a kill -9 another worker goes on with them.
    """
    from streamrunner.runner.display import Display
    from streamrunner.runner.service import WorkerService
    from streamrunner.runner.session import SessionOptions
    from streamrunner.runner.signals import StopFlag

    stop = StopFlag()
    stop.install()
    with opened(where) as server, Display(quiet=quiet) as display:
        for notice in server.notices():
            display.say(f"note: {notice}")
        service = WorkerService(server, SessionOptions(where.data_dir, log_timeout), stop, display, job)
        return service.run(exit_when_idle=exit_when_idle)

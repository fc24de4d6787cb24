"""`runner archive`."""

from __future__ import annotations

import click

from streamrunner.runner.cli.common import Where, opened, where_options
from streamrunner.runner.place import PREFIX


@click.command()
@click.argument("job")
@where_options
def archive(where: Where, job: str) -> None:
    """Move an ended job from the server to files in the data dir, where `status`, `results` and the like still find it.

    Tokens of single steps are left out: the results hold the texts. A submit of the same file says that it is done.

    \b
    runner archive capitals
    """
    from streamrunner.runner.archive import Archiver, archived_already, find_archived
    from streamrunner.runner.purge import Purger
    from streamrunner.sinks.archive import Archives
    from streamrunner.sinks.directory import JobDirectory

    with opened(where) as server:
        client = server.client()
        directory = JobDirectory(client, PREFIX)
        known = find_archived(where.data_dir, directory, job)
        if known is not None:
            raise archived_already(known)
        purger = Purger(server, directory, PREFIX)
        folder = Archiver(client, Archives(where.data_dir), purger, PREFIX).archive(directory.find(job))
    streams = folder.manifest.streams
    size = sum(one.bytes for one in streams.values())
    click.echo(
        f"{folder.manifest.job}: {streams['log'].entries} entries and {streams['results'].entries} results in "
        f"{folder.path} ({size / 1e6:.1f} MB)"
    )

"""`runner retry`."""

from __future__ import annotations

import json

import click

from streamrunner.runner.cli.common import Where, found_job, where_options


@click.command()
@click.argument("job")
@click.option("--codes", default="", metavar="A,B", help="Only rows that failed with one of these codes.")
@click.option("--rows", default="", metavar="1,5-9", help="Only these rows (numbered from 0, as in the events).")
@click.option("--json", "as_json", is_flag=True, help="How many rows are open again, as JSON.")
@where_options
def retry(where: Where, job: str, codes: str, rows: str, as_json: bool) -> None:
    """Give rows without a result another attempt: those that failed, were cancelled, or expired.

    Completed rows are left alone. A job that has ended goes on; `runner submit` of the same file or a `runner worker`
    runs the rows. In the outputs the newest attempt takes the place of the old line.

    \b
    runner retry last                                every row without a result
    runner retry last --codes nan_logits,batch_expired
    runner retry last --rows 17,40-49
    """
    from streamrunner.runner.control import Controller
    from streamrunner.runner.retry import Wanted

    wanted = Wanted(frozenset(filter(None, codes.replace(" ", "").split(","))), parse_rows(rows))
    with found_job(where, job) as found:
        count = Controller(found.server, found.keys, "cli").retry(wanted)
        if as_json:
            click.echo(json.dumps({"id": found.pointer.job_id, "retried": count}))
        elif count:
            how = "`runner submit` the same file, or `runner worker`, runs them"
            click.echo(f"{found.pointer.job_id}: {count} rows are open again: {how}")
        else:
            click.echo(f"{found.pointer.job_id}: no such row is without a result, nothing to retry")


def parse_rows(text: str) -> tuple[range, ...]:
    """Rows as in `1,5-9`. Raises click.UsageError."""
    found = []
    for part in filter(None, text.replace(" ", "").split(",")):
        first, dash, last = part.partition("-")
        if not first.isascii() or not first.isdigit() or (dash and not (last.isascii() and last.isdigit())):
            raise click.UsageError(f"--rows: {part!r} is no row: write numbers and ranges, such as 1,5-9")
        found.append(range(int(first), int(last if dash else first) + 1))
    return tuple(found)

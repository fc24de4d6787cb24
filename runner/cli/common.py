"""Options and look-ups that every verb shares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from streamrunner.runner.place import PREFIX, default_data_dir

if TYPE_CHECKING:
    from streamrunner.sinks.archive import JobFolder
    from streamrunner.sinks.directory import JobDirectory, JobPointer
    from streamrunner.sinks.keys import JobKeys
    from streamrunner.sinks.server import LogServer

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Where:
    """Where the log is: an own Redis, or the private server of a data dir."""

    redis_url: str | None
    data_dir: Path


def where_options(command: F) -> F:
    """--redis-url and --data-dir, as one `where` argument, and --no-color."""

    def make_where(**kwargs: Any) -> Any:
        redis_url, data_dir = kwargs.pop("redis_url"), kwargs.pop("data_dir")
        return command(where=Where(redis_url or None, data_dir or default_data_dir()), **kwargs)

    make_where.__name__, make_where.__doc__ = command.__name__, command.__doc__
    decorated: Any = click.option(
        "--data-dir", type=click.Path(path_type=Path, file_okay=False), envvar="RUNNER_DATA_DIR",
        help="Folder of the private server and of converted models (RUNNER_DATA_DIR).",
    )(make_where)  # fmt: skip
    decorated = no_color_option(decorated)
    decorated = click.option(
        "--redis-url", envvar="RUNNER_REDIS_URL", help="Redis or Valkey that holds the log (RUNNER_REDIS_URL)."
    )(decorated)
    return cast("F", decorated)


def no_color_option(command: F) -> F:
    """--no-color: as NO_COLOR in the environment, which every part of the output obeys."""

    def set_variable(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        if value:
            os.environ["NO_COLOR"] = "1"

    option = click.option(
        "--no-color", is_flag=True, expose_value=False, callback=set_variable, help="No colours (NO_COLOR)."
    )
    return option(command)


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job that a verb was asked about; `reader` makes short reads without importing redis-py."""

    pointer: JobPointer
    keys: JobKeys
    reader: Any
    directory: JobDirectory
    server: LogServer


@contextmanager
def opened(where: Where) -> Iterator[LogServer]:
    """The log's server for the length of a command."""
    from streamrunner.sinks.server import open_server

    server = open_server(where.redis_url, where.data_dir)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def found_job(where: Where, wanted: str, *, reads: bool = False) -> Iterator[FoundJob]:
    """The job that `wanted` means; it is ended first if its time was over.

    reads: the verb changes nothing, so an archived job of the data dir is as good as one on the server.
    """
    from streamrunner.runner.archive import archived_already, find_archived
    from streamrunner.runner.control import Controller
    from streamrunner.sinks.directory import JobDirectory
    from streamrunner.sinks.keys import JobKeys

    with opened(where) as server:
        reader = server.reader()
        directory = JobDirectory(reader, PREFIX)
        folder = find_archived(where.data_dir, directory, wanted)
        if folder is not None:
            if not reads:
                raise archived_already(folder)
            yield _found_in(folder)
            return
        pointer = directory.find(wanted)
        found = FoundJob(pointer, JobKeys(pointer.job_id, PREFIX), reader, directory, server)
        Controller(server, found.keys, "cli").settle()
        yield found


def _found_in(folder: JobFolder) -> FoundJob:
    from streamrunner.sinks.archive_server import ArchiveServer
    from streamrunner.sinks.directory import JobDirectory, JobPointer
    from streamrunner.sinks.keys import JobKeys

    manifest, server = folder.manifest, ArchiveServer(folder, PREFIX)
    pointer = JobPointer(manifest.job, manifest.name, manifest.announced_ms)
    reader: Any = server.reader()
    return FoundJob(pointer, JobKeys(manifest.job, PREFIX), reader, JobDirectory(reader, PREFIX), server)

"""From an entry of `outputs` to the open file or folder, and to what keeps it as the log has it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from streamrunner.runner.export_file import FileExport
from streamrunner.runner.export_parts import PartsExport
from streamrunner.runner.selection import Selection
from streamrunner.runner.spec import type_of_path
from streamrunner.sinks.outputs.append_file import AppendFile
from streamrunner.sinks.outputs.codec import codec_of
from streamrunner.sinks.outputs.formats import AppendFormat, CsvFormat, JsonlFormat
from streamrunner.sinks.outputs.part_formats import LinesPart, ParquetPart, PartFormat
from streamrunner.sinks.outputs.parts import PartsFolder
from streamrunner.sinks.outputs.stores import LocalStore, RemoteStore, is_remote

if TYPE_CHECKING:
    from streamrunner.runner.job import JobContext
    from streamrunner.runner.result_feed import ResultFeed
    from streamrunner.runner.row_index import Applied
    from streamrunner.runner.spec import OutputSpec

_FORMATS: dict[str, type[AppendFormat]] = {"jsonl": JsonlFormat, "csv": CsvFormat}


class Export(Protocol):
    """Keeps an output as the log has it."""

    def settle(self) -> None:
        """Make it what it should be."""

    def advance(self, applied: Applied) -> None:
        """Take in what the log has just said."""


def output_place(job: JobContext, output: OutputSpec) -> str:
    """Where the output is: relative paths start from the job file's folder."""
    return output.path if is_remote(output.path) else str(job.base / Path(output.path).expanduser())


def open_output(job: JobContext, output: OutputSpec) -> AppendFile | PartsFolder:
    """The output, held by this process. Raises SinkError (`output_locked`, `output_exists`, `output_unwritable`)."""
    place, owner = output_place(job, output), job.job_id.removeprefix("job_")
    if not is_remote(place) and output.format != "parquet":
        return AppendFile(Path(place), owner, _FORMATS[output.format](), codec_of(Path(place)))
    store = RemoteStore(place) if is_remote(place) else LocalStore(Path(place))
    return PartsFolder(store, owner, f"{output.rows}, by {output.order}", part_format(output.format, place))


def export_to(target: AppendFile | PartsFolder, output: OutputSpec, feed: ResultFeed) -> Export:
    """What keeps the open output as the feed has it."""
    selection = Selection(output.rows, output.order)
    if isinstance(target, PartsFolder):
        return PartsExport(target, selection, feed, output.rows_per_part)
    return FileExport(target, selection, feed)


def type_of(name: str) -> str:
    """What a file of this name holds: JSON lines unless its suffix says otherwise."""
    return type_of_path(name) or "jsonl"


def part_format(kind: str, place: str) -> PartFormat:
    """The format of a whole file, compressed as the last suffix of `place` says."""
    if kind == "parquet":
        return ParquetPart()
    path = PurePosixPath(place)
    codec = codec_of(path)
    return LinesPart(_FORMATS[kind](), codec, f".{kind}{path.suffix if codec else ''}")

"""From an entry of `outputs` to the open file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from streamrunner.sinks.outputs.append_file import AppendFile
from streamrunner.sinks.outputs.codec import codec_of
from streamrunner.sinks.outputs.formats import AppendFormat, CsvFormat, JsonlFormat

if TYPE_CHECKING:
    from streamrunner.runner.job import JobContext
    from streamrunner.runner.spec import OutputSpec

_FORMATS: dict[str, type[AppendFormat]] = {"jsonl": JsonlFormat, "csv": CsvFormat}


def output_path(job: JobContext, output: OutputSpec) -> Path:
    """Where the output is: relative paths start from the job file's folder."""
    return job.base / Path(output.path).expanduser()


def open_file(job: JobContext, output: OutputSpec) -> AppendFile:
    """The output's file, held by this process. Raises SinkError as `AppendFile` does."""
    path = output_path(job, output)
    return AppendFile(path, job.job_id.removeprefix("job_"), _FORMATS[output.format](), codec_of(path))

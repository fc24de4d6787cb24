"""Every file of an input as one whose rows can be read in place: as it lies there, or as a copy in the spool.

local or remote JSON lines ────────────────────────────────▶ read where they are
tables, text, packed files ──rows as JSON lines────────────▶ spool
standard input, http       ──bytes────────────▶ spool ─────▶ (then as above)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.formats import Form, detect
from streamrunner.runner.packing import unpacked
from streamrunner.runner.parquet import parquet_rows
from streamrunner.runner.sources import STDIN, Source, find_sources, is_url, open_source
from streamrunner.runner.spool import FOLDER, Spool
from streamrunner.runner.tables import DELIMITERS, Use, csv_rows, text_rows
from streamrunner.runner.template import template_columns
from streamrunner.sinks.wire import encode_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrunner.runner.job import JobContext
    from streamrunner.runner.spec import InputSpec, JobSpec

_CHUNK = 1 << 20


# Told what is being done, and with how many rows so far (0 where they are not counted).
Report = Callable[[str, int], None]


def silent(_doing: str, _num_rows: int) -> None:
    """Tell nobody."""


class Intake:
    """Reads what a job calls its input. note: told what a user should know and no error is."""

    def __init__(
        self,
        spec: JobSpec,
        base: Path,
        data_dir: Path,
        note: Callable[[str], None] | None = None,
        report: Report = silent,
    ) -> None:
        self._spec = spec
        self._base = base
        self._spool = Spool(data_dir)
        self._note = note or (lambda _message: None)
        self._report = report

    def sources(self) -> Iterator[Source]:
        """The files, in order; one is copied when it is asked for. Raises RunnerError."""
        if self._spec.input is None:
            lines = (encode_json(request) + b"\n" for request in self._spec.requests or ())
            yield Source(str(self._spool.keep(lines).path.absolute()), "`requests`")
            return
        for source in find_sources(self._spec.input.path, self._base):
            yield self._in_place(source, self._spec.input)

    def _in_place(self, source: Source, asked: InputSpec) -> Source:
        if not source.is_copied:
            form = detect(source, asked.format)
            return source if form.is_plain_lines else self._converted(source, form, asked)
        with open_source(source.uri) as file:
            copy = self._spool.keep(self._told(_chunks(file), f"copying {source.name}", every=1))
        copied = source._replace(uri=str(copy.path.absolute()))
        made = None
        try:
            form = detect(copied, asked.format)
            made = copied if form.is_plain_lines else self._converted(copied, form, asked)
            return made
        finally:
            if copy.is_new and made != copied:
                copy.path.unlink(missing_ok=True)

    def _converted(self, source: Source, form: Form, asked: InputSpec) -> Source:
        use = Use(None if asked.prompt is None else template_columns(asked.prompt), self._spec.task)
        with open_source(source.uri) as file, unpacked(file, form.packing, source.name) as content:
            rows = self._rows(content, form, source.name, use)
            copy = self._spool.keep(self._told(rows, f"converting {source.name}", every=256))
        return source._replace(uri=str(copy.path.absolute()))

    def _told(self, parts: Iterator[bytes], doing: str, every: int) -> Iterator[bytes]:
        for number, part in enumerate(parts):
            if number % every == 0:
                self._report(doing, number if every > 1 else 0)
            yield part

    def _rows(self, file: BinaryIO, form: Form, name: str, use: Use) -> Iterator[bytes]:
        if form.kind == "parquet":
            if form.packing != "plain":
                raise RunnerError(
                    "unknown_format", f"{name} is Parquet in a packed file: unpack it, it is packed inside"
                )
            return parquet_rows(file, name, use, self._note)
        if form.kind == "text":
            return text_rows(file, use)
        return csv_rows(file, DELIMITERS[form.kind], name, use, self._note) if form.kind != "jsonl" else _chunks(file)


def in_reach(uri: str, job: JobContext) -> str:
    """Where this process reads a range's file: a copy that lies in another machine's data dir is made again in its own.

    Raises RunnerError (`input_missing`) if what it was made from is not here either.
    """
    path = Path(uri)
    if is_url(uri) or path.parent.name != FOLDER or path.exists() or job.data_dir is None:
        return uri
    spool = Spool(job.data_dir)
    found = spool.find(path.name) or _made_again(path.name, job, spool)
    return str(found.absolute())


def _made_again(name: str, job: JobContext, spool: Spool) -> Path:
    where = "the rows in the job file" if job.spec.input is None else job.spec.input.path
    advice = "put the input in the same place here, or share the data dir of the machine that submitted the job"
    if where == STDIN:
        raise RunnerError(
            "input_missing", f"the job's rows came from standard input, and their copy is not here: {advice}"
        )
    try:
        for _ in Intake(job.spec, job.base, spool.folder.parent).sources():
            pass
    except RunnerError as error:
        raise RunnerError(error.code, f"{error.message}; the rows are a copy of it: {advice}") from error
    found = spool.find(name)
    if found is None:
        raise RunnerError("input_changed", f"{where} here is not what was submitted: {advice}")
    return found


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(_CHUNK), b"")

"""Rows from bytes: streamed, and cut into ranges that can be read again and checked.

    file  │ row 0 │ row 1 │ … │ row 63 ║ row 64 │ …            a range: first, count, uri, offset, bytes, sha256, line
          offset ───────── bytes ──────▶

Blank lines are not rows. Rows of several files are numbered on, lines begin anew in each.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.intake import Intake, Report, in_reach, silent
from streamrunner.runner.lines import LineReader
from streamrunner.runner.outputs_apart import check_outputs_apart
from streamrunner.runner.row_work import RowWork, row_work, sum_by_kind
from streamrunner.runner.rows import Row, RowError, parse_row
from streamrunner.runner.sources import STDIN, open_source, shown_uri
from streamrunner.runner.unique import CustomIds, Repeated, repeated

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from streamrunner.runner.job import JobContext
    from streamrunner.runner.lines import Line
    from streamrunner.runner.sources import Source
    from streamrunner.runner.spec import JobSpec

MIN_ROWS_PER_RANGE, MAX_ROWS_PER_RANGE = 8, 64
# A worker reads a range whole.
MAX_RANGE_BYTES = 8 << 20
MAX_KEPT_ERRORS = 1_000

_SHOWN_ERRORS = 3
_COMPARED_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class RangeSpec:
    """Rows [first, first + count) and where they stand: in the `bytes` bytes from `offset` (physical `line`) on,
    behind `skip` other rows; those and what follows the last one went to other ranges when this one was split.
    `work` is what they ask of the engine, by kind (`row_work.sum_by_kind`).

    attempts: for a range that a retry made, the attempt of each row (as text) that is meant; empty for all others.
    """

    first: int
    count: int
    uri: str
    offset: int
    bytes: int
    sha256: str
    line: int
    skip: int = 0
    attempts: dict[str, int] = field(default_factory=dict)
    work: list[list[int]] = field(default_factory=list)


class RawRow(NamedTuple):
    """One row's bytes, its number (from 0) and its physical line (from 1)."""

    row: int
    line: int
    raw: bytes


@dataclass(slots=True)
class InputScan:
    """What a look at every row found. `errors` keeps the first thousand, `num_errors` counts all; `notices` are what a
    user should know and no error is; `files` names the input's files where there are several, by uri.
    """

    rows: int = 0
    ranges: list[RangeSpec] = field(default_factory=list)
    errors: list[RowError] = field(default_factory=list)
    num_errors: int = 0
    sha256: str = ""
    kinds: set[str] = field(default_factory=set)
    notices: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


class InvalidInput(RunnerError):
    """An input that no job can be made of. errors: the rows at fault."""

    def __init__(self, code: str, message: str, errors: Iterable[RowError] = ()) -> None:
        super().__init__(code, message)
        self.errors = tuple(errors)


def scan_input(spec: JobSpec, base: Path, data_dir: Path, report: Report = silent) -> InputScan:
    """Check the structure of every row and cut the input into ranges, in flat memory (8 bytes a row).

    report: told often what is being done and with how many rows so far; what it raises ends the scan.

    Raises RunnerError (whatever `Intake.sources` does, output_is_input) and InvalidInput (empty_file,
    duplicate_custom_id, url_mismatch, invalid_rows, no_valid_rows).
    """
    check_outputs_apart(spec, base)
    scan = InputScan()
    scanner = _Scanner(spec, scan, report)
    for source in Intake(spec, base, data_dir, scan.notices.append, report).sources():
        scanner.run(source)
    scanner.finish()
    if scan.rows == 0:
        again = ", and the same rows again to go on with a job" if _is_piped(spec) else ""
        raise InvalidInput("empty_file", f"{_shown(spec)} has no rows: give it at least one line{again}")
    _apply_policy(spec, scan)
    return scan


def read_range(found: RangeSpec, job: JobContext | None = None) -> list[RawRow]:
    """The rows of a range. job: lets a copied input be found or made again in this process's own data dir.

    Raises RunnerError (`input_changed`, `input_missing`) if they are not what was submitted.
    """
    uri = found.uri if job is None else in_reach(found.uri, job)
    with open_source(uri, found.offset, found.bytes) as file:
        reader = LineReader(file, found.line, found.bytes)
        lines = [line for line in reader if line.raw]
    if reader.cut().sha256 != found.sha256:
        last = found.first + found.count - 1
        raise RunnerError(
            "input_changed",
            f"rows {found.first}-{last} of {shown_uri(uri)} (from line {found.line}) are not what was submitted: "
            "restore the file and run the same command again, or submit it afresh with --new",
        )
    rows = [RawRow(row, line.number, line.raw) for row, line in enumerate(lines, found.first - found.skip)]
    return rows[found.skip : found.skip + found.count]


def range_size(num_before: int) -> int:
    """Rows of the range that begins behind `num_before` rows: an eighth of these, so that a small job too has enough
    ranges to be shared, within bounds that keep the number of ranges small.
    """
    return min(max(num_before // 8, MIN_ROWS_PER_RANGE), MAX_ROWS_PER_RANGE)


class _Scanner:
    """One pass over the lines: rows, ranges, errors, and whether every custom_id is unique."""

    def __init__(self, spec: JobSpec, scan: InputScan, report: Report) -> None:
        self._spec = spec
        self._scan = scan
        self._report = report
        self._ids = CustomIds()
        self._whole = hashlib.sha256()
        self._work: list[RowWork] = []
        self._files: dict[str, str] = {}
        self._first_errors: list[tuple[str, RowError]] = []

    def run(self, source: Source) -> None:
        """Take every row of one file."""
        self._files[source.uri] = source.name
        with open_source(source.uri) as file:
            reader = LineReader(file)
            offset = 0
            first, line, wanted = self._scan.rows, 1, range_size(self._scan.rows)
            for one in reader:
                if one.raw:
                    self._take(one, source.uri)
                if self._scan.rows - first >= wanted or reader.num_bytes >= MAX_RANGE_BYTES:
                    offset = self._cut(reader, source.uri, first, offset, line)
                    first, line, wanted = self._scan.rows, reader.next_number, range_size(self._scan.rows)
            self._cut(reader, source.uri, first, offset, line)

    def finish(self) -> None:
        """Once every file was taken. Raises InvalidInput (`duplicate_custom_id`)."""
        scan = self._scan
        scan.sha256 = self._whole.hexdigest()
        if len(self._files) > 1:
            scan.files = self._files
        scan.errors = [replace(error, file=scan.files.get(uri)) for uri, error in self._first_errors]
        self._check_unique()

    def _cut(self, reader: LineReader, uri: str, first: int, offset: int, line: int) -> int:
        """Close a range; the offset of the next one. Bytes without a row belong to none."""
        cut = reader.cut()
        count = self._scan.rows - first
        self._report("checking the rows", self._scan.rows)
        if count:
            self._whole.update(bytes.fromhex(cut.sha256))
            work, self._work = sum_by_kind(self._work), []
            self._scan.ranges.append(RangeSpec(first, count, uri, offset, cut.num_bytes, cut.sha256, line, work=work))
        return offset + cut.num_bytes

    def _take(self, line: Line, uri: str) -> None:
        scan = self._scan
        row = parse_row(line.raw, scan.rows, line.number, self._spec)
        scan.rows += 1
        self._ids.add(row.custom_id)
        if isinstance(row, Row):
            scan.kinds.add(row.kind)
            self._work.append(row_work(row, self._spec.sampling))
            return
        scan.num_errors += 1
        if len(self._first_errors) < MAX_KEPT_ERRORS:
            self._first_errors.append((uri, row))

    def _check_unique(self) -> None:
        for rows in self._ids.suspects().values():
            twice = repeated((row, self._reread(row).custom_id or "") for row in rows[:_COMPARED_ROWS])
            if twice:
                raise self._duplicate(twice[0])

    def _duplicate(self, twice: Repeated) -> InvalidInput:
        first, second = (self._reread(row) for row in twice.rows[:2])
        many = f", {len(twice.rows)} times in all" if len(twice.rows) > 2 else ""
        message = (
            f"custom_id {twice.custom_id!r} stands in {first.where} and again in {second.where} of "
            f"{_shown(self._spec)}{many}: every row needs its own, results are told apart by it"
        )
        error = replace(second, code="duplicate_custom_id", message=message, param="custom_id")
        return InvalidInput(error.code, message, [error])

    def _reread(self, row: int) -> RowError:
        """A row's place and id; whether it could run is not asked."""
        found = self._scan.ranges[bisect_right(self._scan.ranges, row, key=lambda one: one.first) - 1]
        raw = read_range(found)[row - found.first]
        custom_id = parse_row(raw.raw, row, raw.line, self._spec).custom_id
        return RowError(row, raw.line, custom_id, "", "", file=self._scan.files.get(found.uri))


def _shown(spec: JobSpec) -> str:
    """What the user calls the input; rows in place stand in a file that only we know."""
    if spec.input is None:
        return "`requests`"
    return "standard input" if _is_piped(spec) else shown_uri(spec.input.path).rpartition("/")[2]


def _is_piped(spec: JobSpec) -> bool:
    return spec.input is not None and spec.input.path == STDIN


def _apply_policy(spec: JobSpec, scan: InputScan) -> None:
    name = _shown(spec)
    if len(scan.kinds) > 1:
        raise InvalidInput("url_mismatch", f"{name} mixes chat and completion rows: give each its own job")
    if not scan.num_errors:
        return
    shown = "; ".join(f"{one.where}: {one.message} [{one.code}]" for one in scan.errors[:_SHOWN_ERRORS])
    if scan.num_errors == scan.rows:
        raise InvalidInput("no_valid_rows", f"none of the {scan.rows} rows of {name} can run: {shown}", scan.errors)
    if spec.input is not None and spec.input.on_invalid == "fail_job":
        raise InvalidInput("invalid_rows", f"{scan.num_errors} rows of {name} cannot run: {shown}", scan.errors)

"""Rows from bytes: streamed, split at b"\\n" and nowhere else, cut into ranges that can be read again and checked.

    file  │ row 0 │ row 1 │ … │ row 63 ║ row 64 │ …            a range: first, count, uri, offset, bytes, sha256, line
          offset ───────── bytes ──────▶

Text mode and `splitlines` would also split at U+2028 and friends, which may stand inside a JSON string. Blank lines are
not rows; a byte order mark and the CR of CRLF are not part of a row.
"""

from __future__ import annotations

import hashlib
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.row_work import RowWork, row_work, sum_by_kind
from streamrunner.runner.rows import Row, RowError, parse_row
from streamrunner.sinks.wire import encode_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrunner.runner.spec import JobSpec

MIN_ROWS_PER_RANGE, MAX_ROWS_PER_RANGE = 8, 64
MAX_KEPT_ERRORS = 1_000

_BOM = b"\xef\xbb\xbf"
_SHOWN_ERRORS = 3


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
    """What a look at every row found. `errors` keeps the first thousand, `num_errors` counts all."""

    rows: int = 0
    ranges: list[RangeSpec] = field(default_factory=list)
    errors: list[RowError] = field(default_factory=list)
    num_errors: int = 0
    sha256: str = ""
    kinds: set[str] = field(default_factory=set)


def scan_input(spec: JobSpec, base: Path, data_dir: Path) -> InputScan:
    """Check the structure of every row and cut the input into ranges, in flat memory (16 bytes a row).

    Raises RunnerError: input_missing, input_unreadable, empty_file, duplicate_custom_id, invalid_rows, no_valid_rows.
    """
    path = _source(spec, base, data_dir)
    scan = InputScan()
    with _opened(path) as file:
        _Scanner(spec, scan, path).run(file)
    if scan.rows == 0:
        raise RunnerError("empty_file", f"{path} has no rows: give it at least one line")
    _apply_policy(spec, scan)
    return scan


def read_range(found: RangeSpec) -> list[RawRow]:
    """The rows of a range. Raises RunnerError (`input_changed`, `input_missing`) if they are not what was submitted."""
    path = Path(found.uri)
    with _opened(path) as file:
        file.seek(found.offset)
        content = file.read(found.bytes)
    if hashlib.sha256(content).hexdigest() != found.sha256:
        last = found.first + found.count - 1
        raise RunnerError(
            "input_changed",
            f"rows {found.first}-{last} of {path} (from line {found.line}) are not what was submitted: "
            "restore the file and run the same command again, or submit it afresh with --new",
        )
    rows: list[RawRow] = []
    for number, line in enumerate(content.split(b"\n"), found.line):
        raw = _stripped(line, is_first=number == 1)
        if raw:
            rows.append(RawRow(found.first - found.skip + len(rows), number, raw))
    return rows[found.skip : found.skip + found.count]


def range_size(num_before: int) -> int:
    """Rows of the range that begins behind `num_before` rows: an eighth of these, so that a small job too has enough
    ranges to be shared, within bounds that keep the number of ranges small.
    """
    return min(max(num_before // 8, MIN_ROWS_PER_RANGE), MAX_ROWS_PER_RANGE)


class _Scanner:
    """One pass over the lines: rows, ranges, errors, and whether every custom_id is unique."""

    def __init__(self, spec: JobSpec, scan: InputScan, path: Path) -> None:
        self._spec = spec
        self._scan = scan
        self._uri = str(path.resolve())
        self._line_of: dict[bytes, int] = {}
        self._whole = hashlib.sha256()
        self._work: list[RowWork] = []

    def run(self, file: BinaryIO) -> None:
        lines = iter(file)
        offset, number = 0, 1
        while chunk := self._next_range(lines, number):
            content, count, num_lines = chunk
            if count:
                digest = hashlib.sha256(content).hexdigest()
                first = self._scan.rows - count
                work, self._work = sum_by_kind(self._work), []
                self._scan.ranges.append(
                    RangeSpec(first, count, self._uri, offset, len(content), digest, number, work=work)
                )
            offset += len(content)
            number += num_lines
        self._scan.sha256 = self._whole.hexdigest()

    def _next_range(self, lines: Iterator[bytes], number: int) -> tuple[bytes, int, int] | None:
        """Read up to a range of rows: its bytes, rows and lines; None at the end."""
        parts: list[bytes] = []
        count, wanted = 0, range_size(self._scan.rows)
        for line in lines:
            raw = _stripped(line, is_first=number + len(parts) == 1)
            parts.append(line)
            if raw:
                self._take(raw, number + len(parts) - 1)
                count += 1
                if count == wanted:
                    break
        if not parts:
            return None
        content = b"".join(parts)
        self._whole.update(content)
        return content, count, len(parts)

    def _take(self, raw: bytes, number: int) -> None:
        scan = self._scan
        row = parse_row(raw, scan.rows, number, self._spec)
        scan.rows += 1
        if row.custom_id is not None:
            self._check_unique(row.custom_id, number)
        if isinstance(row, Row):
            scan.kinds.add(row.kind)
            self._work.append(row_work(row, self._spec.sampling))
            return
        scan.num_errors += 1
        if len(scan.errors) < MAX_KEPT_ERRORS:
            scan.errors.append(row)

    def _check_unique(self, custom_id: str, number: int) -> None:
        # 96 bits of a hash instead of the id: a million ids of any length cost the same, and a false alarm needs
        # 10**14.
        key = hashlib.blake2b(custom_id.encode(), digest_size=12).digest()
        before = self._line_of.setdefault(key, number)
        if before != number:
            raise RunnerError(
                "duplicate_custom_id",
                f"custom_id {custom_id!r} stands in line {before} and again in line {number} of {_shown(self._spec)}: "
                "every row needs its own, results are told apart by it",
            )


def _shown(spec: JobSpec) -> str:
    """What the user calls the input; rows in place stand in a file that only we know."""
    return "`requests`" if spec.input is None else Path(spec.input.path).name


def _apply_policy(spec: JobSpec, scan: InputScan) -> None:
    name = _shown(spec)
    if len(scan.kinds) > 1:
        raise RunnerError("url_mismatch", f"{name} mixes chat and completion rows: give each its own job")
    if not scan.num_errors:
        return
    shown = "; ".join(f"line {one.line}: {one.message} [{one.code}]" for one in scan.errors[:_SHOWN_ERRORS])
    if scan.num_errors == scan.rows:
        raise RunnerError("no_valid_rows", f"none of the {scan.rows} rows of {name} can run: {shown}")
    if spec.input is not None and spec.input.on_invalid == "fail_job":
        raise RunnerError("invalid_rows", f"{scan.num_errors} rows of {name} cannot run: {shown}")


def _source(spec: JobSpec, base: Path, data_dir: Path) -> Path:
    if spec.input is not None:
        return base / Path(spec.input.path).expanduser()
    content = b"".join(encode_json(request) + b"\n" for request in spec.requests or ())
    spool = data_dir / "spool" / f"{hashlib.sha256(content).hexdigest()[:32]}.jsonl"
    spool.parent.mkdir(parents=True, exist_ok=True)
    if not spool.exists():
        part = spool.with_suffix(".part")
        part.write_bytes(content)
        part.replace(spool)
    return spool


def _opened(path: Path) -> BinaryIO:
    try:
        # Asked first: a pipe would not open until somebody writes to it.
        is_regular = stat.S_ISREG(path.stat().st_mode)
        file = path.open("rb") if is_regular else None
    except FileNotFoundError as error:
        raise RunnerError("input_missing", f"there is no input file {path}") from error
    except OSError as error:
        raise RunnerError("input_unreadable", f"{path} cannot be read: {error.strerror}") from error
    if file is None:
        raise RunnerError(
            "input_unreadable", f"{path} is no regular file: save the rows to one, a resume reads them again"
        )
    return file


def _stripped(line: bytes, *, is_first: bool) -> bytes:
    if is_first and line.startswith(_BOM):
        line = line[len(_BOM) :]
    return line.strip(b"\r\n \t")

"""Rows of tables and lines of text as JSON lines, which is what everything behind reads.

    CSV, TSV, Parquet   with a template: a record's columns     without: `prompt` or `messages`, `custom_id`, settings
    text                with a template: {"text": line}         without: the line is the prompt, or the user's message

A row keeps its physical line: lines that are no row, such as a header, are blank in the copy.
"""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.lines import MAX_LINE_BYTES
from streamrunner.runner.row_sampling import ROW_SETTINGS
from streamrunner.runner.rows import refused_line
from streamrunner.sinks.wire import encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

DELIMITERS = {"csv": ",", "tsv": "\t"}
_BOM = b"\xef\xbb\xbf"
_BATCH_COLUMNS = frozenset({"custom_id", "method", "url", "body"})
_ROW_COLUMNS = frozenset({"custom_id", "prompt", "messages", "tools"}) | ROW_SETTINGS
_TEXT_COLUMNS = frozenset({"custom_id", "method", "url", "prompt"})


class Use(NamedTuple):
    """What is made of a row. columns: those that the job's template names, None without a template."""

    columns: frozenset[str] | None
    task: str | None


class Columns(NamedTuple):
    """Which columns of a table make its rows, and which are left out."""

    kept: tuple[str, ...]
    unused: tuple[str, ...]


def text_rows(file: BinaryIO, use: Use) -> Iterator[bytes]:
    """One JSON line for every line of text."""
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b"")):
        raw = line.removeprefix(_BOM) if number == 0 else line
        yield _text_row(raw.rstrip(b"\r\n"), use) + b"\n" if raw.strip() else b"\n"


def _text_row(raw: bytes, use: Use) -> bytes:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return raw  # fails alone, as it would in a file of JSON lines
    if use.columns is not None:
        return encode_json({"text": text})
    return encode_json({"messages": [{"role": "user", "content": text}]} if use.task == "chat" else {"prompt": text})


def csv_rows(file: BinaryIO, delimiter: str, name: str, use: Use, note: Callable[[str], None]) -> Iterator[bytes]:
    """One JSON line for every record. Raises RunnerError (`invalid_csv`) for a file whose records cannot be told apart.

    A record that is malformed in itself becomes a line that fails alone. Quotes as in RFC 4180.
    """
    csv.field_size_limit(MAX_LINE_BYTES)  # the module's own is 128 KiB, and there is no other way to say it
    reader = csv.reader(_decoded(file, name), delimiter=delimiter, strict=True)
    written = start = 0
    table: _Table | None = None
    while (cells := _next_record(reader, start, name)) is not None:
        if cells and table is None:
            table = _Table(_checked_header(cells, name), use)
            table.tell(name, note)
        elif cells and table is not None:
            yield b"\n" * (start - written) + table.row(cells) + b"\n"
            written = start + 1
        start = reader.line_num


def _decoded(file: BinaryIO, name: str) -> Iterator[str]:
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
        if len(line) > MAX_LINE_BYTES:
            raise RunnerError("invalid_csv", f"line {number} of {name} is longer than {MAX_LINE_BYTES} bytes: split it")
        yield (line.removeprefix(_BOM) if number == 1 else line).decode("utf-8", "surrogateescape")


def _next_record(reader: Any, start: int, name: str) -> list[str] | None:
    """The cells of the next record; one cell that holds an error where it is malformed, None at the end."""
    try:
        cells: list[str] = next(reader)
    except StopIteration:
        return None
    except csv.Error as error:
        if "unexpected end" in str(error) or "field larger" in str(error):
            raise RunnerError(
                "invalid_csv",
                f"a quote is opened in line {start + 1} of {name} and not closed by line {reader.line_num}: "
                "close it, or double it if it is meant as text",
            ) from error
        return [_Malformed(str(error))]
    return cells


class _Malformed(str):
    """Why a record could not be read, in the place of its cells."""

    __slots__ = ()


class _Table:
    """What a header makes of the records below it."""

    def __init__(self, header: list[str], use: Use) -> None:
        self._header = header
        self._use = use
        self._columns = used_columns(header, use)
        self._kept = frozenset(self._columns.kept)

    def tell(self, name: str, note: Callable[[str], None]) -> None:
        tell_unused(self._columns, name, note)

    def row(self, cells: list[str]) -> bytes:
        if isinstance(cells[0], _Malformed):
            return refused_line("invalid_csv_row", f"this record is no CSV: {cells[0]}")
        if len(cells) != len(self._header):
            return refused_line(
                "invalid_csv_row",
                f"this record has {len(cells)} cells, the first line names {len(self._header)} columns",
            )
        if not all(map(_is_utf8, cells)):
            return refused_line("not_utf8", "a cell of this record is not UTF-8: save the file as UTF-8")
        record = {name: cell for name, cell in zip(self._header, cells, strict=True) if name in self._kept}
        return encode_json(record if self._use.columns is not None else _settled(record))


def used_columns(header: Iterable[str], use: Use) -> Columns:
    """Which columns are read. With a template those it names, or all where it names one that is not there (the row's
    error then says what there is); without one, those that mean something in a row.
    """
    names = tuple(header)
    if use.columns is None:
        wanted = _BATCH_COLUMNS if "body" in names else _ROW_COLUMNS
    else:
        wanted = use.columns | {"custom_id"} if use.columns <= frozenset(names) else frozenset(names)
    return Columns(tuple(name for name in names if name in wanted), tuple(name for name in names if name not in wanted))


def tell_unused(columns: Columns, name: str, note: Callable[[str], None]) -> None:
    """Say which columns were left out: one may be a parameter with a typo."""
    if columns.unused:
        note(f"columns of {name} that no row uses: {', '.join(columns.unused)}")


def _settled(record: dict[str, str]) -> dict[str, Any]:
    """Cells as a row's values: numbers and lists as JSON has them, an empty cell is no value."""
    return {name: _value(name, cell) for name, cell in record.items() if cell or name == "prompt"}


def _value(name: str, cell: str) -> Any:
    if name in _TEXT_COLUMNS:
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell


def _checked_header(cells: list[str], name: str) -> list[str]:
    for place, cell in enumerate(cells, 1):
        if isinstance(cell, _Malformed) or not cell or cell in cells[: place - 1] or not _is_utf8(cell):
            raise RunnerError(
                "invalid_csv", f"column {place} of {name} is named {cell!r}: its first line must name each column once"
            )
    return cells


def _is_utf8(cell: str) -> bool:
    return cell.isascii() or not any("\udc80" <= char <= "\udcff" for char in cell)

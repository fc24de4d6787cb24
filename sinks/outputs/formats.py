"""Result formats that can be appended to: OpenAI's batch lines and CSV.

A format turns results into records, finds whole records in a file again, and reads from each whose it is. A record
that was cut short is never whole, so a torn tail is known for what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from streamrunner.sinks.outputs.flat import COLUMNS, flatten
from streamrunner.sinks.outputs.record import LineId, ResultRecord, parse_line_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ID_FIELD = b'{"id":"'


class AppendFormat(Protocol):
    """How results look in a file that grows at its end."""

    header: bytes

    def encode(self, owner: bytes, record: ResultRecord) -> bytes:
        """One record with its line end."""

    def records(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The whole records among these lines (each with its newline, but perhaps the last); a torn one is left out."""

    def identify(self, record: bytes) -> LineId | None:
        """Whose result a record is; None if it is none."""

    def may_begin_with(self, start: bytes) -> bool:
        """Whether these bytes could be the torn beginning of such a file."""


class JsonlFormat:
    """OpenAI's batch output: `{"id", "custom_id", "response", "error"}` a line, the id first."""

    header = b""

    def encode(self, owner: bytes, record: ResultRecord) -> bytes:
        """One record with its line end."""
        return jsonl_line(owner, record) + b"\n"

    def records(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The whole records among these lines."""
        return (line for line in lines if line.endswith(b"\n"))

    def identify(self, record: bytes) -> LineId | None:
        """Whose result a record is; None if it is none."""
        if not record.startswith(_ID_FIELD):
            return None
        return parse_line_id(record[len(_ID_FIELD) : record.find(b'"', len(_ID_FIELD))])

    def may_begin_with(self, start: bytes) -> bool:
        """Whether these bytes could be the torn beginning of such a file."""
        whole = _ID_FIELD + b"batch_req_"
        return whole.startswith(start[: len(whole)])


def jsonl_line(owner: bytes, record: ResultRecord) -> bytes:
    """One line of batch output, without its newline."""
    if not record.status_code:
        return b'{"id":"batch_req_%b_%d_%d","custom_id":%b,"response":null,"error":%b}' % (
            owner, record.row, record.attempt, record.custom_id, record.error,
        )  # fmt: skip
    row, attempt, custom_id, _, status_code, body, error = record
    return (
        b'{"id":"batch_req_%b_%d_%d","custom_id":%b,"response":{"status_code":%d,"request_id":"req_%b_%d","body":%b},'
        b'"error":%b}'
    ) % (owner, row, attempt, custom_id, status_code, owner, row, body, error)


class CsvFormat:
    """RFC 4180 with a header: comma, CRLF, fields in quotes where they need them, so text may hold line ends."""

    header = b",".join(name.encode() for name in COLUMNS) + b"\r\n"

    def encode(self, owner: bytes, record: ResultRecord) -> bytes:
        """One record with its line end."""
        return ",".join(_field(value) for value in flatten(owner, record)).encode() + b"\r\n"

    def records(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The whole records among these lines: a line end between quotes does not end a record."""
        parts: list[bytes] = []
        num_quotes = 0
        for line in lines:
            parts.append(line)
            num_quotes += line.count(b'"')
            if num_quotes % 2 == 0 and line.endswith(b"\r\n"):
                yield b"".join(parts)
                parts, num_quotes = [], 0

    def identify(self, record: bytes) -> LineId | None:
        """Whose result a record is; None if it is none."""
        return parse_line_id(record.partition(b",")[0])

    def may_begin_with(self, start: bytes) -> bool:
        """Whether these bytes could be the torn beginning of such a file."""
        return self.header.startswith(start[: len(self.header)])


def _field(value: str | int | None) -> str:
    if value is None:
        return ""
    text = str(value)
    if any(special in text for special in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text

"""Lines of a file: split at b"\\n" and nowhere else, in flat memory however long one is.

Text mode and `splitlines` would also split at U+2028 and friends, which may stand inside a JSON string. A byte order
mark and the CR of CRLF are no part of a line's content.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINE_BYTES = 16 << 20

_BOM = b"\xef\xbb\xbf"
_BLANKS = b"\r\n \t"
# One byte more than is allowed, and room for the line's end: what is cut off is still too long.
_LONGEST = MAX_LINE_BYTES + 3
_CHUNK = 1 << 20


class Line(NamedTuple):
    """A line's content without its end, and its physical number (from 1). Longer ones than MAX_LINE_BYTES are cut to a
    little more than that, so that they can be told.
    """

    number: int
    raw: bytes


class Cut(NamedTuple):
    """What was read since the last cut."""

    num_bytes: int
    sha256: str


class LineReader:
    """Iterates over lines, and counts and hashes every byte of them.

    number: of the first line. size: stop after this many bytes; None reads to the end.
    """

    def __init__(self, file: BinaryIO, number: int = 1, size: int | None = None) -> None:
        self._file = file
        self._next = number
        self._left = size
        self._num_bytes = 0
        self._digest = hashlib.sha256()

    @property
    def next_number(self) -> int:
        """Of the line that comes next."""
        return self._next

    @property
    def num_bytes(self) -> int:
        """Read since the last cut."""
        return self._num_bytes

    def __iter__(self) -> Iterator[Line]:
        read = partial(self._file.readline, _LONGEST) if self._left is None else self._read_within
        for line in iter(read, b""):
            number = self._next
            self._next = number + 1
            self._take(line)
            if len(line) >= _LONGEST and not line.endswith(b"\n"):
                self._skip_rest()
            yield Line(number, stripped(line, is_first=True) if number == 1 else line.strip(_BLANKS))

    def cut(self) -> Cut:
        """Close what was read so far, and begin anew."""
        done = Cut(self._num_bytes, self._digest.hexdigest())
        self._num_bytes = 0
        self._digest = hashlib.sha256()
        return done

    def _take(self, data: bytes) -> None:
        self._num_bytes += len(data)
        self._digest.update(data)

    def _read_within(self, limit: int = _LONGEST) -> bytes:
        left = self._left or 0
        data = self._file.readline(min(limit, left)) if left else b""
        self._left = left - len(data)
        return data

    def _skip_rest(self) -> None:
        read = self._file.readline if self._left is None else self._read_within
        while data := read(_CHUNK):
            self._take(data)
            if data.endswith(b"\n"):
                return


def stripped(line: bytes, *, is_first: bool) -> bytes:
    """A line without its end, blanks around it, and a byte order mark at the start of the file."""
    if is_first and line.startswith(_BOM):
        line = line[len(_BOM) :]
    return line.strip(_BLANKS)

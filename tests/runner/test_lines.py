from __future__ import annotations

import hashlib
import io

from hypothesis import given
from hypothesis import strategies as st

from streamrunner.runner.lines import MAX_LINE_BYTES, LineReader

PIECES = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"a", b"\xef\xbb\xbf", b" ", b"\xe2\x80\xa8", b"\x85", b"\0", b"\r"])
)


@given(PIECES)
def test_lines_are_split_at_newlines_alone_and_every_byte_is_counted(pieces: list[bytes]) -> None:
    content = b"".join(pieces)
    reader = LineReader(io.BytesIO(content))
    lines = list(reader)
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    marked = content.removeprefix(b"\xef\xbb\xbf")
    assert [line.raw for line in lines if line.raw] == [
        one for raw in marked.split(b"\n") if (one := raw.strip(b"\r\n \t"))
    ]
    assert reader.cut() == (len(content), hashlib.sha256(content).hexdigest())
    assert reader.cut().num_bytes == 0


@given(PIECES, st.integers(0, 20), st.integers(0, 20))
def test_a_part_of_a_file_is_read_and_no_more(pieces: list[bytes], start: int, size: int) -> None:
    content = b"".join(pieces)
    file = io.BytesIO(content)
    file.seek(start)
    reader = LineReader(file, 5, size)
    part = content[start : start + size]
    ends = part.count(b"\n") + (not part.endswith(b"\n") and part != b"")
    assert [line.number for line in reader] == list(range(5, 5 + ends))
    assert reader.cut() == (len(part), hashlib.sha256(part).hexdigest())


def test_a_line_without_end_is_cut_and_the_next_one_is_whole() -> None:
    long = b"x" * (3 * MAX_LINE_BYTES)
    content = b"first\n" + long + b"\nlast\n"
    reader = LineReader(io.BytesIO(content))
    first, cut, last = reader
    assert (first.raw, last.raw, last.number) == (b"first", b"last", 3)
    assert MAX_LINE_BYTES < len(cut.raw) < MAX_LINE_BYTES + 9
    assert reader.cut() == (len(content), hashlib.sha256(content).hexdigest())

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.jsonl import JsonlFile, RowAttempt

if TYPE_CHECKING:
    from pathlib import Path


def line(row: int, job: str = "J1", text: str = "hello") -> bytes:
    return f'{{"id":"batch_req_{job}_{row}_1","custom_id":"r{row}","text":"{text}"}}'.encode()


def write(path: Path, *rows: int) -> None:
    file = JsonlFile(path, "J1")
    file.append(line(row) for row in rows)
    file.close()


def test_the_file_itself_says_which_rows_it_has(tmp_path: Path) -> None:
    write(tmp_path / "deep" / "out.jsonl", 0, 17)
    file = JsonlFile(tmp_path / "deep" / "out.jsonl", "J1")
    assert file.written == {RowAttempt(0, 1), RowAttempt(17, 1)}
    file.close()


@pytest.mark.parametrize("cut", range(1, len(line(1)) + 1))
def test_a_torn_last_line_is_cut_off_and_never_glued_to_the_next(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(0) + b"\n" + line(1)[:cut])
    file = JsonlFile(path, "J1")
    assert file.written == {RowAttempt(0, 1)}
    file.append([line(1)])
    file.close()
    assert path.read_bytes() == line(0) + b"\n" + line(1) + b"\n"


def test_a_torn_first_line_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(0)[:9])
    file = JsonlFile(path, "J1")
    file.append([line(0)])
    file.close()
    assert path.read_bytes() == line(0) + b"\n"


def test_lines_of_an_earlier_job_give_way(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(0, job="OLD") + b"\n" + line(1, job="OLD") + b"\n")
    file = JsonlFile(path, "J1")
    assert file.written == set()
    file.append([line(5)])
    file.close()
    assert path.read_bytes() == line(5) + b"\n"


@pytest.mark.parametrize("content", [b"my notes\n", b"my notes", b'{"a":1}\n', line(0) + b"\nmy notes\n"])
def test_what_is_not_ours_is_never_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(SinkError) as caught:
        JsonlFile(path, "J1")
    assert caught.value.code == "output_exists"
    assert path.read_bytes() == content


def test_one_process_at_a_time_holds_the_file(tmp_path: Path) -> None:
    first = JsonlFile(tmp_path / "out.jsonl", "J1")
    with pytest.raises(SinkError) as caught:
        JsonlFile(tmp_path / "out.jsonl", "J1")
    assert caught.value.code == "output_locked"
    first.close()
    JsonlFile(tmp_path / "out.jsonl", "J1").close()


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SinkError, match="file") as caught:
        JsonlFile(tmp_path / "file" / "out.jsonl", "J1")
    assert caught.value.code == "output_unwritable"

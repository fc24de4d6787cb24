"""A file of results that is its own checkpoint, in every format and compression."""

from __future__ import annotations

import gzip
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.outputs.append_file import AppendFile
from streamrunner.sinks.outputs.codec import codec_of
from streamrunner.sinks.outputs.formats import CsvFormat, JsonlFormat
from streamrunner.sinks.outputs.record import ResultRecord, RowAttempt, unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = ["out.jsonl", "out.csv", "out.jsonl.gz", "out.jsonl.zst", "out.csv.gz"]


def record(row: int, attempt: int = 1, text: str = 'He said: "hi",\r\nand left') -> ResultRecord:
    body = json.dumps({"choices": [{"text": text, "finish_reason": "stop"}]}, separators=(",", ":")).encode()
    return ResultRecord(row, attempt, json.dumps(f"r{row}").encode(), "completed", 200, body, b"null")


def opened(path: Path, job: str = "J1") -> AppendFile:
    return AppendFile(path, job, CsvFormat() if ".csv" in path.name else JsonlFormat(), codec_of(path))


def write(path: Path, *rows: int, job: str = "J1") -> None:
    with opened(path, job) as file:
        for row in rows:
            file.append([record(row)])
            file.sync()


def rows_of(path: Path, job: str = "J1") -> list[RowAttempt]:
    with opened(path, job) as file:
        return [unpack(one) for one in file.packed]


def content(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(raw)
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True).read()
    return raw


@pytest.fixture(params=NAMES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / "deep" / str(request.param)


def test_the_file_itself_says_which_rows_it_has(path: Path) -> None:
    write(path, 0, 17)
    assert rows_of(path) == [RowAttempt(0, 1), RowAttempt(17, 1)]


def test_a_tail_torn_anywhere_is_cut_off_and_never_glued_to_what_comes_next(path: Path) -> None:
    write(path, 0)
    whole = path.read_bytes()
    write(path, 1)
    both = path.read_bytes()
    for cut in range(len(whole), len(both)):
        path.write_bytes(both[:cut])
        assert rows_of(path) == [RowAttempt(0, 1)]
        write(path, 1)
        assert path.read_bytes() == both


def test_a_file_torn_in_its_first_record_is_begun_again(path: Path) -> None:
    write(path, 0)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        write(path, 0)
        assert rows_of(path) == [RowAttempt(0, 1)]


def test_a_tail_that_a_power_cut_filled_with_zeros_goes(path: Path) -> None:
    write(path, 0)
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(512))
    assert rows_of(path) == [RowAttempt(0, 1)]
    assert path.read_bytes() == whole


def test_results_of_an_earlier_job_give_way(path: Path) -> None:
    write(path, 0, 1, job="OLD")
    write(path, 5)
    assert rows_of(path) == [RowAttempt(5, 1)]


@pytest.mark.parametrize("foreign", [b"my notes\n", b"my notes", b'{"a":1}\n', b"id,name\r\n1,x\r\n"])
def test_what_is_not_ours_is_never_overwritten(path: Path, foreign: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(foreign)
    with pytest.raises(SinkError) as caught:
        opened(path)
    assert caught.value.code == "output_exists"
    assert path.read_bytes() == foreign


def test_foreign_lines_behind_ours_are_not_overwritten_either(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write(path, 0)
    with path.open("ab") as file:
        file.write(b"my notes\n")
    before = path.read_bytes()
    with pytest.raises(SinkError, match="move it away"):
        opened(path)
    assert path.read_bytes() == before


def test_records_are_taken_out_in_one_step_and_the_rest_keeps_its_bytes(path: Path) -> None:
    write(path, 0, 1, 2)
    with opened(path) as file:
        file.drop({1})
        file.append([record(1, attempt=2)])
    assert rows_of(path) == [RowAttempt(0, 1), RowAttempt(2, 1), RowAttempt(1, 2)]
    assert not list(path.parent.glob(".*"))


def test_one_process_at_a_time_holds_the_file_also_after_records_were_taken_out(path: Path) -> None:
    write(path, 0, 1)
    first = opened(path)
    first.drop({0})
    with pytest.raises(SinkError) as caught:
        opened(path)
    assert caught.value.code == "output_locked"
    first.close()
    opened(path).close()


def edit(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"note\n")


def replace(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"")


@pytest.mark.parametrize("change", [edit, replace, os.unlink])
def test_a_file_that_somebody_changes_meanwhile_is_told_of_and_left_alone(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "out.jsonl"
    file = opened(path)
    file.append([record(0)])
    file.sync()
    change(path)
    changed = path.read_bytes() if path.exists() else None
    file.append([record(1)])
    with pytest.raises(SinkError) as caught:
        file.sync()
    assert caught.value.code == "output_changed"
    file.abandon()
    assert (path.read_bytes() if path.exists() else None) == changed


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SinkError, match="file") as caught:
        opened(tmp_path / "file" / "out.jsonl")
    assert caught.value.code == "output_unwritable"


def test_compressed_files_are_what_every_reader_takes(tmp_path: Path) -> None:
    plain: Any = tmp_path / "out.jsonl"
    write(plain, 0, 1, 2)
    for name in ("out.jsonl.gz", "out.jsonl.zst"):
        write(tmp_path / name, 0, 1, 2)
        assert content(tmp_path / name) == plain.read_bytes()

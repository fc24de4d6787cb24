from __future__ import annotations

import functools
import http.server
import io
import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from input_kit import rows_of, scan_path

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.inputs import read_range
from streamrunner.runner.sources import shown_uri

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def row(number: int) -> bytes:
    return json.dumps({"custom_id": f"n{number}", "prompt": f"number {number}"}).encode() + b"\n"


def refused(folder: Path, path: str, **sections: Any) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        scan_path(folder, path, **sections)
    assert caught.value.exit_code == 4
    return caught.value


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three files of rows that a glob finds, and one that it does not."""
    (tmp_path / "data" / "deep").mkdir(parents=True)
    for name, numbers in {"b.jsonl": [2, 3], "a.jsonl": [0, 1], "deep/c.jsonl": [4], "a.csv": []}.items():
        (tmp_path / "data" / name).write_bytes(b"".join(row(i) for i in numbers))
    return tmp_path


def test_rows_of_a_globs_files_are_numbered_on_in_the_order_of_names(shards: Path) -> None:
    found = scan_path(shards, "data/*.jsonl")
    assert [one["custom_id"] for _, one in rows_of(found)] == ["n0", "n1", "n2", "n3"]
    assert [(one.first, one.count, one.line) for one in found.ranges] == [(0, 2, 1), (2, 2, 1)]
    assert list(found.files.values()) == ["a.jsonl", "b.jsonl"]


def test_two_stars_find_files_in_folders_below(shards: Path) -> None:
    assert scan_path(shards, "data/**/*.jsonl").rows == 5


def test_a_row_at_fault_is_told_with_its_file(shards: Path) -> None:
    (shards / "data" / "b.jsonl").write_bytes(row(2) + b"{oops\n")
    [error] = scan_path(shards, "data/*.jsonl").errors
    assert (error.file, error.line, error.index) == ("b.jsonl", 2, 3)


def test_a_custom_id_may_stand_once_in_all_files_together(shards: Path) -> None:
    (shards / "data" / "b.jsonl").write_bytes(row(9) + row(0))
    error = refused(shards, "data/*.jsonl")
    assert error.code == "duplicate_custom_id"
    assert "a.jsonl line 1 and again in b.jsonl line 2" in error.message


def test_a_glob_without_files_is_an_error_and_a_name_with_brackets_is_none(tmp_path: Path) -> None:
    assert refused(tmp_path, "data/*.jsonl").code == "input_missing"
    (tmp_path / "rows[1].jsonl").write_bytes(row(0))
    assert scan_path(tmp_path, "rows[1].jsonl").rows == 1


@pytest.mark.parametrize("output", ["data/all.jsonl", "data/../data/b.jsonl"])
def test_an_output_that_the_input_would_take_in_is_refused(shards: Path, output: str) -> None:
    outputs = [{"type": "jsonl", "path": output}]
    assert refused(shards, "data/*.jsonl", outputs=outputs).code == "output_is_input"
    (shards / "link").symlink_to(shards / "data")
    assert refused(shards, "data/b.jsonl", outputs=[{"path": "link/b.jsonl"}]).code == "output_is_input"
    assert scan_path(shards, "data/*.jsonl", outputs=[{"path": "data/out/all.jsonl"}]).rows == 4


class Piped(io.TextIOWrapper):
    """Standard input with something in it."""

    def isatty(self) -> bool:
        return self.buffer.getvalue() == b"a terminal"  # type: ignore[attr-defined]


def pipe(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", Piped(io.BytesIO(content)))


def test_standard_input_is_kept_where_a_resume_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, row(0) + b"\n" + row(1))
    found = scan_path(tmp_path, "-")
    pipe(monkeypatch, b"")
    assert [line for line, _ in rows_of(found)] == [1, 3]


@pytest.mark.parametrize("content", [b"one\ntwo\n", b"prompt\none\n"])
def test_standard_input_may_have_any_format_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    pipe(monkeypatch, content)
    form = "text" if content.startswith(b"one") else "csv"
    found = scan_path(tmp_path, "-", input={"format": form})
    assert rows_of(found)[0][1] == {"prompt": "one"}
    assert len(list((tmp_path / "data" / "spool").iterdir())) == 1
    pipe(monkeypatch, content)
    assert refused(tmp_path, "-").code == "unknown_format"
    assert len(list((tmp_path / "data" / "spool").iterdir())) == 1


def test_a_terminal_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"a terminal")
    assert "piped" in refused(tmp_path, "-").message


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def test_remote_json_lines_are_read_by_range_and_not_copied(tmp_path: Path, memory: Any) -> None:
    memory.pipe("/bucket/rows.jsonl", b"".join(row(i) for i in range(70)))
    found = scan_path(tmp_path, "memory://bucket/rows.jsonl")
    assert {one.uri for one in found.ranges} == {"memory://bucket/rows.jsonl"}
    assert [raw.row for one in found.ranges for raw in read_range(one)] == list(range(70))
    assert read_range(found.ranges[-1])[-1].raw == row(69).strip()
    assert not (tmp_path / "data").exists()


def test_a_remote_range_that_changed_is_refused(tmp_path: Path, memory: Any) -> None:
    memory.pipe("/bucket/rows.jsonl", row(0) + row(1))
    found = scan_path(tmp_path, "memory://bucket/rows.jsonl")
    memory.pipe("/bucket/rows.jsonl", row(0) + row(7))
    with pytest.raises(RunnerError, match="rows 0-1 of memory") as caught:
        read_range(found.ranges[0])
    assert caught.value.code == "input_changed"
    memory.rm("/bucket/rows.jsonl")
    with pytest.raises(RunnerError) as caught:
        read_range(found.ranges[0])
    assert caught.value.code == "input_missing"


def test_remote_globs_and_tables_are_read(tmp_path: Path, memory: Any) -> None:
    memory.pipe("/bucket/b.csv", b"prompt\ntwo\n")
    memory.pipe("/bucket/a.csv", b"prompt\none\n")
    found = scan_path(tmp_path, "memory://bucket/*.csv")
    assert [one["prompt"] for _, one in rows_of(found)] == ["one", "two"]


def test_a_file_url_is_a_local_path(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(row(0))
    assert scan_path(tmp_path, f"file://{tmp_path}/rows.jsonl").rows == 1


@pytest.mark.parametrize(
    ("path", "code", "says"),
    [
        ("memory://bucket/none.jsonl", "input_missing", "none.jsonl"),
        ("memory://bucket/*.none", "input_missing", "no file matches"),
        ("nosuch://bucket/rows.jsonl", "input_unreadable", "nosuch"),
        ("abfs://bucket/rows.jsonl", "missing_driver", "pip install adlfs"),
    ],
)
def test_remote_faults_are_named(tmp_path: Path, memory: Any, path: str, code: str, says: str) -> None:
    assert memory.store == {}
    error = refused(tmp_path, path)
    assert error.code == code
    assert says in error.message


def test_http_is_copied_once_since_servers_need_not_answer_for_a_part(tmp_path: Path) -> None:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_args: Any) -> None:
            return

    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "rows.jsonl").write_bytes(row(0) + row(1))
    handler = functools.partial(Handler, directory=os.fspath(tmp_path / "www"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        found = scan_path(tmp_path, f"{address}/rows.jsonl?version=1")
        assert refused(tmp_path, f"{address}/none.jsonl").code == "input_missing"
        server.shutdown()
    assert [line for line, _ in rows_of(found)] == [1, 2]


def test_a_password_in_a_url_is_not_shown() -> None:
    assert shown_uri("https://me:secret@host/a@b") == "https://host/a@b"
    assert shown_uri("/data/a@b") == "/data/a@b"

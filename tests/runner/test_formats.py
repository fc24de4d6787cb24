from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
import zstandard
from input_kit import rows_of, scan

from streamrunner.runner.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

JSONL = b'\n{"prompt": "hello"}\n{"prompt": "again"}'
Pack = "Callable[[bytes], bytes]"


def zst(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def zst_frames(content: bytes) -> bytes:
    return zst(content[:7]) + zst(content[7:])


def gz_members(content: bytes) -> bytes:
    return gzip.compress(content[:7]) + gzip.compress(content[7:])


@pytest.mark.parametrize("pack", [gzip.compress, gz_members, zst, zst_frames])
@pytest.mark.parametrize(
    ("name", "content"), [("rows.jsonl", JSONL), ("rows.csv", b"prompt\nhello\n"), ("rows.txt", b"hello\n\nagain")]
)
def test_packed_input_gives_the_rows_of_the_plain_file(
    tmp_path: Path, name: str, content: bytes, pack: Callable[[bytes], bytes]
) -> None:
    plain = scan(tmp_path, name, content)
    suffix = ".gz" if pack(b"").startswith(b"\x1f") else ".zst"
    packed = scan(tmp_path, name + suffix, pack(content))
    assert rows_of(packed) == rows_of(plain)
    assert packed.sha256 == plain.sha256


@pytest.mark.parametrize("pack", [gzip.compress, zst])
def test_the_content_and_not_the_name_says_whether_a_file_is_packed(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    assert scan(tmp_path, "rows.jsonl", pack(JSONL)).rows == 2
    assert scan(tmp_path, "rows.jsonl.gz", JSONL).rows == 2


@pytest.mark.parametrize("pack", [gzip.compress, zst])
@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: raw[:40] + b"\0" * 40 + raw[80:]])
def test_a_damaged_packed_file_is_named_and_leaves_nothing(
    tmp_path: Path, pack: Callable[[bytes], bytes], damage: Callable[[bytes], bytes]
) -> None:
    content = b"".join(b'{"prompt": "%d"}\n' % i for i in range(20_000))
    with pytest.raises(RunnerError, match=r"rows\.jsonl\.gz is damaged or cut off") as caught:
        scan(tmp_path, "rows.jsonl.gz", damage(pack(content)))
    assert caught.value.code == "input_unreadable"
    spool = tmp_path / "data" / "spool"
    assert not spool.exists() or list(spool.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "prompts"),
    [
        ("prompts.txt", b"one\ntwo", ["one", "two"]),
        ("rows.txt", JSONL, ["hello", "again"]),
        ("emoticons.txt", b"{-: upside down\n", ["{-: upside down"]),
        ("rows", JSONL, ["hello", "again"]),
        ("rows.ndjson", JSONL, ["hello", "again"]),
        ("rows.json", JSONL, ["hello", "again"]),
        ("ROWS.CSV", b"prompt\nhello", ["hello"]),
    ],
)
def test_the_format_is_told_from_name_and_content(
    tmp_path: Path, name: str, content: bytes, prompts: list[str]
) -> None:
    assert [row["prompt"] for _, row in rows_of(scan(tmp_path, name, content))] == prompts


def test_a_format_that_is_named_is_taken(tmp_path: Path) -> None:
    found = scan(tmp_path, "rows.csv", b"one, two\n", input={"format": "text"})
    assert rows_of(found) == [(1, {"prompt": "one, two"})]


@pytest.mark.parametrize(
    ("name", "content", "code", "says"),
    [
        ("rows", b"what is this\n", "unknown_format", "set input.format"),
        ("rows.json", json.dumps([{"prompt": "x"}]).encode(), "unknown_format", "one JSON array"),
        ("rows.jsonl", '{"prompt": "x"}'.encode("utf-16"), "unknown_format", "UTF-16"),
        ("rows.jsonl.gz", gzip.compress(gzip.compress(JSONL)), "unknown_format", "twice"),
        ("rows.csv", b"PAR1", "input_unreadable", "damaged"),
    ],
)
def test_what_cannot_be_read_is_said_with_the_remedy(
    tmp_path: Path, name: str, content: bytes, code: str, says: str
) -> None:
    with pytest.raises(RunnerError, match=says) as caught:
        scan(tmp_path, name, content)
    assert (caught.value.code, caught.value.exit_code) == (code, 4)


def test_a_file_that_is_no_parquet_is_not_taken_for_one(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="no Parquet") as caught:
        scan(tmp_path, "rows.parquet", JSONL, input={"format": "parquet"})
    assert caught.value.code == "format_mismatch"

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.inputs import MAX_ROWS_PER_RANGE, InputScan, RangeSpec, range_size, read_range, scan_input
from streamrunner.runner.spec import JobSpec

if TYPE_CHECKING:
    from pathlib import Path


def spec(**sections: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "t", "model": "m", "input": {"path": "rows.jsonl"}, **sections})


def line(number: int) -> bytes:
    return json.dumps({"custom_id": f"n{number}", "prompt": f"number {number}"}).encode()


def scan(tmp_path: Path, content: bytes, of: JobSpec | None = None) -> InputScan:
    (tmp_path / "rows.jsonl").write_bytes(content)
    return scan_input(of or spec(), tmp_path, tmp_path)


def refused(tmp_path: Path, content: bytes, of: JobSpec | None = None) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        scan(tmp_path, content, of)
    assert caught.value.exit_code == 4
    return caught.value


def test_ranges_grow_with_the_job_to_a_bound(tmp_path: Path) -> None:
    found = scan(tmp_path, b"\n".join(line(i) for i in range(900)))
    counts = [one.count for one in found.ranges]
    assert counts[:-1] == sorted(counts[:-1])
    assert (counts[0], max(counts), sum(counts)) == (8, MAX_ROWS_PER_RANGE, 900)
    assert all(one.count <= max(one.first // 8, 8) for one in found.ranges)


def test_a_part_of_a_split_range_reads_its_own_rows_only(tmp_path: Path) -> None:
    [whole] = scan(tmp_path, b"\n".join(line(i) for i in range(7))).ranges
    part = replace(whole, first=3, count=2, skip=3)
    assert [(row, number) for row, number, _ in read_range(part)] == [(3, 4), (4, 5)]


def rows_of(found: InputScan) -> list[tuple[int, int, bytes]]:
    return [tuple(row) for one in found.ranges for row in read_range(one)]  # type: ignore[misc]


def test_rows_are_cut_into_ranges_that_read_back_the_same(tmp_path: Path) -> None:
    lines = [line(i) for i in range(69)]
    found = scan(tmp_path, b"\n".join(lines) + b"\n")
    assert [(one.first, one.count, one.line) for one in found.ranges] == [
        *((8 * i, 8, 8 * i + 1) for i in range(8)),
        (64, 5, 65),
    ]
    assert rows_of(found) == [(i, i + 1, raw) for i, raw in enumerate(lines)]
    assert found.rows == len(lines)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"\xef\xbb\xbf" + line(0) + b"\n" + line(1) + b"\n", [1, 2]),
        (line(0) + b"\r\n" + line(1) + b"\r\n", [1, 2]),
        (line(0) + b"\n" + line(1), [1, 2]),
        (b"\n\n" + line(0) + b"\n\r\n  \n" + line(1) + b"\n\n", [3, 6]),
    ],
    ids=["byte order mark", "CRLF", "no newline at the end", "blank lines"],
)
def test_what_editors_leave_is_no_part_of_a_row(tmp_path: Path, content: bytes, lines: list[int]) -> None:
    found = scan(tmp_path, content)
    assert found.num_errors == 0
    assert rows_of(found) == [(i, number, line(i)) for i, number in enumerate(lines)]


def test_separators_inside_a_string_do_not_split_a_row(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf"
    raw = (
        json.dumps({"prompt": text}, ensure_ascii=False).replace("\x0b", "\\u000b").replace("\x0c", "\\u000c").encode()
    )
    assert scan(tmp_path, raw + b"\n").rows == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([b"\n", b"\r\n", b" \n", b"row\n", b"bad\n"]), min_size=1, max_size=200))
def test_every_row_keeps_its_number_and_its_line(tmp_path: Path, pieces: list[bytes]) -> None:
    content, expected = b"", []
    for number, piece in enumerate(pieces, 1):
        if piece in (b"row\n", b"bad\n"):
            raw = line(len(expected)) if piece == b"row\n" else b"{bad"
            expected.append((len(expected), number, raw))
            content += raw + b"\n"
        else:
            content += piece
    if not any(raw.startswith(b'{"') for _, _, raw in expected):
        refused(tmp_path, content)
        return
    found = scan(tmp_path, content)
    assert rows_of(found) == expected
    assert [error.line for error in found.errors] == [number for _, number, raw in expected if raw == b"{bad"]
    assert sum(one.count for one in found.ranges) == found.rows == len(expected)


_TEXTS = st.text(alphabet=st.sampled_from('ab \u2028\u2029\x85\xa0é日🌊\t\r\n"\\\ufeff'), max_size=8)
_ENDS = st.sampled_from([b"\n", b"\r\n", b" \t\n", b"\n\n", b"\n \r\n"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.tuples(_TEXTS, st.booleans(), _ENDS), min_size=1, max_size=140),
    st.booleans(),
    st.booleans(),
)
def test_any_file_reads_back_byte_for_byte(
    tmp_path: Path, rows: list[tuple[str, bool, bytes]], has_mark: bool, ends_bare: bool
) -> None:
    raws = [json.dumps({"prompt": f"x{text}"}, ensure_ascii=ascii_only).encode() for text, ascii_only, _ in rows]
    ends = [end for _, _, end in rows]
    if ends_bare:
        ends[-1] = b""
    content = b"\xef\xbb\xbf" * has_mark + b"".join(raw + end for raw, end in zip(raws, ends, strict=True))
    found = scan(tmp_path, content)
    assert found.num_errors == 0
    read = rows_of(found)
    assert [(row, raw) for row, _, raw in read] == list(enumerate(raws))
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    assert all(lines[number - 1].strip() == raw.strip() for _, number, raw in read)
    covered = [content[one.offset : one.offset + one.bytes] for one in found.ranges]
    assert b"".join(covered).strip() == content.strip()
    assert all(one.count == range_size(one.first) for one in found.ranges[:-1])


def test_a_custom_id_may_stand_once(tmp_path: Path) -> None:
    content = b"\n".join([line(0), line(1), line(0)])
    error = refused(tmp_path, content)
    assert error.code == "duplicate_custom_id"
    assert "line 1" in error.message
    assert "line 3" in error.message


def test_bad_rows_fail_alone_or_stop_the_job_as_the_policy_says(tmp_path: Path) -> None:
    content = b"\n".join([line(i) for i in range(6)] + [b"{oops", line(9)])
    found = scan(tmp_path, content)
    assert (found.rows, found.num_errors) == (8, 1)
    assert (found.errors[0].line, found.errors[0].code) == (7, "invalid_json_line")
    error = refused(tmp_path, content, spec(input={"path": "rows.jsonl", "on_invalid": "fail_job"}))
    assert error.code == "invalid_rows"
    assert "line 7" in error.message


@pytest.mark.parametrize(
    ("content", "code"), [(b"", "empty_file"), (b"\n \r\n", "empty_file"), (b"{x\n{y\n", "no_valid_rows")]
)
def test_a_file_without_a_row_that_can_run_is_refused(tmp_path: Path, content: bytes, code: str) -> None:
    assert refused(tmp_path, content).code == code


def test_a_name_given_to_a_nameless_row_counts_too(tmp_path: Path) -> None:
    error = refused(tmp_path, b'{"prompt": "x"}\n{"prompt": "y", "custom_id": "row-0"}\n')
    assert error.code == "duplicate_custom_id"


def test_a_thousand_errors_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    found = scan(tmp_path, line(0) + b"\n" + b"{oops\n" * 1500)
    assert (found.rows, found.num_errors, len(found.errors)) == (1501, 1500, 1000)


def test_chat_and_completion_rows_do_not_mix(tmp_path: Path) -> None:
    chat = json.dumps({"messages": [{"role": "user", "content": "x"}]}).encode()
    assert refused(tmp_path, line(0) + b"\n" + chat).code == "url_mismatch"


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match=r"rows\.jsonl") as caught:
        scan_input(spec(), tmp_path, tmp_path)
    assert caught.value.code == "input_missing"
    (tmp_path / "rows.jsonl").mkdir()
    with pytest.raises(RunnerError) as caught:
        scan_input(spec(), tmp_path, tmp_path)
    assert caught.value.code == "input_unreadable"


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(RunnerError, match="no regular file") as caught:
        scan_input(spec(), tmp_path, tmp_path)
    assert caught.value.code == "input_unreadable"


def test_a_range_that_changed_is_named_by_its_rows(tmp_path: Path) -> None:
    lines = [line(i) for i in range(70)]
    found = scan(tmp_path, b"\n".join(lines))
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join([*lines[:69], line(99)]))
    assert len(read_range(found.ranges[7])) == 8
    with pytest.raises(RunnerError, match="rows 64-69") as caught:
        read_range(found.ranges[8])
    assert caught.value.code == "input_changed"


def test_rows_in_the_job_file_are_kept_where_a_resume_finds_them(tmp_path: Path) -> None:
    of = JobSpec.model_validate({"name": "t", "model": "m", "requests": [{"prompt": "one"}, {"prompt": "two"}]})
    first, second = scan_input(of, tmp_path, tmp_path), scan_input(of, tmp_path, tmp_path)
    assert first.rows == 2
    assert first.ranges == second.ranges
    assert [json.loads(raw)["prompt"] for _, _, raw in rows_of(first)] == ["one", "two"]


def test_a_range_survives_the_log(tmp_path: Path) -> None:
    [one] = scan(tmp_path, line(0)).ranges
    assert RangeSpec(**json.loads(json.dumps(asdict(one)))) == one


def test_bad_rows_in_the_job_file_are_named_as_the_user_knows_them(tmp_path: Path) -> None:
    of = JobSpec.model_validate({"name": "t", "model": "m", "requests": [{"promt": "one"}]})
    with pytest.raises(RunnerError, match=r"none of the 1 rows of `requests`.*line 1"):
        scan_input(of, tmp_path, tmp_path)


def test_a_range_is_gone_with_its_file(tmp_path: Path) -> None:
    [one] = scan(tmp_path, line(0)).ranges
    (tmp_path / "rows.jsonl").write_bytes(b"")
    with pytest.raises(RunnerError, match=r"rows 0-0 .*--new") as caught:
        read_range(one)
    assert caught.value.code == "input_changed"
    (tmp_path / "rows.jsonl").unlink()
    with pytest.raises(RunnerError) as caught:
        read_range(one)
    assert caught.value.code == "input_missing"

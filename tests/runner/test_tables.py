from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from input_kit import codes_of, rows_of, scan

from streamrunner.runner.errors import RunnerError

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.runner.inputs import InputScan

CSV = b"name,text\nada,hello\n"


def templated(tmp_path: Path, name: str, content: bytes, template: str = "{{ text }} {{ name }}") -> InputScan:
    return scan(tmp_path, name, content, input={"prompt": template})


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_csv_columns_feed_the_template(tmp_path: Path, mark: bytes) -> None:
    found = templated(tmp_path, "rows.csv", mark + CSV)
    assert rows_of(found) == [(2, {"name": "ada", "text": "hello"})]
    assert (found.num_errors, found.kinds) == (0, {"completion"})


def test_csv_rows_keep_the_line_they_start_at(tmp_path: Path) -> None:
    content = b'name,text\r\na,"one\r\ntwo"\r\n\r\nb,"say ""x"", y"\r\nc,\xe2\x80\xa8z'
    assert rows_of(templated(tmp_path, "rows.csv", content)) == [
        (2, {"name": "a", "text": "one\r\ntwo"}),
        (5, {"name": "b", "text": 'say "x", y'}),
        (6, {"name": "c", "text": "\u2028z"}),
    ]


def test_tsv_is_split_at_tabs(tmp_path: Path) -> None:
    found = templated(tmp_path, "rows.tsv", b"id\ttext\n1\ta,b\n", "{{ text }}")
    assert rows_of(found) == [(2, {"text": "a,b"})]


@pytest.mark.parametrize("columns", [b"url,text\nhttp://x,hello\n", b"body,text\nlong,hello\n"])
def test_columns_named_like_those_of_a_batch_line_make_none(tmp_path: Path, columns: bytes) -> None:
    template = "{{ text }} {{ url or body }}" if columns.startswith(b"url") else "{{ text }} {{ body }}"
    assert templated(tmp_path, "rows.csv", columns, template).num_errors == 0


def test_bad_csv_records_fail_alone(tmp_path: Path) -> None:
    found = templated(tmp_path, "rows.csv", CSV + b'b,c,d\nonly\nx,\xff\n"a"b,c\nlast,row\n')
    assert found.rows == 6
    assert codes_of(found) == [
        (3, "invalid_csv_row"), (4, "invalid_csv_row"), (5, "not_utf8"), (6, "invalid_csv_row"),
    ]  # fmt: skip
    assert found.errors[0].message == "this record has 3 cells, the first line names 2 columns"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a,a\n1,2\n", "column 2"),
        (b"a,\n1,2\n", "column 2"),
        (b'a,text\n1,x\n1,"never closed\nx,y\n', "opened in line 3"),
    ],
    ids=["twice", "unnamed", "open quote"],
)
def test_csv_that_cannot_be_told_apart_is_refused_by_name(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(RunnerError, match=rf"{says} of rows\.csv") as caught:
        templated(tmp_path, "rows.csv", content)
    assert (caught.value.code, caught.value.exit_code) == ("invalid_csv", 4)


def test_without_a_template_a_table_needs_a_prompt_and_may_set_sampling(tmp_path: Path) -> None:
    content = b'custom_id,prompt,max_tokens,stop,label,temprature\n1,007,5,,good,1\n2,x,,"[""a""]",bad,\n3,x,many,,,\n'
    found = scan(tmp_path, "rows.csv", content)
    assert rows_of(found) == [
        (2, {"custom_id": "1", "prompt": "007", "max_tokens": 5}),
        (3, {"custom_id": "2", "prompt": "x", "stop": ["a"]}),
        (4, {"custom_id": "3", "prompt": "x", "max_tokens": "many"}),
    ]
    assert codes_of(found) == [(4, "invalid_parameter")]
    assert found.notices == ["columns of rows.csv that no row uses: label, temprature"]


def test_a_csv_without_a_prompt_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="prompt") as caught:
        scan(tmp_path, "rows.csv", b"question\nwhy?\n")
    assert caught.value.code == "no_valid_rows"


def test_a_template_column_that_a_table_lacks_is_named_beside_all_there_are(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="has the columns name, text"):
        templated(tmp_path, "rows.csv", CSV, "{{ txt }}")


def test_lines_of_text_are_prompts_of_the_job_s_kind(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf  first\r\n\nsecond"
    assert rows_of(scan(tmp_path, "rows.txt", content)) == [(1, {"prompt": "  first"}), (3, {"prompt": "second"})]
    chat = rows_of(scan(tmp_path, "rows.txt", b"hi", task="chat"))
    assert chat == [(1, {"messages": [{"role": "user", "content": "hi"}]})]
    assert rows_of(templated(tmp_path, "rows.txt", b"hi", "{{ text }}")) == [(1, {"text": "hi"})]


def test_a_line_of_text_that_is_not_utf8_fails_alone(tmp_path: Path) -> None:
    found = scan(tmp_path, "rows.txt", b"good\n\xff\xfe\n")
    assert codes_of(found) == [(2, "not_utf8")]


def test_a_very_long_cell_is_read(tmp_path: Path) -> None:
    found = scan(tmp_path, "rows.csv", b"prompt\n" + b"x" * 300_000 + b"\n")
    assert len(rows_of(found)[0][1]["prompt"]) == 300_000


def test_equal_sources_are_kept_once_and_a_changed_one_differs(tmp_path: Path) -> None:
    first, again = (templated(tmp_path, "rows.csv", CSV) for _ in range(2))
    assert first.ranges == again.ranges
    assert len(list((tmp_path / "data" / "spool").iterdir())) == 1
    assert templated(tmp_path, "rows.csv", CSV + b"b,c\n").sha256 != first.sha256


def parquet(tmp_path: Path, columns: dict[str, list[Any]], row_group_size: int = 2) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), tmp_path / "made.parquet", row_group_size=row_group_size)
    return (tmp_path / "made.parquet").read_bytes()


def test_parquet_columns_feed_the_template_over_row_groups(tmp_path: Path) -> None:
    content = parquet(tmp_path, {"text": ["a", "b\nc", "\u2028"], "n": [1, 2, 3], "unused": [b"\xff", b"", b""]})
    found = templated(tmp_path, "rows.parquet", content, "{{ text }} {{ n }}")
    assert rows_of(found) == [
        (1, {"text": "a", "n": 1}),
        (2, {"text": "b\nc", "n": 2}),
        (3, {"text": "\u2028", "n": 3}),
    ]
    assert found.num_errors == 0


def test_parquet_chats_and_settings_are_rows_as_they_are_and_nulls_are_left_out(tmp_path: Path) -> None:
    chats = [[{"role": "user", "content": "hi", "name": None}]] * 2
    content = parquet(tmp_path, {"messages": chats, "max_tokens": [4, None], "temperature": [0.5, float("nan")]})
    found = scan(tmp_path, "rows.parquet", content)
    assert rows_of(found)[0] == (
        1, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0.5},
    )  # fmt: skip
    assert rows_of(found)[1][1]["temperature"] is None
    assert found.num_errors == 0


def test_parquet_batch_lines_are_read(tmp_path: Path) -> None:
    batch = {
        "custom_id": ["a"], "method": ["POST"], "url": ["/v1/completions"], "body": [{"prompt": "x", "max_tokens": 2}],
    }  # fmt: skip
    found = scan(tmp_path, "rows.parquet", parquet(tmp_path, batch))
    assert (found.num_errors, found.kinds) == (0, {"completion"})


def test_parquet_rows_that_hold_no_text_fail_alone(tmp_path: Path) -> None:
    content = parquet(tmp_path, {"prompt": [b"bytes of text", b"\xff\xfe", b"more"]})
    found = scan(tmp_path, "rows.parquet", content)
    assert codes_of(found) == [(2, "not_utf8")]
    assert rows_of_good(found) == ["bytes of text", "more"]


def rows_of_good(found: InputScan) -> list[str]:
    from streamrunner.runner.inputs import read_range
    from streamrunner.sinks.wire import decode_json

    raws = [row.raw for one in found.ranges for row in read_range(one)]
    return [decode_json(raw)["prompt"] for raw in raws if raw.startswith(b"{")]


def test_damaged_parquet_and_a_null_in_a_template_are_named(tmp_path: Path) -> None:
    content = parquet(tmp_path, {"text": ["a", None]})
    found = templated(tmp_path, "rows.parquet", content, "{{ text }}")
    assert codes_of(found) == [(2, "template_error")]
    with pytest.raises(RunnerError, match=r"rows\.parquet is damaged") as caught:
        scan(tmp_path, "rows.parquet", content[:-20])
    assert caught.value.code == "input_unreadable"
    assert list((tmp_path / "data" / "spool").glob("*.part")) == []

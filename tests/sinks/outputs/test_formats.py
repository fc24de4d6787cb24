"""Result formats, read back by other people's readers."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrunner.sinks.outputs.flat import COLUMNS
from streamrunner.sinks.outputs.formats import CsvFormat, JsonlFormat, jsonl_line
from streamrunner.sinks.outputs.record import LineId, ResultRecord, line_id, pack, parse_line_id, unpack

FORMATS = [JsonlFormat(), CsvFormat()]


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def completed(text: str, custom_id: str = "c", **choice: Any) -> ResultRecord:
    body = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", **choice}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    }
    return ResultRecord(3, 2, as_json(custom_id), "completed", 200, as_json(body), b"null")


def csv_row(record: ResultRecord) -> dict[str, str]:
    form = CsvFormat()
    [row] = csv.DictReader(io.StringIO((form.header + form.encode(b"J", record)).decode(), newline=""), strict=True)
    return row


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.text(max_size=9))
def test_csv_holds_any_text(text: str, custom_id: str) -> None:
    row = csv_row(completed(text, custom_id.encode("utf-8", "ignore").decode()))
    assert (row["text"], row["custom_id"]) == (text, custom_id.encode("utf-8", "ignore").decode())
    assert json.loads(row["response"])["choices"][0]["message"]["content"] == text


@given(st.lists(st.text(st.sampled_from('a",\r\n'), max_size=8), max_size=5))
def test_records_are_found_again_whatever_they_hold(texts: list[str]) -> None:
    for form in FORMATS:
        encoded = [form.encode(b"J", completed(text)) for text in texts]
        found = list(form.records(iter(io.BytesIO(b"".join(encoded)).readline, b"")))
        assert found == encoded
        assert all(form.identify(one) == LineId(b"J", 3, 2) for one in found)


def test_csv_has_a_column_for_what_people_look_for() -> None:
    row = csv_row(completed("Paris"))
    assert tuple(row) == COLUMNS
    assert row["id"] == "batch_req_J_3_2"
    assert (row["row"], row["status"], row["finish_reason"]) == ("3", "completed", "stop")
    assert (row["prompt_tokens"], row["completion_tokens"], row["error_code"]) == ("3", "4", "")


def test_csv_says_why_a_row_has_no_text() -> None:
    error = {"message": "too long", "type": "invalid_request_error", "param": None, "code": "context_length_exceeded"}
    failed = ResultRecord(1, 1, b'"c"', "failed", 400, as_json({"error": error}), b"null")
    assert (csv_row(failed)["error_code"], csv_row(failed)["text"]) == ("context_length_exceeded", "")
    cancelled = ResultRecord(1, 1, b'"c"', "cancelled", 0, b"", as_json({"code": "batch_cancelled", "message": "m"}))
    assert (csv_row(cancelled)["error_code"], csv_row(cancelled)["status"]) == ("batch_cancelled", "cancelled")
    assert csv_row(cancelled)["response"] == ""


def test_a_line_is_openais_batch_output() -> None:
    parsed = json.loads(jsonl_line(b"J", completed("Paris", 'häns "x"')))
    assert list(parsed) == ["id", "custom_id", "response", "error"]
    assert (parsed["id"], parsed["custom_id"], parsed["error"]) == ("batch_req_J_3_2", 'häns "x"', None)
    assert (parsed["response"]["status_code"], parsed["response"]["request_id"]) == (200, "req_J_3")


def test_a_row_that_shared_its_jobs_ending_has_no_response() -> None:
    error = {"code": "batch_cancelled", "message": "by request"}
    line = jsonl_line(b"J", ResultRecord(9, 1, b'"c"', "cancelled", 0, b"", as_json(error)))
    assert json.loads(line) == {"id": "batch_req_J_9_1", "custom_id": "c", "response": None, "error": error}


@given(st.integers(0, 2**40), st.integers(1, 2**16 - 1))
def test_ids_and_packed_numbers_say_what_they_were_made_of(row: int, attempt: int) -> None:
    assert parse_line_id(line_id(b"01abc", row, attempt)) == LineId(b"01abc", row, attempt)
    assert unpack(pack(row, attempt)) == (row, attempt)


@pytest.mark.parametrize("text", [b"", b"batch_req_", b"batch_req_J_x_1", b"batch_req_J_1", b"req_J_1_1"])
def test_other_ids_are_not_ours(text: bytes) -> None:
    assert parse_line_id(text) is None

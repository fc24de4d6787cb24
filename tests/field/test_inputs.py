"""Inputs that broke other runners, each as a small file: what users reported, in our words, and what happens here."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.inputs import InputScan, RangeSpec, read_range, scan_input
from streamrunner.runner.spec import JobSpec

if TYPE_CHECKING:
    from pathlib import Path

    FieldJob = Any


def row(number: int, **body: Any) -> bytes:
    body = {"prompt": f"number {number}", **body}
    line = {"custom_id": f"n{number}", "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(line).encode() + b"\n"


def scan(folder: Path, content: bytes, **sections: Any) -> InputScan:
    (folder / "rows.jsonl").write_bytes(content)
    source = {"path": "rows.jsonl", **sections.pop("input", {})}
    spec = JobSpec.model_validate({"name": "t", "model": "m", "input": source, **sections})
    return scan_input(spec, folder, folder / "data")


def refused(folder: Path, content: bytes, **sections: Any) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        scan(folder, content, **sections)
    assert caught.value.exit_code == 4
    return caught.value


def raws(ranges: list[RangeSpec]) -> list[bytes]:
    return [one.raw for found in ranges for one in read_range(found)]


def failing(found: InputScan) -> list[tuple[int, str]]:
    return [(error.line, error.code) for error in found.errors]


def test_two_lines_with_one_id_are_refused_before_any_compute(tmp_path: Path) -> None:
    error = refused(tmp_path, row(1) + row(2) + row(1))
    assert error.code == "duplicate_custom_id"
    assert all(word in error.message for word in ("'n1'", "line 1", "line 3"))


@pytest.mark.parametrize("tail", [b"\n", b"\n\n", b"   \n\t\n", b"\r\n \r\n"])
def test_a_blank_end_is_no_record(tmp_path: Path, tail: bytes) -> None:
    assert scan(tmp_path, row(1) + row(2) + tail).rows == 2


def test_blank_lines_in_between_do_not_shift_the_line_of_an_error(tmp_path: Path) -> None:
    assert failing(scan(tmp_path, b"\n\n" + row(1) + b" \n{oops\n")) == [(5, "invalid_json_line")]


def test_a_row_without_its_parts_is_told_at_submit_with_line_and_field(tmp_path: Path) -> None:
    lines = [json.loads(row(number)) | {name: None} for number, name in enumerate(json.loads(row(0)))]
    found = scan(tmp_path, row(9) + b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    told = [(error.line, error.param) for error in found.errors]
    assert told == [(2, "custom_id"), (3, "method"), (4, "url"), (5, "body")]


def test_a_method_that_is_left_out_means_the_only_one_there_is(tmp_path: Path) -> None:
    line = {name: value for name, value in json.loads(row(1)).items() if name != "method"}
    assert scan(tmp_path, json.dumps(line).encode()).num_errors == 0


def test_a_file_that_is_no_list_of_rows_is_refused_as_a_whole(tmp_path: Path) -> None:
    assert refused(tmp_path, b"<html>\n<body>not found</body>\n").code == "no_valid_rows"
    assert refused(tmp_path, b"").code == "empty_file"


def test_bad_json_on_line_1_has_the_shape_that_clients_of_batches_read(field: FieldJob) -> None:
    field.write("rows.jsonl", b"{oops\n" + row(1))
    done = field.run("validate", "rows.jsonl", "--json", input={"on_invalid": "fail_job"})
    errors = json.loads(done.stdout)["errors"]
    assert (done.returncode, errors["object"]) == (4, "list")
    [error] = errors["data"]
    assert {"code": "invalid_json_line", "line": 1, "param": None}.items() <= error.items()
    assert error["message"]


def test_one_malformed_line_of_many_fails_alone_or_stops_the_job_as_asked(tmp_path: Path) -> None:
    content = b"".join(row(number) for number in range(6)) + b"{oops\n"
    assert failing(scan(tmp_path, content)) == [(7, "invalid_json_line")]
    assert refused(tmp_path, content, input={"on_invalid": "fail_job"}).code == "invalid_rows"


def test_an_output_over_the_input_is_refused_and_the_input_stays(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(RunnerError, match="part of the input"):
        scan(tmp_path, row(1), outputs=[{"type": "jsonl", "path": "link/rows.jsonl"}])
    assert (tmp_path / "rows.jsonl").read_bytes() == row(1)


@pytest.mark.parametrize("url", ["/x/score", "/v1/completions/", "v1/completions", "/v1/chat", "/V1/COMPLETIONS"])
def test_a_route_must_match_to_the_letter(tmp_path: Path, url: str) -> None:
    content = row(1) + json.dumps({**json.loads(row(2)), "url": url}).encode()
    assert failing(scan(tmp_path, content)) == [(2, "invalid_url")]


def test_a_byte_order_mark_costs_no_record(tmp_path: Path) -> None:
    found = scan(tmp_path, b"\xef\xbb\xbf" + row(1) + row(2))
    assert (found.rows, found.num_errors) == (2, 0)


def test_crlf_and_a_record_larger_than_any_read_are_whole(tmp_path: Path) -> None:
    big = row(1, user="x" * 3_000_000)
    found = scan(tmp_path, (big + row(2)).replace(b"\n", b"\r\n"))
    assert raws(found.ranges) == [big.strip(), row(2).strip()]
    assert found.num_errors == 0


def test_an_error_on_line_7_says_line_7(tmp_path: Path) -> None:
    content = b"".join(row(number) for number in range(6)) + b'{"prompt": "x"\n' + row(9)
    [error] = scan(tmp_path, content).errors
    assert (error.line, error.index) == (7, 6)


@pytest.mark.parametrize("prompt", [123, None, ["x"], {}, True, ""])
def test_a_prompt_that_is_no_text_costs_its_row_alone(tmp_path: Path, prompt: Any) -> None:
    found = scan(tmp_path, row(1) + row(2, prompt=prompt) + row(3))
    assert [error.index for error in found.errors] == [1]


@pytest.mark.parametrize("text", ["\\ud800", "\\udfff", "a\\ud83c"])
def test_half_a_character_is_told_and_never_reaches_an_output(tmp_path: Path, text: str) -> None:
    content = row(1) + f'{{"prompt": "{text}"}}\n'.encode()
    [error] = scan(tmp_path, content).errors
    assert (error.line, error.code) == (2, "invalid_json_line")
    assert error.message.isascii()


def test_a_null_content_is_fine_beside_tool_calls_and_nowhere_else(tmp_path: Path) -> None:
    def chat(number: int, **message: Any) -> bytes:
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, **message}]
        line = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions"}
        return json.dumps({**line, "body": {"messages": messages}}).encode() + b"\n"

    found = scan(
        tmp_path, chat(1, tool_calls=[{"type": "function", "function": {"name": "f", "arguments": "{}"}}]) + chat(2)
    )
    assert failing(found) == [(2, "invalid_messages")]


def test_equal_prompts_are_different_rows(tmp_path: Path) -> None:
    found = scan(tmp_path, b'{"prompt": "the same"}\n' * 3)
    assert [one.row for rows in found.ranges for one in read_range(rows)] == [0, 1, 2]
    assert found.num_errors == 0


def test_rows_put_in_or_taken_out_are_noticed_and_named(field: FieldJob) -> None:
    lines = [row(number) for number in range(20)]
    found = scan(field.folder, b"".join(lines))
    for changed in ([row(99), *lines], lines[1:], [*lines[:10], *lines[11:]]):
        (field.folder / "rows.jsonl").write_bytes(b"".join(changed))
        with pytest.raises(RunnerError, match=r"rows \d+-\d+ of .*rows\.jsonl") as caught:
            raws(found.ranges)
        assert caught.value.code == "input_changed"


def test_the_first_start_of_a_small_file_does_not_hang_and_ids_may_stand_in_two_jobs(field: FieldJob) -> None:
    field.write("rows.jsonl", row(1) + row(2))
    first = field.run("submit", "rows.jsonl")
    second = field.run("submit", "rows.jsonl", name="u", outputs=[{"type": "jsonl", "path": "out/results.jsonl.2"}])
    assert (first.returncode, second.returncode) == (0, 0), second.stderr.decode()
    texts = [line["response"]["body"]["choices"][0]["text"] for line in field.results()]
    assert len(texts) == 2


def test_piped_records_survive_a_kill_and_each_is_answered_once(field: FieldJob) -> None:
    table = b"custom_id,prompt\n" + b"".join(b"r%d,number %d\n" % (number, number) for number in range(40))
    sampling = {"max_tokens": 60, "seed": 7, "ignore_eos": True}
    job: dict[str, Any] = {"input": {"format": "csv"}, "sampling": sampling, "engine": {"max_num_seqs": 4}}
    with field.started("submit", "-", piped=table, **job) as process:
        field.wait_for_a_result()
        process.kill()
    assert 0 < len(field.results(torn=True)) < 40
    assert b"[empty_file]" in field.run("submit", "-", **job).stderr
    done = field.run("submit", "-", piped=table, **job)
    assert done.returncode == 0, done.stderr.decode()
    assert sorted(line["custom_id"] for line in field.results()) == sorted(f"r{number}" for number in range(40))


def test_a_job_whose_every_row_fails_says_so_with_its_exit_code(field: FieldJob) -> None:
    field.write("rows.jsonl", row(1, prompt="long " * 400) + row(2, temperature=-1))
    done = field.run("submit", "rows.jsonl")
    assert done.returncode == 3
    assert b"0 completed, 2 failed" in done.stdout
    assert len(field.results()) == 2


def test_a_signal_while_a_large_file_is_looked_at_ends_the_look(field: FieldJob) -> None:
    field.write("rows.jsonl", b'{"prompt": "x"}\n' * 2_000_000)
    with field.started("submit", "rows.jsonl") as process:
        while not any((field.data_dir / "server").glob("server.lock")):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 75


def test_a_changed_file_of_an_unfinished_job_is_named(field: FieldJob) -> None:
    job: dict[str, Any] = {"sampling": {"max_tokens": 60, "ignore_eos": True}, "engine": {"max_num_seqs": 1}}
    for name in ("a", "b"):
        field.write(f"in/{name}.jsonl", b"".join(b'{"prompt": "%s %d"}\n' % (name.encode(), i) for i in range(20)))
    with field.started("submit", "in/*.jsonl", **job) as process:
        field.wait_for_a_result()
        process.kill()
    field.write("in/b.jsonl", b'{"prompt": "new"}\n' * 20)
    done = field.run("submit", "in/*.jsonl", **job)
    assert done.returncode == 4
    assert b"b.jsonl" in done.stderr
    assert b"[job_changed]" in done.stderr


_PEAK = """
import re, sys
from pathlib import Path
from streamrunner.runner.inputs import scan_input
from streamrunner.runner.spec import JobSpec
folder = Path(sys.argv[1])
spec = JobSpec.model_validate({"name": "t", "model": "m", "input": {"path": sys.argv[2]}})
scan = scan_input(spec, folder, folder / "data")
print(scan.rows, int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for num_rows in (100, 60_000):
        name = f"{num_rows}.jsonl"
        (tmp_path / name).write_bytes(b"".join(row(number, user="u" * 500) for number in range(num_rows)))
        done = subprocess.run(
            [sys.executable, "-c", _PEAK, str(tmp_path), name], check=True, capture_output=True, text=True
        )
        rows, peak_mib = map(int, done.stdout.split())
        assert rows == num_rows
        peaks.append(peak_mib)
    # 60,000 rows of 650 bytes are 39 MB.
    assert peaks[1] - peaks[0] < 15


def test_a_line_of_a_hundred_megabytes_costs_its_row_and_not_the_memory(tmp_path: Path) -> None:
    with (tmp_path / "long.jsonl").open("wb") as file:
        file.write(row(1) + b'{"prompt": "')
        for _ in range(100):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n' + row(2))
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(tmp_path), "long.jsonl"], check=True, capture_output=True, text=True
    )
    rows, peak_mib = map(int, done.stdout.split())
    assert rows == 3
    assert peak_mib < 130

"""`runner validate` in this process: nothing runs, no server is started, no model is looked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import pytest

from streamrunner.runner.cli.fail import guarded
from streamrunner.runner.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = [json.dumps({"custom_id": f"r{i}", "prompt": f"say {i}"}) for i in range(6)]
GOOD = "model: m\ninput: {path: rows.jsonl}\n"


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def validate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    monkeypatch.setenv("RUNNER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)

    def run(*options: str, spec: str | bytes = GOOD, rows: list[str] | bytes = ROWS) -> Done:
        (tmp_path / "job.yaml").write_bytes(spec if isinstance(spec, bytes) else spec.encode())
        content = rows if isinstance(rows, bytes) else "".join(f"{row}\n" for row in rows).encode()
        (tmp_path / "rows.jsonl").write_bytes(content)
        code = guarded(lambda: cli(["validate", "job.yaml", *options], standalone_mode=False))
        return Done(code, *capsys.readouterr())

    return run


def test_a_good_file_is_counted_and_nothing_is_left_behind(validate: Callable[..., Done], tmp_path: Path) -> None:
    assert validate() == (0, "job.yaml: 6 rows, all can run\n", "")
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "out").exists()


def test_rows_that_will_fail_are_listed_by_line(validate: Callable[..., Done]) -> None:
    done = validate(rows=[*ROWS, "{oops", json.dumps({"prompt": ""})])
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].startswith("line 7: this is no JSON object")
    assert done.out.splitlines()[1].startswith("line 8: `prompt` is empty")
    assert done.out.endswith("job.yaml: 8 rows, 2 of them will fail\n")


def test_twenty_errors_are_enough(validate: Callable[..., Done]) -> None:
    lines = validate(rows=[*ROWS, *["{oops"] * 50]).out.splitlines()
    assert len(lines) == 22
    assert lines[-2:] == ["… and 30 more", "job.yaml: 56 rows, 50 of them will fail"]


def test_json_has_the_shape_of_openais_errors(validate: Callable[..., Done]) -> None:
    done = validate("--json", rows=[*ROWS, json.dumps({"custom_id": "é", "prompt": "x", "temprature": 1})])
    found = json.loads(done.out)
    assert (found["rows"], found["invalid"], found["errors"]["object"]) == (7, 1, "list")
    [error] = found["errors"]["data"]
    assert (error["line"], error["custom_id"], error["code"], error["param"]) == (
        7, "é", "unsupported_parameter", "temprature",
    )  # fmt: skip


def test_a_row_cannot_command_the_terminal(validate: Callable[..., Done]) -> None:
    done = validate(rows=[*ROWS, json.dumps({"prompt": "x", "\x1b]0;owned\x07": 1})])
    assert "\x1b" not in done.out
    assert "\x07" not in done.out


FAIL_JOB = "model: m\ninput: {path: rows.jsonl, on_invalid: fail_job}\n"
REFUSED = {
    "bad key": ({"spec": GOOD + "sampling: {temprature: 1}\n"}, "unknown_key", "`sampling.temperature`"),
    "bad value": ({"spec": GOOD + "sampling: {temperature: hot}\n"}, "invalid_spec", "write a number"),
    "no YAML": ({"spec": "model: [\n"}, "bad_yaml", "line 2"),
    "twice": ({"spec": GOOD + "model: n\n"}, "bad_yaml", "'model' is there twice"),
    "no UTF-8": ({"spec": b"model: \xff\n"}, "bad_yaml", "UTF-8"),
    "missing rows": ({"spec": "model: m\ninput: {path: none.jsonl}\n"}, "input_missing", "none.jsonl"),
    "rows are a folder": ({"spec": "model: m\ninput: {path: .}\n"}, "input_unreadable", "no regular file"),
    "empty": ({"rows": b""}, "empty_file", "at least one line"),
    "blank": ({"rows": b"\n \r\n\n"}, "empty_file", "at least one line"),
    "line 7": ({"spec": FAIL_JOB, "rows": [*ROWS, "{oops"]}, "invalid_rows", "line 7"),
    "duplicate": ({"rows": [*ROWS, ROWS[2]]}, "duplicate_custom_id", "'r2' stands in line 3 and again in line 7"),
    "none can run": ({"rows": ["{oops", "[]"]}, "no_valid_rows", "line 2"),
    "mixed": ({"rows": [*ROWS, '{"messages": [{"role": "user", "content": "x"}]}']}, "url_mismatch", "mixes"),
}


@pytest.mark.parametrize(("given", "code", "says"), REFUSED.values(), ids=REFUSED)
def test_what_could_not_be_submitted_is_one_line_and_exit_code_4(
    validate: Callable[..., Done], given: dict[str, object], code: str, says: str
) -> None:
    done = validate(**given)
    assert (done.code, done.out) == (4, "")
    [line] = done.err.splitlines()
    assert line.startswith("error: ")
    assert line.endswith(f"[{code}]")
    assert says in line

"""What a user can do wrong, through the real command: one clear line, a documented exit code, no traceback, no model
loaded.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    Bench = Any

ROW = json.dumps({"custom_id": "a", "prompt": "x"})
ROWS = [json.dumps({"custom_id": f"r{i}", "prompt": "x"}) for i in range(6)]


def says(bench: Bench, code: int, *words: str, verb: tuple[str, ...] = ("submit", "job.yaml")) -> None:
    done = bench.run(*verb, timeout=20)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    errors = [line for line in done.stderr.split("\n") if line.startswith(("error:", "Error:"))]
    assert len(errors) == 1, done.stderr
    assert all(word in errors[0] for word in words), errors[0]
    assert "loading" not in done.stderr


@pytest.fixture
def job(bench: Bench) -> Bench:
    bench.write_rows(ROWS)
    bench.write_job()
    return bench


def test_a_missing_job_file(bench: Bench) -> None:
    says(bench, 4, "nothing.yaml", verb=("submit", "nothing.yaml"))


def test_a_missing_input_file(job: Bench) -> None:
    (job.folder / "rows.jsonl").unlink()
    says(job, 4, "rows.jsonl", "[input_missing]")


def test_a_bad_key_suggests_the_right_one(job: Bench) -> None:
    job.write_job(sampling={"temprature": 0.5})
    says(job, 4, "temprature", "sampling.temperature", "[unknown_key]")


def test_a_malformed_line_7_stops_a_job_that_wants_it(job: Bench) -> None:
    job.write_rows([*ROWS, "{oops"])
    job.write_job(input={"path": "rows.jsonl", "on_invalid": "fail_job"})
    says(job, 4, "line 7", "[invalid_rows]")


def test_a_custom_id_that_stands_twice(job: Bench) -> None:
    job.write_rows([*ROWS, ROWS[2]])
    says(job, 4, "r2", "line 3", "line 7", "[duplicate_custom_id]")


def test_an_empty_file(job: Bench) -> None:
    job.write_rows([])
    says(job, 4, "rows.jsonl", "[empty_file]")


def test_a_model_that_is_not_there(job: Bench) -> None:
    job.write_job(model="no/such-model")
    says(job, 4, "no/such-model", "[model_not_found]")


def test_an_output_that_holds_something_else(job: Bench) -> None:
    job.output.parent.mkdir()
    job.output.write_text("my diary\n")
    done = job.submit()
    assert done.returncode == 4
    assert "[output_exists]" in done.stderr
    assert job.output.read_text() == "my diary\n"


def test_a_job_that_is_not_there(bench: Bench) -> None:
    says(bench, 4, "runner submit", "[job_not_found]", verb=("status", "last"))


def test_a_cursor_that_nobody_printed(bench: Bench) -> None:
    says(bench, 4, "[job_not_found]", verb=("events", "last", "--since", "x"))


@pytest.mark.parametrize(
    ("verb", "word"), [(("sbmit", "job.yaml"), "submit"), (("submit",), "SPEC"), (("status", "--jsn"), "--json")]
)
def test_wrong_usage(bench: Bench, verb: tuple[str, ...], word: str) -> None:
    says(bench, 2, word, verb=verb)


def test_validate_lists_rows_and_tells_a_refused_file(job: Bench, tmp_path: Path) -> None:
    job.write_rows([*ROWS, "{oops"])
    done = job.run("validate", "job.yaml")
    assert done.returncode == 0
    assert "line 7" in done.stdout
    assert "7 rows, 1 of them will fail" in done.stdout
    counts = json.loads(job.run("validate", "job.yaml", "--json").stdout)
    assert (counts["rows"], counts["invalid"], counts["errors"]["data"][0]["line"]) == (7, 1, 7)
    job.write_rows([*ROWS, ROWS[0]])
    says(job, 4, "[duplicate_custom_id]", verb=("validate", "job.yaml"))

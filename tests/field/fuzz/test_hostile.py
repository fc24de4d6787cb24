"""Whatever a file holds: no crash, no traceback, one result a row, and the exit code that says that rows failed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hostile import GOOD, MALFORMED, make_hostile

from streamrunner.runner.inputs import read_range, scan_input
from streamrunner.runner.spec import JobSpec

if TYPE_CHECKING:
    FieldJob = Any

DOCS = Path(__file__).resolve().parents[3] / "docs" / "inputs.md"
AT_ADMISSION = {"invalid_params", "context_length_exceeded"}
SPEC = {"name": "t", "model": "m", "task": "completion", "input": {"path": "hostile/*"}}


def documented_codes() -> set[str]:
    rows = re.findall(r"^\| (`[a-z_0-9`, ]+) \|", DOCS.read_text("utf-8"), re.MULTILINE)
    return {code for row in rows for code in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize("seed", range(12))
def test_every_row_gets_the_verdict_it_was_made_for(tmp_path: Path, seed: int) -> None:
    expected = make_hostile(tmp_path / "hostile", seed)
    scan = scan_input(JobSpec.model_validate(SPEC), tmp_path, tmp_path / "data")
    assert scan.rows == 500
    malformed = [row for row, verdict in enumerate(expected.verdicts) if verdict == MALFORMED]
    assert [error.index for error in scan.errors] == malformed
    assert {error.code for error in scan.errors} <= documented_codes()
    rows = [raw.row for one in scan.ranges for raw in read_range(one)]
    assert rows == list(range(500))


def test_a_hostile_file_of_500_rows_ends_with_a_result_or_a_reason_for_each(field: FieldJob) -> None:
    expected = make_hostile(field.folder / "hostile", seed=1)
    done = field.run("submit", "hostile/*", "--json", task="completion", engine={"max_model_len": 256})
    assert done.returncode == 3, done.stderr.decode()
    counts = json.loads(done.stdout)["request_counts"]
    results = field.results()
    assert (counts["total"], counts["completed"], counts["failed"]) == (
        500, expected.count(GOOD), 500 - expected.count(GOOD),
    )  # fmt: skip
    assert len(results) == len({line["id"] for line in results}) == 500
    completed = [line for line in results if line["error"] is None and line["response"]["status_code"] == 200]
    assert len(completed) == expected.count(GOOD)
    codes = {code_of(line) for line in results} - {None}
    assert codes <= documented_codes() | AT_ADMISSION


def code_of(line: dict[str, Any]) -> str | None:
    error = line["error"] or line["response"]["body"].get("error")
    return None if error is None else error["code"]

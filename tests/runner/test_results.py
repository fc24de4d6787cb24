"""Result lines as any reader makes them of a real log."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.fold import fold
from streamrunner.runner.inputs import scan_input
from streamrunner.runner.results import open_row_lines, result_lines
from streamrunner.runner.spec import JobSpec
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import Flush, JobLog, Terminal, WorkerLease, claimed_range
from streamrunner.sinks.reader import read_log

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.sinks.embedded.server import EmbeddedServer

SPEC = JobSpec.model_validate({"name": "t", "model": "m", "input": {"path": "rows.jsonl"}})
ERROR = {"code": "context_length_exceeded", "message": "too long", "param": None}
NUM_ROWS = 70  # two ranges


class Job:
    """A submitted job with one worker; row i of the first range ends as told, all others stay open."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        rows = [{"custom_id": f"c{i}", "prompt": "x"} for i in range(NUM_ROWS - 1)]
        lines = [*(json.dumps(row) for row in rows), "{oops"]
        (folder / "rows.jsonl").write_text("".join(line + "\n" for line in lines))
        self.keys = JobKeys("job_results")
        self.client: Any = server.client()
        self.log = JobLog(server, self.keys, "test", patience_s=5)
        scan = scan_input(SPEC, folder, folder)
        self.log.submit({"name": "t", "rows": scan.rows, "spec": {}}, scan.rows, [asdict(one) for one in scan.ranges])
        reply = self.log.join("a", "token", {"host": "h", "pid": 1, "fingerprint": {}})
        self.lease = WorkerLease("a", reply["epoch"], "token")
        self.claimed = claimed_range(self.log.claim(self.lease, []))

    def finish(self, row: int, *, failed: bool = False) -> None:
        data = {"row": row, "custom_id": f"c{row}", "attempt": 1, "range": self.claimed.id, "claim": self.claimed.claim}
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        kind = "request.failed" if failed else "request.completed"
        data |= {"error": ERROR} if failed else {"finish_reasons": ["stop"], "usage": usage}
        payload = json.dumps({"error": ERROR} if failed else {"choices": [], "n": row}).encode()
        end = Terminal(row, self.claimed.id, self.claimed.claim, kind, data, payload, 1, 2)
        assert self.log.flush(self.lease, Flush(row + 1, b"", "", (), [end]))["s"] == "OK"

    def ended(self) -> list[dict[str, Any]]:
        entries = read_log(self.client, self.keys)
        return [json.loads(one.line) for one in result_lines(self.client, self.keys, "job_results", entries)]

    def open(self) -> list[tuple[int, dict[str, Any]]]:
        state = fold(read_log(self.client, self.keys))
        lines = open_row_lines(self.client, self.keys, "job_results", state, SPEC)
        return [(one.row, json.loads(one.line)) for one in lines]


@pytest.fixture
def job(embedded: EmbeddedServer, tmp_path: Path) -> Job:
    return Job(embedded, tmp_path)


def test_rows_come_in_the_order_of_their_endings_with_their_bodies(job: Job) -> None:
    for row in range(3):
        job.finish(row, failed=row == 1)
    lines = job.ended()
    assert [line["custom_id"] for line in lines] == ["c0", "c1", "c2"]
    assert [line["response"]["status_code"] for line in lines] == [200, 400, 200]
    assert lines[2]["response"]["body"] == {"choices": [], "n": 2}
    assert lines[1]["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_a_log_without_endings_has_no_lines(job: Job) -> None:
    assert job.ended() == []


def test_open_rows_of_a_cancelled_job_say_so_under_their_own_names(job: Job) -> None:
    job.finish(0)
    job.log.control("cmd", "cancel")
    job.log.end("cancelled")
    lines = job.open()
    assert [row for row, _ in lines] == list(range(1, NUM_ROWS))
    assert [line["custom_id"] for _, line in lines] == [
        *(f"c{i}" for i in range(1, NUM_ROWS - 1)),
        f"row-{NUM_ROWS - 1}",
    ]
    assert all(line["response"] is None and line["error"]["code"] == "batch_cancelled" for _, line in lines)
    ids = [line["id"] for _, line in lines] + [line["id"] for line in job.ended()]
    assert len(set(ids)) == NUM_ROWS


def test_the_reason_of_a_failed_job_is_the_error_of_its_open_rows(job: Job) -> None:
    job.log.end("failed", "the model is broken")
    errors = [line["error"] for _, line in job.open()]
    assert errors == [{"code": "batch_failed", "message": "the model is broken"}] * NUM_ROWS


def test_the_input_is_needed_only_for_ranges_with_open_rows(job: Job, tmp_path: Path) -> None:
    for row in range(64):
        job.finish(row)
    (tmp_path / "rows.jsonl").unlink()
    job.log.control("cmd", "cancel")
    job.log.end("cancelled")
    assert len(job.ended()) == 64
    with pytest.raises(RunnerError) as caught:
        job.open()
    assert caught.value.code == "input_missing"

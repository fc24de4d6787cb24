"""Output files that follow a real log."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.exporter import Exporter
from streamrunner.runner.inputs import scan_input
from streamrunner.runner.job import JobContext
from streamrunner.runner.spec import JobSpec
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import Flush, JobLog, Terminal, WorkerLease, claimed_range

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.sinks.embedded.server import EmbeddedServer

SPEC = JobSpec.model_validate({"name": "t", "model": "m", "input": {"path": "rows.jsonl"}})
NUM_ROWS = 5


class Job:
    """A submitted job of one range, and a worker that ends its rows."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        lines = [json.dumps({"custom_id": f"c{i}", "prompt": "x"}) + "\n" for i in range(NUM_ROWS)]
        (folder / "rows.jsonl").write_text("".join(lines))
        self.server, self.folder, self.num_flushes = server, folder, 0
        self.context = JobContext("job_export", JobKeys("job_export"), SPEC, 7, folder, 1700)
        self.log = JobLog(server, self.context.keys, "test", patience_s=5)
        scan = scan_input(SPEC, folder, folder)
        self.log.submit({"name": "t", "rows": scan.rows, "spec": {}}, scan.rows, [asdict(one) for one in scan.ranges])
        reply = self.log.join("a", "token", {"host": "h", "pid": 1, "fingerprint": {}})
        self.lease = WorkerLease("a", reply["epoch"], "token")
        self.claimed = claimed_range(self.log.claim(self.lease, []))

    @property
    def output(self) -> Path:
        return self.folder / "out" / "results.jsonl"

    def finish(self, row: int) -> None:
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        data: dict[str, Any] = {
            "row": row, "custom_id": f"c{row}", "attempt": 1, "range": self.claimed.id, "claim": self.claimed.claim,
            "finish_reasons": ["stop"], "usage": usage,
        }  # fmt: skip
        end = Terminal(row, self.claimed.id, self.claimed.claim, "request.completed", data, b"{}", 1, 2)
        self.num_flushes += 1
        assert self.log.flush(self.lease, Flush(self.num_flushes, b"", "", (), [end]))["s"] == "OK"

    def cancel(self) -> None:
        self.log.control("cmd", "cancel")
        self.log.end("cancelled")

    def export(self) -> None:
        exporter = Exporter(self.context, self.server, self.output)
        exporter.start()
        exporter.finish()

    def names(self) -> list[str]:
        return [json.loads(line)["custom_id"] for line in self.output.read_text().splitlines()]


@pytest.fixture
def job(embedded: EmbeddedServer, tmp_path: Path) -> Job:
    return Job(embedded, tmp_path)


def test_a_row_is_in_the_file_as_soon_as_it_has_ended(job: Job, eventually: Any) -> None:
    exporter = Exporter(job.context, job.server, job.output)
    exporter.start()
    job.finish(0)
    eventually(lambda: job.output.exists() and job.names() == ["c0"])
    job.finish(1)
    eventually(lambda: job.names() == ["c0", "c1"])
    exporter.finish()


def test_an_export_after_an_export_adds_only_what_is_new(job: Job) -> None:
    job.finish(0)
    job.export()
    job.finish(1)
    job.finish(2)
    job.export()
    assert job.names() == ["c0", "c1", "c2"]


def test_a_file_that_lost_a_line_gets_it_again(job: Job) -> None:
    job.finish(0)
    job.finish(1)
    job.export()
    first, second = job.output.read_text().splitlines(keepends=True)
    job.output.write_text(first + second[:20])
    job.export()
    assert job.output.read_text() == first + second


def test_every_row_of_a_cancelled_job_has_one_line(job: Job) -> None:
    job.finish(3)
    job.export()
    job.cancel()
    job.export()
    assert job.names() == ["c3", "c0", "c1", "c2", "c4"]
    job.export()
    assert len(job.names()) == NUM_ROWS


def test_an_input_that_went_away_is_told_and_not_lost_in_a_thread(job: Job) -> None:
    job.finish(0)
    (job.folder / "rows.jsonl").unlink()
    job.cancel()
    with pytest.raises(RunnerError, match=r"rows\.jsonl"):
        job.export()
    assert job.names() == ["c0"]


def test_a_file_of_somebody_else_is_refused_at_once(job: Job) -> None:
    job.output.parent.mkdir()
    job.output.write_text("notes\n")
    with pytest.raises(SinkError) as caught:
        Exporter(job.context, job.server, job.output).start()
    assert caught.value.code == "output_exists"

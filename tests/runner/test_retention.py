"""Results that leave the log once every output has them, and not a moment before."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING, Any

import pytest
from raw_job import RawJob

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.exporter import Exporter
from streamrunner.runner.fsck import examine
from streamrunner.runner.job import JobContext
from streamrunner.runner.result_feed import ResultFeed
from streamrunner.runner.retention import durable_until
from streamrunner.runner.row_index import RowIndex
from streamrunner.runner.selection import Selection
from streamrunner.runner.spec import JobSpec, check_spec
from streamrunner.sinks.directory import JobDirectory
from streamrunner.sinks.embedded.server import EmbeddedServer
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import Flush
from streamrunner.sinks.outputs.record import pack
from streamrunner.sinks.reader import read_log

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.sinks.server import LogServer

DAY_MS = 24 * 3600 * 1000
SPEC = {
    "name": "t", "model": "m", "requests": [{"prompt": "x"}] * 6, "events": {"retention": "results"},
    "outputs": [{"path": "all.jsonl"}, {"path": "late.csv"}],
}  # fmt: skip


class Kept:
    """A job of six rows with two outputs, whose results may go."""

    def __init__(self, server: LogServer, folder: Path) -> None:
        self.spec = JobSpec.model_validate(SPEC)
        self.raw_job = RawJob(server, rows=6, spec=self.spec.model_dump(mode="json"))
        self.raw: Any = self.raw_job.raw
        self.keys = self.raw_job.keys
        self.context = JobContext(self.keys.job_id, self.keys, self.spec, 7, folder, 1700)
        self.folder, self.server = folder, server
        self.raw_job.join()

    def end(self, *rows: int) -> None:
        for row in rows:
            self.raw_job.flush(done=row)

    def export(self, output: int) -> None:
        exporter = Exporter(self.context, self.server, self.spec.outputs[output])
        exporter.start()
        exporter.finish()

    def rows_left(self) -> int:
        return int(self.raw.xlen(self.keys.res))

    def lines(self, name: str) -> int:
        return len((self.folder / name).read_text().splitlines())

    def grow_old(self, name: str) -> None:
        """As if the exporter had last been heard of a day ago."""
        field = str(self.folder / name)
        said_ms, seq = self.raw.hget(self.keys.exporters, field).split()
        self.raw.hset(self.keys.exporters, field, b"%d %b" % (int(said_ms) - DAY_MS, seq))


@pytest.fixture
def job(log_server: LogServer, tmp_path: Path) -> Kept:
    return Kept(log_server, tmp_path)


def test_nothing_goes_before_every_output_has_said_a_word(job: Kept) -> None:
    job.end(0, 1, 2)
    job.export(0)
    assert job.rows_left() == 3


def test_trimming_stops_at_a_lagging_reader_and_goes_on_when_it_has_caught_up(job: Kept) -> None:
    job.end(0, 1)
    job.export(1)
    job.end(2, 3, 4)
    job.export(0)
    # The second output has rows 0 and 1 alone.
    assert job.rows_left() == 3
    job.export(1)
    assert job.rows_left() == 0
    job.end(5)
    assert job.raw_job.log.end("completed")["s"] == "OK"
    job.export(0)
    assert job.rows_left() == 1
    job.export(1)
    assert job.rows_left() == 0
    assert (job.lines("all.jsonl"), job.lines("late.csv")) == (6, 7)


def test_the_log_stays_whole_and_is_sound(job: Kept) -> None:
    job.end(0, 1, 2)
    job.export(0)
    job.export(1)
    job.end(3)
    assert job.rows_left() == 1
    assert [entry.seq for entry in read_log(job.raw, job.keys)] == list(range(1, job.raw.xlen(job.keys.log) + 1))
    assert examine(job.raw, job.keys).is_sound
    job.raw.delete(job.keys.res)
    assert examine(job.raw, job.keys).is_sound


def test_an_output_that_is_silent_for_a_day_holds_nothing_and_is_told_what_it_missed(job: Kept) -> None:
    job.end(0)
    job.export(1)
    job.end(1, 2)
    job.grow_old("late.csv")
    job.export(0)
    assert job.rows_left() == 0
    with pytest.raises(SinkError, match="row 1: `retention: results`") as caught:
        job.export(1)
    assert caught.value.code == "results_missing"
    assert job.lines("late.csv") == 2


def test_another_reader_may_hold_results_by_saying_so(job: Kept) -> None:
    job.end(0, 1)
    [first, *_] = [entry for entry in read_log(job.raw, job.keys) if entry.type == "request.completed"]
    assert job.raw_job.log.export("cache", first.id, first.seq, None)["s"] == "OK"
    job.export(0)
    job.export(1)
    assert job.rows_left() == 1


def test_a_word_about_entries_that_the_server_has_lost_counts_for_nothing(job: Kept) -> None:
    job.end(0)
    last = job.raw.xlen(job.keys.log)
    assert job.raw_job.log.export("x", f"{last}-9", last, [])["s"] == "STALE"
    assert job.raw_job.log.export("x", f"{last}-0", last + 5, [])["s"] == "STALE"
    assert not job.raw.exists(job.keys.exporters)


def test_a_large_result_goes_with_its_reference(job: Kept) -> None:
    lease, n = job.raw_job._workers["w"]
    body = json.dumps({"choices": [{"index": 0, "text": "x" * 1_100_000}]}).encode()
    job.raw_job.log.flush(lease, Flush(n, b"", "", (), [job.raw_job._terminal(0)._replace(payload=body)]))
    assert job.raw.hlen(job.keys.blobs) == 1
    job.export(0)
    job.export(1)
    assert not job.raw.exists(job.keys.blobs)
    assert "x" * 1_100_000 in (job.folder / "all.jsonl").read_text()


def test_a_second_export_of_a_trimmed_job_needs_nothing(job: Kept) -> None:
    job.end(0, 1)
    for _ in range(2):
        job.export(0)
        job.export(1)
    assert job.lines("all.jsonl") == 2
    with pytest.raises(SinkError, match="an output that was written before has it"):
        list(ResultFeed(job.raw, job.keys).results.records([0]))


def test_only_retention_results_lets_results_go(job: Kept) -> None:
    job.context = JobContext(
        job.keys.job_id, job.keys, JobSpec.model_validate({**SPEC, "events": {"retention": "live"}}), 7, job.folder, 1
    )
    job.end(0)
    job.export(0)
    job.export(1)
    assert job.rows_left() == 1
    assert not job.raw.exists(job.keys.exporters)


def test_rows_that_wait_for_their_turn_are_held(job: Kept) -> None:
    """In the input's order row 2 is not written before row 0, whenever it ended."""
    job.end(2, 0)
    index = RowIndex()
    index.apply(read_log(job.raw, job.keys))
    seq_of_row_2 = min(entry.seq for entry in read_log(job.raw, job.keys) if entry.type == "request.completed")
    in_turn = Selection("all", "input")
    assert durable_until(index, in_turn, array("Q", [pack(0, 1)])) == seq_of_row_2 - 1
    assert durable_until(index, in_turn, array("Q", [pack(0, 1), pack(2, 1)])) == index.state.last_seq
    assert durable_until(index, Selection("failed"), array("Q")) == index.state.last_seq


@pytest.mark.parametrize("outputs", [[{"path": "x.parquet"}], [{"path": "s3://bucket/x.jsonl"}], []])
def test_results_may_only_go_to_outputs_that_never_need_them_again(outputs: list[Any]) -> None:
    with pytest.raises(RunnerError, match="set it to live"):
        check_spec({**SPEC, "outputs": outputs}, "job.yaml")


def test_a_whole_job_leaves_nothing_but_its_history_and_its_outputs(bench: Any, chat_row: Any) -> None:
    bench.write_rows([chat_row(number) for number in range(5)])
    bench.write_job(events={"retention": "results"})
    assert bench.submit().returncode == 0
    assert len(bench.lines()) == 5
    with EmbeddedServer(bench.data_dir) as server:
        raw: Any = server.client()
        [pointer] = JobDirectory(raw, "sr").jobs()
        keys = JobKeys(pointer.job_id)
        assert raw.xlen(keys.res) == 0
        assert examine(raw, keys).is_sound
        assert "is already done" in bench.submit().stdout
        gone = bench.run("results", "last")
        assert (gone.returncode, "[results_missing]" in gone.stderr) == (4, True), gone.stderr

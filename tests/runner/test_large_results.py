"""Rows that are far longer than others: no entry of a stream becomes large, and no reader notices."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from raw_job import RawJob

from streamrunner.engine.params import SamplingParams
from streamrunner.engine.step import TokenLogprob
from streamrunner.runner.durable import ChoiceKey, fold_steps
from streamrunner.runner.flight import ChoiceRun, RowRun
from streamrunner.runner.fsck import examine
from streamrunner.runner.job import JobContext
from streamrunner.runner.lease import LeaseKeeper
from streamrunner.runner.pieces import MAX_STEP_BYTES, pieces, wire_size
from streamrunner.runner.result_feed import ResultFeed
from streamrunner.runner.rows import Row
from streamrunner.runner.spec import JobSpec
from streamrunner.runner.writer import LogWriter
from streamrunner.sinks.blob import MAX_PAYLOAD_BYTES, parse_reference
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import Flush, JobLog, claimed_range
from streamrunner.sinks.reader import read_steps
from streamrunner.sinks.wire import StepDelta

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.sinks.server import LogServer

INFO: dict[str, Any] = {"host": "h", "pid": 1, "fingerprint": {}}
NUM_TOKENS, NUM_TOP = 100_000, 5
ENTRY_LIMIT = 1 << 20


class Desk:
    """A worker's writer on a job of four rows, in one range of its own."""

    def __init__(self, server: LogServer, folder: Path, name: str, **events: Any) -> None:
        spec = JobSpec.model_validate({"name": "t", "model": "m", "requests": [{"prompt": "x"}], "events": events})
        self.server, self.keys = server, JobKeys(f"job_{name}")
        job = JobContext(self.keys.job_id, self.keys, spec, 7, folder, 1700)
        self.log = JobLog(server, self.keys, "w", patience_s=10)
        self.log.submit({"name": "t", "rows": 4, "spec": spec.model_dump(mode="json")}, 4, [{"first": 0, "count": 4}])
        self.lease = LeaseKeeper("w", JobLog(server, self.keys, "w"), INFO)
        self.lease.join(self.log)
        self.claimed = claimed_range(self.log.claim(self.lease.lease, []))
        self.writer = LogWriter(job, self.log, self.lease, lambda *_: None, str)
        self.raw: Any = server.client()

    def run(self, row: int) -> RowRun:
        place = (self.claimed.id, self.claimed.claim, 1)
        return RowRun(Row(row, f"r{row}", "completion"), *place, [1, 2], SamplingParams(), [ChoiceRun(f"{row}.0")])


def long_row(desk: Desk, row: int) -> RowRun:
    run = desk.run(row)
    [choice] = run.choices
    choice.token_ids = [number % 49_000 for number in range(NUM_TOKENS)]
    choice.logprobs = [
        tuple(TokenLogprob(top, -0.123456 * top, top) for top in range(NUM_TOP + 1)) for _ in range(NUM_TOKENS)
    ]
    choice.text, choice.finish_reason = "word " * NUM_TOKENS, "length"
    return run


def largest_entry(raw: Any, key: str) -> int:
    pages = raw.xrange(key)
    return max(sum(len(value) for value in fields.values()) for _, fields in pages)


def test_a_row_of_a_hundred_thousand_tokens_with_logprobs(embedded: LogServer, tmp_path: Path) -> None:
    """As a worker appends it that has taken it over whole, and that ends it in the same flush."""
    desk = Desk(embedded, tmp_path, "long")
    run = long_row(desk, 1)
    desk.writer.add_deltas(run, run.whole())
    desk.writer.complete(run)
    desk.writer.flush([])
    desk.lease.stop()
    assert (
        max(largest_entry(desk.raw, key) for key in (desk.keys.log, desk.keys.res, desk.keys.steps("w"))) < ENTRY_LIMIT
    )

    durable = fold_steps(read_steps(desk.raw, desk.keys, "w"), range(4))[ChoiceKey(1, 0)]
    assert durable.token_ids == run.choices[0].token_ids
    assert len(durable.logprobs) == NUM_TOKENS

    [record] = ResultFeed(desk.raw, desk.keys).results.records([1])
    assert len(record.body) > 5 * MAX_PAYLOAD_BYTES
    [answer] = json.loads(record.body)["choices"]
    assert answer["text"] == run.choices[0].text
    assert len(answer["logprobs"]["token_logprobs"]) == NUM_TOKENS
    assert examine(desk.raw, desk.keys).is_sound


@pytest.fixture
def job(log_server: LogServer) -> RawJob:
    made = RawJob(log_server)
    made.join()
    return made


def end_with_row(job: RawJob, row: int, text: str, *, payload: bytes = b"", expected: str = "OK") -> None:
    lease, n = job._workers["w"]
    body = payload or json.dumps({"choices": [{"index": 0, "text": text}]}).encode()
    reply = job.log.flush(lease, Flush(n, b"", "", (), [job._terminal(row)._replace(payload=body)]))
    assert reply["s"] == expected
    job._workers["w"] = (lease, n + 1)


def test_only_what_is_too_large_goes_by_reference(job: RawJob) -> None:
    end_with_row(job, 0, "x" * (MAX_PAYLOAD_BYTES - 100))
    assert job.raw.exists(job.keys.blobs) == 0
    end_with_row(job, 1, "y" * MAX_PAYLOAD_BYTES)
    assert job.raw.hlen(job.keys.blobs) == 1
    payloads = [fields[b"p"] for _, fields in job.raw.xrange(job.keys.res)]
    assert [parse_reference(payload) is not None for payload in payloads] == [False, True]


def test_an_event_brings_the_choices_of_a_large_result(job: RawJob) -> None:
    end_with_row(job, 0, "z" * MAX_PAYLOAD_BYTES)
    job.cancel()
    [event] = [one for one in job.watch(types=("request.completed",)) if one.type == "request.completed"]
    assert event.to_json()["data"]["choices"][0]["text"] == "z" * MAX_PAYLOAD_BYTES


def test_a_resent_flush_keeps_one_copy(job: RawJob) -> None:
    lease, n = job._workers["w"]
    end_with_row(job, 0, "z" * MAX_PAYLOAD_BYTES)
    job._workers["w"] = (lease, n)
    end_with_row(job, 0, "z" * MAX_PAYLOAD_BYTES, expected="DUP")
    assert job.raw.hlen(job.keys.blobs) == 1


def test_a_reference_to_nothing_is_refused_before_anything_is_written(job: RawJob) -> None:
    from redis.exceptions import ResponseError

    before = job.raw.xlen(job.keys.log)
    for ref in ({"sha256": "0" * 64, "bytes": 5}, {}):
        with pytest.raises(ResponseError, match="refers to nothing"):
            end_with_row(job, 0, "", payload=json.dumps({"ref": ref}, separators=(",", ":")).encode())
    assert job.raw.xlen(job.keys.log) == before


def test_a_large_result_that_is_gone_or_changed_is_told(job: RawJob) -> None:
    end_with_row(job, 0, "z" * MAX_PAYLOAD_BYTES)
    [name] = job.raw.hkeys(job.keys.blobs)
    job.raw.hset(job.keys.blobs, name, "{}")
    with pytest.raises(SinkError, match="not what was written") as caught:
        list(ResultFeed(job.raw, job.keys).results.records([0]))
    assert caught.value.code == "results_missing"
    job.raw.delete(job.keys.blobs)
    assert [one.code for one in examine(job.raw, job.keys).findings] == ["result_missing"]


@pytest.mark.parametrize("num_tokens", [1, 40_000, 200_000])
@pytest.mark.parametrize("num_scores", [0, 3])
def test_pieces_are_small_and_together_the_whole(num_tokens: int, num_scores: int) -> None:
    logprobs = [[[1, -0.5, 1]] * num_scores] * num_tokens if num_scores else None
    whole = StepDelta(3, 1, 0, 7, list(range(num_tokens)), "the text", logprobs)
    parts = list(pieces(whole))
    assert all(wire_size(one) <= MAX_STEP_BYTES + len(one.text) for one in parts)
    assert [token for one in parts for token in one.token_ids] == whole.token_ids
    assert "".join(one.text for one in parts) == whole.text
    assert [one.at for one in parts] == [7 + sum(len(p.token_ids) for p in parts[:i]) for i in range(len(parts))]
    assert logprobs is None or [score for one in parts for score in one.logprobs or ()] == logprobs


def test_memory_stays_level_over_a_long_job(embedded: LogServer, tmp_path: Path) -> None:
    """Thousands of flushes of rows that come and go: under `live` retention only what is still needed stays."""
    desk = Desk(embedded, tmp_path, "steady")
    lengths, used = [], []
    for number in range(3_500):
        run = desk.run(1)
        desk.writer.add_deltas(run, [StepDelta(1, desk.claimed.claim, 0, number, [number] * 32, "x" * 120)])
        desk.writer.flush([run])
        if number % 500 == 499:
            lengths.append(desk.raw.xlen(desk.keys.steps("w")))
            used.append(desk.raw.info("memory")["used_memory"])
    assert max(lengths) < 2_300
    assert max(used[4:]) - min(used[4:]) < 512 * 1024
    desk.lease.stop()

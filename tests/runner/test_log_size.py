"""What a job's log will take, against what it does take."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from raw_job import RawJob

from streamrunner.runner.cli.common import Where
from streamrunner.runner.cli.submit import _size_notices
from streamrunner.runner.inputs import RangeSpec
from streamrunner.runner.log_size import LogSize, Room, forecast_size, memory_left, size_notices
from streamrunner.runner.spec import JobSpec
from streamrunner.sinks.log import Flush
from streamrunner.sinks.server import ExternalServer

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.sinks.server import LogServer

ROWS, TOKENS = 2_000, 200


def spec(**sections: Any) -> JobSpec:
    sampling = {"max_tokens": TOKENS, **sections.pop("sampling", {})}
    return JobSpec.model_validate({"name": "t", "model": "m", "input": {"path": "r"}, "sampling": sampling, **sections})


def ranges(rows: int = ROWS, tokens: int = TOKENS) -> list[RangeSpec]:
    return [RangeSpec(0, rows, "r", 0, 1, "", 1, work=[[rows, 10, rows, rows * tokens]])]


def body(row: int) -> bytes:
    message = {"role": "assistant", "content": "word " * TOKENS, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "length", "stop_reason": None, "logprobs": None}
    usage = {"prompt_tokens": 10, "completion_tokens": TOKENS, "total_tokens": 10 + TOKENS}
    head = {"id": f"chatcmpl-01m8rfcz5bvxhnmgvgszs6n72r-{row}", "object": "chat.completion", "created": 1796104496}
    return json.dumps({**head, "model": "smollm2", "choices": [choice], "usage": usage}, separators=(",", ":")).encode()


def test_the_forecast_is_what_such_a_job_takes(embedded: LogServer) -> None:
    job = RawJob(embedded, rows=ROWS)
    job.join()
    before = job.raw.info()
    lease, n = job._workers["w"]
    for first in range(0, ROWS, 10):
        ends = [job._terminal(row)._replace(payload=body(row)) for row in range(first, first + 10)]
        assert job.log.flush(lease, Flush(n + first // 10, b"", "", (), ends))["s"] == "OK"
    after = job.raw.info()
    told = forecast_size(spec(), ranges())
    assert told.memory == pytest.approx(after["used_memory"] - before["used_memory"], rel=0.25)
    # Without the tokens of each step, which this test does not write.
    written = after["aof_current_size"] - before["aof_current_size"]
    assert told.file - 30 * ROWS * TOKENS == pytest.approx(written, rel=0.25)


def test_logprobs_choices_and_retention_count() -> None:
    plain = forecast_size(spec(), ranges())
    assert forecast_size(spec(sampling={"logprobs": 5}), ranges()).memory > 20 * plain.memory
    assert forecast_size(spec(), ranges(tokens=3 * TOKENS)).memory > 2 * plain.memory
    leaving = forecast_size(spec(events={"retention": "results"}), ranges())
    assert leaving.memory == 300 * ROWS
    assert leaving.file == plain.file


@pytest.mark.parametrize(
    ("info", "left"),
    [
        ({"maxmemory": 100, "used_memory": 30, "total_system_memory": 900}, 70),
        ({"maxmemory": 0, "used_memory": 30, "total_system_memory": 900}, 870),
        ({}, None),
    ],
)
def test_room_is_the_servers_limit_or_its_machines(info: dict[str, int], left: int | None) -> None:
    assert memory_left(info) == left


def test_only_what_may_not_fit_is_told_with_the_remedy() -> None:
    size = LogSize(8_000_000_000, 9_000_000_000)
    assert size_notices(size, Room(20_000_000_000, None), "here") == []
    assert size_notices(size, Room(None, None), "here") == []
    [memory, disk] = size_notices(size, Room(4_000_000_000, 50_000_000), "here")
    assert "8.0 GB of memory" in memory
    assert "here has 4.0 GB left" in memory
    assert "retention: results" in memory
    assert "50.0 MB are free" in disk


def test_submit_asks_the_server_itself(redis_factory: Any, tmp_path: Path) -> None:
    def notices(rows: int) -> list[str]:
        request: Any = SimpleNamespace(spec=spec(), scan=SimpleNamespace(ranges=ranges(rows)))
        with ExternalServer(redis_factory(maxmemory="8mb")) as server:
            return _size_notices(server, Where(None, tmp_path), request)

    assert notices(10) == []
    assert ["may take 17.5 MB of memory" in one for one in notices(10_000)] == [True]

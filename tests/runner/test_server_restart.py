"""A Redis that is killed and started again under a worker and under somebody who only watches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sinks"))
from redis_process import RedisProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    Bench = Any

ROWS = 24


@pytest.mark.redis
def test_a_worker_and_a_watcher_outlive_restarts_of_their_server(
    bench: Bench, redis_binary: str, tmp_path: Path, chat_row: Callable[..., str], eventually: Callable[..., None]
) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    redis_process = RedisProcess(redis_binary, folder)
    bench.redis_url = redis_process.url
    bench.write_rows([chat_row(i) for i in range(ROWS)])
    bench.write_job(
        sampling={"temperature": 0.8, "seed": 7, "max_tokens": 300, "ignore_eos": True},
        engine={"max_model_len": 512, "max_num_seqs": 8},
    )
    try:
        worker = bench.start("submit", "job.yaml")
        eventually(lambda: any(redis_process.client().scan_iter("sr:*:steps:*")), seconds=60)
        attached = bench.start("submit", "job.yaml")
        said: list[str] = []
        assert attached.stderr is not None
        for line in attached.stderr:
            said.append(line)
            if "attached to it" in line:
                break
        for _ in range(2):
            assert worker.poll() is None, "the job still runs when its server is killed"
            redis_process.restart()
        _, worker_said = worker.communicate(timeout=90)
        attached.communicate(timeout=90)
        assert (worker.returncode, attached.returncode) == (0, 0), worker_said
        assert worker_said.count("the log takes no writes") <= 2, "once an outage"
        ended = [event["data"]["row"] for event in bench.events() if event["type"] == "request.completed"]
        assert sorted(ended) == list(range(ROWS))
    finally:
        redis_process.kill()

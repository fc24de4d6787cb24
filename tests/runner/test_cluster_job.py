"""The command line on a Redis Cluster: a job's life, with its keys on one node and its pointers on another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sinks"))
from cluster import two_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Bench = Any


@pytest.fixture
def cluster_bench(bench: Bench, redis_binary: str, tmp_path: Path) -> Iterator[Bench]:
    folder = tmp_path / "nodes"
    folder.mkdir()
    with two_nodes(redis_binary, folder) as ports:
        bench.redis_url = f"redis://127.0.0.1:{ports[1]}"
        yield bench


@pytest.mark.redis
def test_a_job_in_a_cluster_from_submit_to_purge(cluster_bench: Bench, chat_row: Callable[..., str]) -> None:
    bench = cluster_bench
    bench.write_rows([chat_row(i) for i in range(3)])
    bench.write_job()
    first, again = bench.submit(), bench.submit()
    assert (first.returncode, again.returncode) == (0, 0)
    assert "already done" in again.stdout
    assert [event["type"] for event in bench.events()][-1] == "job.ended"
    for verb in ("status", "results", "watch", "fsck"):
        done = bench.run(verb, "last")
        assert (done.returncode, done.stderr) == (0, ""), verb
    assert bench.run("purge", "last", "--yes").returncode == 0
    assert bench.run("list").stdout.count("job_") == 0

"""A Redis Cluster of two nodes: a job's keys share one slot, wherever that is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import redis
from cluster import two_nodes
from test_append_faults import INFO, completed

from streamrunner.sinks.directory import JobDirectory
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import Flush, JobLog, WorkerLease, claimed_range
from streamrunner.sinks.reader import read_log, read_payloads
from streamrunner.sinks.server import ExternalServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def nodes(redis_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    with two_nodes(redis_binary, tmp_path_factory.mktemp("nodes")) as ports:
        yield ports


@pytest.mark.redis
def test_a_cluster_client_never_repeats_a_command_on_its_own(nodes: list[int]) -> None:
    client: Any = ExternalServer(f"redis://127.0.0.1:{nodes[0]}").client()
    assert client.retry.get_retries() == 0
    for node in client.get_primaries():
        connection = client.get_redis_connection(node).connection_pool.get_connection()
        assert connection.retry.get_retries() == 0
        assert connection.protocol == 2


@pytest.mark.redis
def test_jobs_on_both_nodes_are_run_listed_and_read_by_any_address(nodes: list[int]) -> None:
    server = ExternalServer(f"redis://127.0.0.1:{nodes[0]}")
    directory = JobDirectory(server.client(), "sr")
    for number in range(6):
        keys = JobKeys(f"job_c{number}")
        assert directory.reserve(f"key{number}", keys.job_id) == keys.job_id
        assert directory.replace(f"key{number}", keys.job_id, keys.job_id) == keys.job_id
        directory.announce(keys.job_id, f"n{number}")
        run_job(server, keys)
    other = ExternalServer(f"redis://127.0.0.1:{nodes[1]}")
    assert [job.name for job in JobDirectory(other.client(), "sr").jobs()] == [f"n{number}" for number in range(6)]
    for number in range(6):
        check_history(other, JobKeys(f"job_c{number}"))
    sizes = [redis.Redis(port=port).dbsize() for port in nodes]
    assert all(size > 0 for size in sizes), "the jobs are spread"
    assert asyncio.run(read_async(other, JobKeys("job_c0").log)) > 3


def run_job(server: ExternalServer, keys: JobKeys) -> None:
    log = JobLog(server, keys, "w", patience_s=5)
    log.submit({"name": "t"}, 1, [{"first": 0, "count": 1}])
    lease = WorkerLease("w", log.join("w", "t", INFO)["epoch"], "t")
    claimed = claimed_range(log.claim(lease, []))
    assert log.flush(lease, Flush(1, b'[[0,1,0,0,[5],"x"]]', "", [], [completed(0, claimed)]))["s"] == "OK"
    assert log.end("completed")["s"] == "OK"


def check_history(server: ExternalServer, keys: JobKeys) -> None:
    client = server.client(blocking=True)
    entries = list(read_log(client, keys))
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert entries[-1].type == "job.ended"
    assert len(read_payloads(client, keys, [one for one in entries if one.type == "request.completed"])) == 1
    assert client.xread({keys.log: "0", keys.res: "0"}, block=1000)


async def read_async(server: ExternalServer, key: str) -> int:
    client: Any = server.async_client()
    try:
        return len(await client.xrange(key))
    finally:
        await client.aclose()

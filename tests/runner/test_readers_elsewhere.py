"""Readers of jobs whose log is in a Cluster, or whose user may do nothing but read."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from raw_job import WHOLE, RawJob, shown, word

from streamrunner.runner import Client
from streamrunner.sinks.server import ExternalServer

if TYPE_CHECKING:
    from collections.abc import Callable

USERS = Path(__file__).parents[2] / "deploy" / "redis" / "users.acl"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def read_async(job: RawJob) -> list[str]:
    return [word(event) async for event in job.awatch()]


@pytest.mark.redis
def test_a_job_in_a_cluster_is_watched_as_elsewhere(
    redis_factory: Callable[..., str], eventually: Callable[..., None]
) -> None:
    port = free_port()
    redis_factory(port=str(port), cluster_enabled="yes", cluster_port=str(free_port()))
    node: Any = redis.Redis(port=port)
    node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    eventually(lambda: node.cluster("info")["cluster_state"] == "ok", seconds=20)
    url = f"redis://127.0.0.1:{port}"
    job = RawJob(ExternalServer(url))
    job.raw.xadd("sr:jobs", {"job": job.id, "name": "far"})
    watched = job.watch()
    job.run_through()
    assert shown(watched) == WHOLE
    assert asyncio.run(read_async(job)) == WHOLE
    with Client(redis_url=url) as client:
        assert client.job("far").status().request_counts.completed == 2
        assert client.job("far").wait().status == "cancelled"


@pytest.mark.redis
def test_the_read_only_user_can_watch(debian_redis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = RawJob(ExternalServer(debian_redis))
    job.run_through()
    job.raw.xtrim(job.keys.steps("w"), minid="1-2", approximate=False)
    [rules] = re.findall(r"^user watcher (on .*)$", USERS.read_text(), re.MULTILINE)
    job.raw.execute_command("ACL", "SETUSER", "watcher", *rules.replace("#WATCHER_SHA256", ">three").split())
    job.server = ExternalServer(debian_redis.replace("unix://", "unix://watcher:three@"))
    seen = shown(job.watch())
    assert seen == [*WHOLE[:4], "gap", *WHOLE[5:]]
    assert asyncio.run(read_async(job)) == seen
    assert shown(job.watch(snapshot=True)) == ["snapshot", "ended"]

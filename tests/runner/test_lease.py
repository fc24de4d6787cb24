from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.runner import lease as lease_module
from streamrunner.runner.lease import LeaseKeeper, new_worker_id
from streamrunner.runner.phase import phase_progress
from streamrunner.sinks.events import validate_event
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import JobLog
from streamrunner.sinks.reader import read_log
from streamrunner.sinks.wire import decode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamrunner.sinks.server import LogServer

INFO = {"host": "h", "pid": 1, "fingerprint": {}}
_ids = itertools.count()


@pytest.fixture
def keys(log_server: LogServer) -> JobKeys:
    keys = JobKeys(f"job_lease{next(_ids)}")
    JobLog(log_server, keys, "t").submit({"name": "t"}, 2, [{"first": 0, "count": 2}])
    return keys


@pytest.fixture
def keeper(log_server: LogServer, keys: JobKeys, monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaseKeeper]:
    monkeypatch.setattr(lease_module, "BEAT_MS", 20)
    made = LeaseKeeper("w1", JobLog(log_server, keys, "w1"), INFO)
    yield made
    made.stop()


def test_worker_ids_are_never_the_same() -> None:
    assert len({new_worker_id() for _ in range(100)}) == 100


def test_nothing_can_be_written_before_a_join(keeper: LeaseKeeper) -> None:
    with pytest.raises(RuntimeError):
        _ = keeper.lease


def test_beats_keep_the_lease_and_report_the_jobs_standing(
    keeper: LeaseKeeper, log_server: LogServer, keys: JobKeys, eventually: Callable[..., None]
) -> None:
    log = JobLog(log_server, keys, "w1")
    assert keeper.join(log)["s"] == "OK"
    client: Any = log_server.client()
    client.pexpire(keys.lease("w1"), 1000)
    eventually(lambda: client.pttl(keys.lease("w1")) > 10_000)
    log.control("c", "pause")
    eventually(lambda: keeper.control["paused"])
    assert not keeper.faulted.is_set()


def test_a_lease_that_is_gone_is_noticed_and_can_be_acquired_anew(
    keeper: LeaseKeeper, log_server: LogServer, keys: JobKeys, eventually: Callable[..., None]
) -> None:
    log = JobLog(log_server, keys, "w1")
    keeper.join(log)
    first = keeper.lease
    log.lost("w1", "test")
    eventually(keeper.faulted.is_set)
    assert keeper.join(log)["s"] == "OK"
    assert keeper.lease.epoch > first.epoch
    assert keeper.lease.token != first.token
    assert not keeper.faulted.is_set()


def test_leaving_gives_the_lease_back(keeper: LeaseKeeper, log_server: LogServer, keys: JobKeys) -> None:
    log = JobLog(log_server, keys, "w1")
    keeper.join(log)
    keeper.leave(log, "SIGTERM")
    client: Any = log_server.client()
    assert not client.exists(keys.lease("w1"))


def test_a_phase_is_told_at_once_and_once(
    keeper: LeaseKeeper, log_server: LogServer, keys: JobKeys, eventually: Callable[..., None]
) -> None:
    keeper.join(JobLog(log_server, keys, "w1"))
    keeper.tell(phase_progress("loading the model"))
    client: Any = log_server.client()
    said = {"by": "w1", "data": phase_progress("loading the model")}

    def told() -> list[dict[str, Any]]:
        return [{"by": one.by, "data": one.data} for one in read_log(client, keys) if one.type == "progress"]

    eventually(lambda: told() == [said])
    client.pexpire(keys.lease("w1"), 1000)
    eventually(lambda: client.pttl(keys.lease("w1")) > 10_000)  # more beats came
    assert told() == [said]
    assert decode_json(client.hget(keys.meta, "p:w1")) == said["data"]
    keeper.leave(JobLog(log_server, keys, "w1"), "test")
    assert client.hget(keys.meta, "p:w1") is None


def test_a_phase_is_a_progress_event_of_the_vocabulary() -> None:
    validate_event("progress", phase_progress("loading"))

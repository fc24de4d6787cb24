from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.runner.watcher import Watcher, live_workers
from streamrunner.sinks.errors import LogUnreachable, SinkError
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import JobLog, WorkerLease

if TYPE_CHECKING:
    from streamrunner.runner.job_events import Event
    from streamrunner.sinks.embedded.server import EmbeddedServer
    from streamrunner.sinks.server import LogServer

INFO = {"host": "h", "pid": 1, "fingerprint": {}}
_ids = itertools.count()


@pytest.fixture
def keys(log_server: LogServer) -> JobKeys:
    keys = JobKeys(f"job_watch{next(_ids)}")
    JobLog(log_server, keys, "t").submit({"name": "t", "rows": 2, "spec": {}}, 2, [{"first": 0, "count": 2}])
    return keys


def types(items: Any) -> list[str]:
    return [event.type for event in items]


def test_a_watcher_catches_up_then_follows(log_server: LogServer, keys: JobKeys) -> None:
    watcher, log = Watcher(log_server, keys), JobLog(log_server, keys, "t")
    assert types(watcher.poll(None)) == ["job.submitted"]
    log.join("w", "token", INFO)
    assert types(watcher.poll(1000)) == ["job.started", "worker.joined"]
    assert watcher.state.status == "in_progress"


def test_a_broken_connection_costs_neither_a_gap_nor_a_repeat(log_server: LogServer, keys: JobKeys) -> None:
    watcher, log = Watcher(log_server, keys), JobLog(log_server, keys, "t")
    seen = types(watcher.poll(None))
    client: Any = log_server.client()
    client.client_kill_filter(_type="normal", skipme=True)
    log.join("w", "token", INFO)
    while found := watcher.poll(None) or watcher.poll(200):
        seen += types(found)
    assert seen == ["job.submitted", "job.started", "worker.joined"]


def test_a_server_that_lost_its_tail_means_begin_again(log_server: LogServer, keys: JobKeys) -> None:
    watcher, log = Watcher(log_server, keys), JobLog(log_server, keys, "t")
    log.join("w", "token", INFO)
    watcher.poll(None)
    client: Any = log_server.client()
    client.xdel(keys.log, "3-0")
    client.client_kill_filter(_type="normal", skipme=True)
    answer: list[Event] = []
    while not types(answer):
        answer = watcher.poll(None)
    assert types(answer) == ["resync"]
    assert types(watcher.poll(None)) == ["job.submitted", "job.started"]


def test_only_workers_with_a_lease_are_alive(log_server: LogServer, keys: JobKeys) -> None:
    log = JobLog(log_server, keys, "t")
    epoch = log.join("w", "token", INFO)["epoch"]
    client = log_server.client()
    assert live_workers(client, keys) == ["w"]
    log.leave(WorkerLease("w", epoch, "token"), "SIGTERM")
    assert live_workers(client, keys) == []


def test_a_stop_is_heeded_while_the_log_is_away(embedded: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = JobKeys("job_stop")
    JobLog(embedded, keys, "t").submit({"name": "t", "rows": 2, "spec": {}}, 2, [{"first": 0, "count": 2}])
    stops: list[bool] = []
    watcher = Watcher(embedded, keys, should_stop=lambda: bool(stops))
    watcher.poll(None)

    def gone() -> None:
        stops.append(True)
        raise LogUnreachable("gone for good")

    monkeypatch.setattr(embedded, "revive", gone)
    client: Any = embedded.client()
    client.client_kill_filter(_type="normal", skipme=True)
    assert watcher.poll(None) == []


def test_a_newer_releases_event_stops_who_has_to_understand_all(log_server: LogServer, keys: JobKeys) -> None:
    watcher = Watcher(log_server, keys)
    raw: Any = log_server.client()
    raw.xadd(keys.log, {"type": "job.started", "v": "2", "time": "1", "by": "w", "data": "{}"}, id="2-0")
    with pytest.raises(SinkError) as caught:
        watcher.poll(None)
    assert caught.value.code == "log_conflict"
    assert "upgrade streamrunner" in caught.value.message

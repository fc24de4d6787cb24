"""A primary that Sentinels know: found by name, and found again after a failover."""

from __future__ import annotations

import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import redis
from test_append_faults import INFO, completed

from streamrunner.sinks.address import connection_options, mask_url, secrets_of
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import Flush, JobLog, WorkerLease, claimed_range
from streamrunner.sinks.reader import read_log
from streamrunner.sinks.server import ExternalServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

URL = "redis+sentinel://runner:p%40ss@a:26380,b/main/2?sentinel_password=other&ssl_ca_certs=/ca.pem"


def test_a_sentinel_url_says_whom_to_ask_and_for_what() -> None:
    options = connection_options(URL)
    assert (options["username"], options["password"], options["db"]) == ("runner", "p@ss", 2)
    assert options["ssl_ca_certs"] == "/ca.pem"
    asked = options["sentinel"]
    assert asked["sentinels"] == (("a", 26380), ("b", 26379))
    assert asked["service"] == "main"
    assert asked["options"]["password"] == "other"
    assert connection_options("rediss+sentinel://[::1]:5/m")["sentinel"]["sentinels"] == (("::1", 5),)


def test_its_credentials_are_masked_and_scrubbed() -> None:
    assert mask_url(URL) == "redis+sentinel://***@a:26380,b:26379/main/2"
    assert {"p@ss", "p%40ss", "other"} <= set(secrets_of(URL))
    assert mask_url("redis+sentinel://a/m") == "redis+sentinel://a:26379/m/0"


@pytest.mark.parametrize(
    "url",
    ["redis+sentinel://a:1", "redis+sentinel://a:1/m/x", "redis+sentinel://a:b/m", "redis+sentinel://a/m?retry=3"],
)
def test_a_broken_sentinel_url_is_refused_with_its_form(url: str) -> None:
    with pytest.raises(SinkError, match=r"Expected .*redis.sentinel://") as caught:
        connection_options(url)
    assert caught.value.code == "log_url"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Watched:
    """A primary, its replica, and a Sentinel that needs half a second to believe in a death."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.binary, self.folder = binary, folder
        self.primary, self.replica, self.sentinel = free_port(), free_port(), free_port()
        self.processes = [
            self.start(self.primary),
            self.start(self.replica, "--replicaof", f"127.0.0.1 {self.primary}"),
        ]

    def start(self, port: int, *options: str) -> subprocess.Popen[bytes]:
        place = self.folder / str(port)
        place.mkdir()
        arguments = ["--port", str(port), "--dir", str(place), "--save", "", "--repl-diskless-sync-delay", "0"]
        return subprocess.Popen([self.binary, *arguments, *options], stdout=subprocess.DEVNULL)

    def start_sentinel(self) -> None:
        """After the replica is there: a Sentinel looks for replicas when it starts, and then every ten seconds."""
        config = self.folder / "sentinel.conf"
        config.write_text(
            f"port {self.sentinel}\ndir {self.folder}\nsentinel monitor main 127.0.0.1 {self.primary} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
        )
        command = [self.binary, str(config), "--sentinel"]
        self.processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    def replicates(self) -> bool:
        return told(self.replica, lambda client: client.info("replication")["master_link_status"]) == "up"

    def is_watched(self) -> bool:
        return told(self.sentinel, lambda client: client.sentinel_master("main")["num-slaves"]) == 1

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def told(port: int, question: Callable[[Any], Any]) -> Any:
    """An answer, or None from a server that is not up yet."""
    try:
        return question(redis.Redis(port=port))
    except (redis.ConnectionError, redis.ResponseError, KeyError):
        return None


@pytest.fixture
def watched(redis_binary: str, tmp_path: Path, eventually: Callable[..., None]) -> Iterator[Watched]:
    made = Watched(redis_binary, tmp_path)
    try:
        eventually(made.replicates, seconds=25)
        made.start_sentinel()
        eventually(made.is_watched, seconds=25)
        yield made
    finally:
        made.stop()


@pytest.mark.redis
def test_a_job_goes_on_after_a_failover(watched: Watched) -> None:
    server = ExternalServer(f"redis+sentinel://127.0.0.1:{watched.sentinel}/main")
    assert server.may_lose_tail
    keys = JobKeys("job_failover")
    log = JobLog(server, keys, "w", patience_s=40)
    log.submit({"name": "t"}, 2, [{"first": 0, "count": 2}])
    lease = WorkerLease("w", log.join("w", "t", INFO)["epoch"], "t")
    claimed = claimed_range(log.claim(lease, []))
    assert log.flush(lease, Flush(1, b"", "", [], [completed(0, claimed)]))["s"] == "OK"
    redis.Redis(port=watched.primary).wait(1, 5000)
    watched.processes[0].kill()
    reply = log.flush(lease, Flush(2, b"", "", [], [completed(1, claimed)]))
    assert reply["s"] == "OK"
    entries = list(read_log(server.client(), keys))
    assert [entry.data["row"] for entry in entries if entry.type == "request.completed"] == [0, 1]
    assert entries[-1].gen == 1, "another server"

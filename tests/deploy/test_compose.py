"""docker-compose.yml and the server it starts: the very script and ACL file, run by the system's redis-server."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
import yaml

from streamrunner.sinks.library import library_code

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "redis"
PASSWORDS = {"RUNNER_PASSWORD": "one", "WORKER_PASSWORD": "two", "WATCHER_PASSWORD": "three"}
BASE_KEYS = [f"sr:{{J}}:{name}" for name in ("log", "res", "work", "claims", "done", "meta")]


def start(folder: Path, **environment: str) -> subprocess.Popen[bytes]:
    arguments = ["--port", "0", "--unixsocket", str(folder / "s"), "--dir", str(folder)]
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin", "USERS_FILE": str(folder / "users.acl")}
    return subprocess.Popen(["sh", str(DEPLOY / "start.sh"), *arguments], env={**path, **environment})


def connect(folder: Path, user: str, password: str) -> redis.Redis:
    client = redis.Redis(
        unix_socket_path=str(folder / "s"), username=user, password=password, decode_responses=True, protocol=2
    )
    deadline = time.monotonic() + 20
    while True:
        try:
            client.ping()
        except (redis.ConnectionError, redis.BusyLoadingError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    assert shutil.which("redis-server"), "these tests run the system's redis-server: apt install redis-server"
    place = tmp_path_factory.mktemp("redis")
    server = start(place, **PASSWORDS)
    try:
        yield place
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(scope="module")
def runner(folder: Path) -> redis.Redis:
    client = connect(folder, "runner", "one")
    client.function_load(library_code())
    client.fcall("sr_v1_submit", len(BASE_KEYS), *BASE_KEYS, "me", "{}", 2, '{"first":0,"count":2}')
    return client


@pytest.fixture(scope="module")
def watcher(folder: Path) -> redis.Redis:
    return connect(folder, "watcher", "three")


def test_compose_pins_a_redis_whose_acl_covers_xread() -> None:
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["redis"]
    name, _, tag = service["image"].partition(":")
    version = tuple(int(part) for part in tag.split("."))
    assert name == "redis"
    assert version >= (8, 10, 0)


def test_compose_keeps_the_data_checks_health_and_demands_passwords() -> None:
    document = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    service = document["services"]["redis"]
    volume = service["volumes"][0].split(":")
    assert volume == ["redis-data", "/data"]
    assert "redis-data" in document["volumes"]
    assert "--user health" in service["healthcheck"]["test"][1]
    assert all(":?" in service["environment"][name] for name in PASSWORDS)
    assert service["ports"][0].startswith("127.0.0.1:")


@pytest.mark.redis
def test_the_server_keeps_every_write_and_evicts_nothing(runner: redis.Redis) -> None:
    settings = {**runner.config_get("append*"), **runner.config_get("maxmemory-policy"), **runner.config_get("save")}
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "always"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["save"] == ""


@pytest.mark.redis
def test_a_watcher_reads_a_job(runner: redis.Redis, watcher: redis.Redis) -> None:
    [(entry_id, fields)] = watcher.xrange("sr:{J}:log")
    assert (entry_id, fields["type"]) == ("1-0", "job.submitted")
    assert watcher.xread({"sr:{J}:log": "0"})
    assert watcher.hgetall("sr:{J}:meta")["rows"] == "2"
    assert watcher.xlen("sr:{J}:work") == 1


@pytest.mark.redis
@pytest.mark.parametrize(
    "command",
    [
        "XADD sr:{J}:log * type forged",
        "XREADGROUP GROUP workers me STREAMS sr:{J}:work >",
        "XTRIM sr:{J}:log MAXLEN 0",
        "XGROUP CREATE sr:{J}:log mine 0",
        "HSET sr:{J}:meta status completed",
        "DEL sr:{J}:log",
        "SET sr:x 1",
        "FCALL sr_v1_beat 0",
        "FUNCTION LIST",
        "FUNCTION FLUSH",
        "EVAL return 0",
        "CONFIG GET *",
        "ACL LIST",
        "KEYS *",
        "XRANGE elsewhere - +",
        "XREAD STREAMS elsewhere 0",
    ],
)
def test_a_watcher_can_do_nothing_else(runner: redis.Redis, watcher: redis.Redis, command: str) -> None:
    with pytest.raises(redis.exceptions.NoPermissionError):
        watcher.execute_command(*command.split())


@pytest.mark.redis
def test_a_worker_works_on_jobs_but_registers_none(runner: redis.Redis, folder: Path) -> None:
    worker = connect(folder, "worker", "two")
    keys = [*BASE_KEYS, "sr:{J}:lease:w", "sr:{J}:steps:w"]
    assert '"s":"OK"' in worker.fcall("sr_v1_join", len(keys), *keys, "w", "token", "{}")
    assert worker.xrange("sr:jobs") == []
    for command in ("XADD sr:jobs * job x", "SET sr:submit:x y", "FUNCTION DELETE sr_v1", "FUNCTION LOAD x"):
        with pytest.raises(redis.exceptions.NoPermissionError):
            worker.execute_command(*command.split())


@pytest.mark.redis
def test_workers_share_and_give_back_ranges_with_their_own_rights(runner: redis.Redis, folder: Path) -> None:
    client = connect(folder, "worker", "two")
    epochs: dict[str, int] = {}

    def call(function: str, worker: str, *args: object) -> dict[str, Any]:
        keys = [*BASE_KEYS, f"sr:{{J}}:lease:{worker}", f"sr:{{J}}:steps:{worker}"]
        reply: dict[str, Any] = json.loads(client.fcall(f"sr_v1_{function}", len(keys), *keys, worker, *args))
        return reply

    for worker in ("x", "y"):
        epochs[worker] = call("join", worker, "token", "{}")["epoch"]
    first = call("claim", "x", epochs["x"], "token", " ", " ")
    [other] = call("held", "y")["others"]
    taken = call("split", "y", epochs["y"], "token", first["range"], first["claim"], 1)
    assert (other["range"], taken["s"], taken["done"]) == (first["range"], "OK", "0")
    given = call("give_back", "y", epochs["y"], "token", "{}", taken["range"])
    assert given["given"] == [taken["range"]]
    call("leave", "x", epochs["x"], "token", "done")
    assert call("forget", "x", 1000)["s"] == "HELD"


@pytest.mark.redis
@pytest.mark.parametrize("command", ["EVAL return 0", "CONFIG SET save x", "FLUSHALL", "SHUTDOWN", "SET elsewhere 1"])
def test_not_even_the_runner_administers_the_server(runner: redis.Redis, command: str) -> None:
    with pytest.raises(redis.exceptions.NoPermissionError):
        runner.execute_command(*command.split())


@pytest.mark.redis
def test_an_unnamed_client_gets_nothing(folder: Path, runner: redis.Redis) -> None:
    anonymous = redis.Redis(unix_socket_path=str(folder / "s"), protocol=2)
    with pytest.raises(redis.exceptions.AuthenticationError):
        anonymous.ping()
    assert connect(folder, "health", "anything").ping()


@pytest.mark.redis
def test_no_file_holds_a_password(folder: Path, runner: redis.Redis) -> None:
    rendered = (folder / "users.acl").read_text()
    assert "SHA256" not in rendered
    assert not any(f">{password}" in rendered for password in PASSWORDS.values())


def test_an_empty_password_is_refused(tmp_path: Path) -> None:
    server = start(tmp_path, **{**PASSWORDS, "WATCHER_PASSWORD": ""})
    assert server.wait(10) == 64

"""Every command that the server knows, asked of every user of deploy/redis/users.acl without running it."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import redis

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import Flush, JobLog, Terminal, WorkerLease, claimed_range
from streamrunner.sinks.reader import read_log, read_steps
from streamrunner.sinks.server import ExternalServer

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "redis"
PASSWORDS = {"RUNNER_PASSWORD": "one", "WORKER_PASSWORD": "two", "WATCHER_PASSWORD": "three"}
KEY = "sr:{J}:log"
# What a page, a script or a read verb of the runner sends.
READING = [
    "XREAD COUNT 100 BLOCK 1000 STREAMS sr:{J}:log sr:{J}:steps:w 0 0",
    "XRANGE sr:{J}:log - + COUNT 100",
    "XREVRANGE sr:jobs + - COUNT 1",
    "XLEN sr:{J}:res",
    "XINFO STREAM sr:{J}:log",
    "HGETALL sr:{J}:meta",
    "HMGET sr:{J}:meta status rows",
    "GETBIT sr:{J}:done 7",
    "BITCOUNT sr:{J}:done",
    "EXISTS sr:{J}:log sr:{J}:lease:w",
    "PTTL sr:{J}:lease:w",
    "GET sr:submit:name",
    "TYPE sr:{J}:log",
    "PING",
    "INFO server",
]
# Connection commands that change nothing on the server but the connection itself.
OWN_CONNECTION = {"auth", "hello", "quit", "reset", "ping"}
CHANGING = {"write", "@write", "admin", "@admin", "@scripting", "pubsub", "@pubsub", "@dangerous", "@blocking"}
NEVER = {
    "eval",
    "evalsha",
    "script|load",
    "flushall",
    "flushdb",
    "shutdown",
    "debug",
    "config|set",
    "restore",
    "migrate",
}
NEVER |= {"acl|setuser", "function|delete", "function|flush", "function|restore", "replicaof", "module|load", "swapdb"}


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client with all rights on a server with those users: the default user is let in again."""
    assert shutil.which("redis-server"), "these tests run the system's redis-server: apt install redis-server"
    folder = tmp_path_factory.mktemp("acl")
    users = folder / "users.acl"
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "USERS_FILE": str(users), **PASSWORDS}
    script = (DEPLOY / "start.sh").read_text().replace('exec "$@"', ":").replace("exec docker-entrypoint.sh", ":")
    subprocess.run(["sh", "-c", script, str(DEPLOY / "start.sh")], env=environment, check=True)
    rendered = users.read_text().replace("user default off resetpass", "user default on nopass")
    users.write_text(
        rendered.replace("user default on nopass resetkeys resetchannels -@all", "user default on nopass ~* &* +@all")
    )
    options = ["--port", "0", "--unixsocket", str(folder / "s"), "--dir", str(folder), "--aclfile", str(users)]
    server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    client = redis.Redis(unix_socket_path=str(folder / "s"), decode_responses=True, protocol=2)
    wait_for(client)
    yield client
    server.kill()
    server.wait()


def wait_for(client: Any) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            client.ping()
        except redis.ConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            return


def user_url(admin: Any, name: str) -> str:
    path = admin.connection_pool.connection_kwargs["path"]
    return f"unix://{path}?username={name}&password={PASSWORDS[name.upper() + '_PASSWORD']}"


def allowed(admin: Any, user: str, command: str) -> bool:
    return bool(admin.execute_command("ACL", "DRYRUN", user, *command.split()) == "OK")


class ServerCommand(NamedTuple):
    """One command (`config|set` with its subcommand): words it takes at least, its flags and ACL categories."""

    num_words: int
    marks: set[str]


def all_commands(admin: Any) -> dict[str, ServerCommand]:
    found: dict[str, ServerCommand] = {}

    def take(entry: list[Any]) -> None:
        for one in entry[9]:
            take(one)
        if not entry[9]:
            found[entry[0]] = ServerCommand(abs(entry[1]), {*map(str, entry[2]), *map(str, entry[6])})

    for entry in raw(admin):
        take(entry)
    return found


def raw(admin: Any) -> list[Any]:
    """COMMAND as the server answers it: redis-py's own shape leaves the subcommands out."""
    connection = admin.connection_pool.get_connection()
    try:
        connection.send_command("COMMAND")
        return list(connection.read_response())
    finally:
        admin.connection_pool.release(connection)


def permits(admin: Any, user: str, name: str, command: ServerCommand) -> bool:
    """Whether the name is allowed, with as many words as it takes; an answer about keys means that it is."""
    words = name.split("|")
    words += [KEY, *"1" * 20][: max(0, command.num_words - len(words))]
    answer = str(admin.execute_command("ACL", "DRYRUN", user, *words))
    assert "number of arguments" not in answer
    return "no permissions to run" not in answer


def granted(admin: Any, user: str) -> set[str]:
    return {name for name, command in all_commands(admin).items() if permits(admin, user, name, command)}


@pytest.mark.redis
def test_a_watcher_may_send_everything_that_reading_takes(admin: Any) -> None:
    assert [line for line in READING if not allowed(admin, "watcher", line)] == []


@pytest.mark.redis
def test_a_watcher_may_send_nothing_that_writes_or_administers(admin: Any) -> None:
    forbidden = {name for name, command in all_commands(admin).items() if command.marks & CHANGING}
    assert {"xadd", "xreadgroup", "set", "del", "fcall", "eval", "function|load", "config|set"} <= forbidden
    assert len(forbidden) > 150
    allowed_anyway = granted(admin, "watcher") & forbidden
    assert allowed_anyway == {"xread", "info"}, "one blocks, one is called dangerous, and neither changes anything"


@pytest.mark.redis
def test_a_watcher_may_not_read_keys_of_others_nor_list_any(admin: Any) -> None:
    others = [
        "GET other",
        "XREAD STREAMS other 0",
        "XREAD STREAMS sr:{J}:log other 0 0",
        "EXISTS other",
        "XRANGE o - +",
    ]
    listing = [
        "KEYS *",
        "SCAN 0",
        "RANDOMKEY",
        "DBSIZE",
        "MONITOR",
        "CLIENT LIST",
        "ACL LIST",
        "ACL WHOAMI",
        "SLOWLOG GET",
    ]
    assert [line for line in (*others, *listing) if allowed(admin, "watcher", line)] == []


@pytest.mark.redis
@pytest.mark.parametrize("user", ["runner", "worker", "watcher", "health"])
def test_nobody_runs_scripts_of_their_own_or_administers(admin: Any, user: str) -> None:
    assert granted(admin, user) & NEVER == set()


@pytest.mark.redis
def test_a_worker_writes_keys_of_jobs_and_registers_none(admin: Any) -> None:
    assert allowed(admin, "worker", "FCALL sr_v1_flush 1 sr:{J}:log")
    assert allowed(admin, "worker", "XADD sr:{J}:log 1-0 a b")
    for line in ("XADD sr:jobs * job x", "SET sr:submit:x y", "FUNCTION LOAD x", "FCALL sr_v1_flush 1 other"):
        assert not allowed(admin, "worker", line), line
    assert allowed(admin, "runner", "XADD sr:jobs * job x")
    assert not allowed(admin, "runner", "XADD other * job x")


@pytest.mark.redis
def test_a_health_check_pings_and_nothing_else(admin: Any) -> None:
    assert granted(admin, "health") <= OWN_CONNECTION


@pytest.mark.redis
def test_each_user_does_its_part_of_a_job_and_the_watcher_none_of_it(admin: Any) -> None:
    keys = JobKeys("job_acl")
    runner, worker, watcher = (ExternalServer(user_url(admin, name)) for name in ("runner", "worker", "watcher"))
    assert JobLog(runner, keys, "submit").submit({"name": "t"}, 1, [{"first": 0, "count": 1}])
    log = JobLog(worker, keys, "w")
    lease = WorkerLease("w", log.join("w", "token", {})["epoch"], "token")
    claimed = claimed_range(log.claim(lease, []))
    end = Terminal(0, claimed.id, claimed.claim, "request.completed", {"row": 0}, b"{}", 1, 1)
    assert log.flush(lease, Flush(1, b'[[0,1,0,0,[5],"x"]]', "", [], [end]))["s"] == "OK"
    log.leave(lease, "SIGTERM")
    assert log.end("completed")["s"] == "OK"
    log.expire_steps(60_000)
    assert [entry.type for entry in read_log(watcher.client(), keys)][-1] == "job.ended"
    assert len(list(read_steps(watcher.client(), keys, "w"))) == 1
    with pytest.raises(SinkError, match=r"users\.acl") as caught:
        JobLog(watcher, keys, "x").control("1", "cancel")
    assert caught.value.code == "log_denied"


@pytest.mark.redis
def test_a_worker_before_the_first_submit_is_told_who_may_load_the_library(admin: Any) -> None:
    admin.execute_command("FUNCTION", "FLUSH")
    worker = ExternalServer(user_url(admin, "worker"))
    with pytest.raises(SinkError, match="Let a user who may load functions run `runner submit` first"):
        JobLog(worker, JobKeys("job_new"), "w").join("w", "token", {})

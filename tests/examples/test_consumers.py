"""The consumers of the README, run as they stand against a real server (Node: against a stand-in for ioredis)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CONSUMERS = ROOT / "examples" / "consumers"
JOB = "job_01TEST"
STEP = json.dumps([[0, 1, 0, 0, [11], "Hello"], [3, 1, 1, 7, [12, 13], " world\n"]])
EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("job.submitted", {"rows": 1}),
    ("worker.joined", {"worker": "w-1"}),
    ("request.completed", {"row": 0, "custom_id": "first"}),
    ("job.ended", {"status": "completed"}),
]
HISTORY = [("job.submitted", ""), ("worker.joined", ""), ("request.completed", "first"), ("job.ended", "")]


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("redis")
    options = ["--port", "0", "--unixsocket", str(place / "s"), "--dir", str(place), "--save", ""]
    server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (place / "s").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    try:
        yield place / "s"
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture
def client(socket: Path) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=str(socket), protocol=2) as connection:
        connection.flushall()
        yield connection


def append_event(client: redis.Redis, seq: int) -> None:
    kind, data = EVENTS[seq - 1]
    fields = {"type": kind, "v": "1", "time": "5", "by": "w-1", "data": json.dumps(data, separators=(",", ":"))}
    client.xadd(f"sr:{{{JOB}}}:log", fields, id=f"{seq}-0")


def append_all(client: redis.Redis) -> None:
    for seq in range(1, len(EVENTS) + 1):
        if seq == 3:
            client.xadd(f"sr:{{{JOB}}}:steps:w-1", {"v": "1", "t": "6", "d": STEP}, id="1-1")
        append_event(client, seq)


def run(*command: str, environment: dict[str, str] | None = None) -> list[str]:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **(environment or {})}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def tokens_in(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("row ")]


@pytest.mark.redis
def test_redis_cli_prints_the_history(client: redis.Redis, socket: Path) -> None:
    append_all(client)
    lines = run("sh", str(CONSUMERS / "follow.sh"), JOB, "-s", str(socket))
    assert [line.split()[:2] for line in lines] == [[f"{n}-0", kind] for n, (kind, _) in enumerate(EVENTS, 1)]
    assert json.loads(lines[2].split(" ", 2)[2]) == {"row": 0, "custom_id": "first"}


@pytest.mark.redis
def test_redis_py_prints_history_and_tokens_of_a_job_that_is_over(client: redis.Redis, socket: Path) -> None:
    append_all(client)
    lines = run(sys.executable, str(CONSUMERS / "follow.py"), f"unix://{socket}", JOB)
    assert tokens_in(lines) == ["row 0 choice 0 token 0: 'Hello'", "row 3 choice 1 token 7: ' world\\n'"]
    assert [line.strip() for line in lines if not line.startswith("row ")] == [" ".join(one).strip() for one in HISTORY]


@pytest.mark.redis
def test_redis_py_follows_a_job_that_runs(client: redis.Redis, socket: Path) -> None:
    append_event(client, 1)
    append_event(client, 2)
    command = [sys.executable, str(CONSUMERS / "follow.py"), f"unix://{socket}", JOB]
    consumer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert consumer.stdout is not None
    guard = threading.Timer(60, consumer.kill)
    guard.start()
    assert [consumer.stdout.readline().strip() for _ in range(2)] == ["job.submitted", "worker.joined"]
    client.xadd(f"sr:{{{JOB}}}:steps:w-1", {"v": "1", "t": "6", "d": STEP}, id="1-1")
    assert consumer.stdout.readline() == "row 0 choice 0 token 0: 'Hello'\n"
    append_event(client, 3)
    append_event(client, 4)
    assert consumer.stdout.read().splitlines()[-1].strip() == "job.ended"
    assert consumer.wait(30) == 0
    guard.cancel()


# A development machine without Node still tests the other two; the file itself is plain JavaScript.
@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_node_prints_history_and_tokens(tmp_path: Path) -> None:
    """ioredis itself needs a network to install, so that a stand-in answers XREAD as it does."""
    module = tmp_path / "node_modules" / "ioredis"
    module.mkdir(parents=True)
    (module / "package.json").write_text('{"name": "ioredis", "type": "module", "main": "index.js"}')
    (module / "index.js").write_text(FAKE_IOREDIS)
    shutil.copy(CONSUMERS / "follow.mjs", tmp_path)
    entries = [[f"{n}-0", ["type", kind, "data", json.dumps(data)]] for n, (kind, data) in enumerate(EVENTS, 1)]
    streams = {f"sr:{{{JOB}}}:log": entries, f"sr:{{{JOB}}}:steps:w-1": [["1-1", ["v", "1", "d", STEP]]]}
    lines = run("node", str(tmp_path / "follow.mjs"), "/a/socket", JOB, environment={"STREAMS": json.dumps(streams)})
    assert tokens_in(lines) == ['row 0 choice 0 token 0: "Hello"', 'row 3 choice 1 token 7: " world\\n"']
    assert [line.strip() for line in lines if not line.startswith("row ")] == [" ".join(one).strip() for one in HISTORY]


FAKE_IOREDIS = """
const streams = JSON.parse(process.env.STREAMS);
export default class Redis {
  async xread(...args) {
    const names = args.slice(args.indexOf("STREAMS") + 1), half = names.length / 2;
    const found = names.slice(0, half).map((key, i) => {
      const after = (streams[key] ?? []).findIndex(([id]) => id === names[half + i]) + 1;
      return [key, (streams[key] ?? []).slice(after)];
    }).filter(([, entries]) => entries.length);
    return found.length ? found : null;
  }
  disconnect() {}
}
"""

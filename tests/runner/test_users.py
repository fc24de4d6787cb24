"""The users of deploy/redis/users.acl at the command line, and their passwords, which nothing ever shows."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Bench = Any

DEPLOY = Path(__file__).parents[2] / "deploy" / "redis"
PASSWORDS = {f"{name}_PASSWORD": f"s3cret-{name.lower()}-8341" for name in ("RUNNER", "WORKER", "WATCHER")}


class Shared:
    """A server with the three users, a bench on it, and everything that its commands ever wrote."""

    def __init__(self, folder: Path, bench: Bench, environment: pytest.MonkeyPatch) -> None:
        self.folder, self.bench = folder, bench
        self.written: list[str] = []
        for name, value in PASSWORDS.items():
            environment.setenv(name, value)

    def be(self, user: str, password: str | None = None) -> None:
        """Be that user from now on; the password is a reference unless given."""
        secret = password or f"${{{user.upper()}_PASSWORD}}"
        self.bench.redis_url = f"unix://{self.folder}/s?username={user}&password={secret}"

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = self.bench.run(*args)
        self.written += [done.stdout, done.stderr]
        assert "Traceback" not in done.stderr
        assert "internal fault" not in done.stderr
        return done

    def everything_stored(self) -> str:
        """Every key and value of the server, as its own file has them."""
        return "".join(path.read_bytes().decode("latin-1") for path in self.folder.rglob("*.aof"))

    def everything_left(self) -> str:
        """Every small file of the job's folder and the data dir but the job's own model."""
        roots = (self.bench.folder, self.bench.data_dir)
        files = [path for root in roots for path in root.rglob("*") if path.is_file() and path.stat().st_size < 1 << 20]
        return "".join(path.read_bytes().decode("latin-1") for path in files)


@pytest.fixture
def shared(
    tmp_path_factory: pytest.TempPathFactory,
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("r")
    environment = {"PATH": os.environ["PATH"], "USERS_FILE": str(folder / "users.acl"), **PASSWORDS}
    options = ["--port", "0", "--unixsocket", str(folder / "s"), "--dir", str(folder)]
    command = ["sh", str(DEPLOY / "start.sh"), *options]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    health: Any = redis.Redis(unix_socket_path=str(folder / "s"), username="health", password="x", protocol=2)

    def answers() -> bool:
        try:
            return bool(health.ping())
        except redis.ConnectionError:
            return False

    eventually(answers, seconds=15)
    yield Shared(folder, bench, monkeypatch)
    server.kill()
    server.wait()


@pytest.mark.redis
def test_three_users_and_no_password_anywhere(shared: Shared, chat_row: Callable[..., str]) -> None:
    shared.bench.write_rows([chat_row(i) for i in range(3)])
    shared.bench.write_job()
    shared.be("runner")
    assert shared.run("submit", "job.yaml").returncode == 0
    shared.be("worker")
    assert shared.run("worker", "last").returncode == 0
    shared.be("watcher")
    for verb in (["list", "--json"], ["status", "last", "--json"], ["events", "last", "--json"], ["results", "last"]):
        assert shared.run(*verb).returncode == 0, verb
    denied = shared.run("cancel", "last")
    assert denied.returncode == 69
    assert "users.acl" in denied.stderr
    assert shared.run("submit", "job.yaml", "--new").returncode == 69
    shared.be("runner", "wrong-s3cret")
    refused = shared.run("status", "last")
    assert refused.returncode == 69
    assert "[log_auth]" in refused.stderr
    shared.be("runner", "${NOT_SET}")
    assert "export NOT_SET=" in shared.run("status", "last").stderr
    shown = "".join([*shared.written, shared.everything_stored(), shared.everything_left()])
    assert "request.completed" in shown
    assert "s3cret" not in shown


def test_a_password_in_a_path_of_the_job_file_is_refused_before_it_is_logged(bench: Bench) -> None:
    bench.write_job(outputs=[{"type": "jsonl", "path": "https://me:s3cret@host/out.jsonl"}])
    done = bench.submit()
    assert done.returncode == 4
    assert "everybody who reads the log would see" in done.stderr
    assert "s3cret" not in done.stderr

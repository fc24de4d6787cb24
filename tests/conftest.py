"""What holds for every test: no network, nothing of the developer's own set-up, and servers that leave nothing."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamrunner.sinks.embedded.server import EmbeddedServer
    from streamrunner.sinks.server import LogServer

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
for name in ("RUNNER_DATA_DIR", "RUNNER_REDIS_URL", "RUNNER_ADMISSIONS_FILE"):
    os.environ.pop(name, None)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something that has to happen within a time; fail when it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {seconds:g} s"
        time.sleep(0.005)


def is_free(lock: Path) -> bool:
    """Whether no living process holds a lock file; a killed one that nobody waited for does not."""
    from streamrunner.sinks.locks import try_lock

    if not lock.exists():
        return True
    found = try_lock(lock, shared=True)
    if found is not None:
        found.close()
    return found is not None


def end_private_server(data_dir: Path) -> None:
    """End the private server of a data dir and its reaper, without waiting for the reaper to notice."""
    for lock in (data_dir / "server" / "reaper.lock", data_dir / "server" / "server.lock"):
        if not is_free(lock):
            os.kill(int(lock.read_text().split()[0]), signal.SIGKILL)
        until(partial(is_free, lock))


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Waits for a condition with a deadline: `eventually(lambda: done(), seconds=5)`."""
    return until


@pytest.fixture
def end_servers() -> Callable[[Path], None]:
    """Ends the private server of a data dir at once: `end_servers(data_dir)`."""
    return end_private_server


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """An empty data dir with a short path, as sockets need it; what runs in it is ended."""
    with tempfile.TemporaryDirectory(prefix="sr-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
        end_private_server(Path(folder))


@pytest.fixture
def embedded(data_dir: Path) -> Iterator[EmbeddedServer]:
    """A running private server."""
    from streamrunner.sinks.embedded.server import EmbeddedServer

    with EmbeddedServer(data_dir) as server:
        yield server


@pytest.fixture(scope="session")
def redis_binary() -> str:
    """A redis-server from PATH; developers may lack it, CI may not."""
    found = shutil.which("redis-server")
    if found is None and os.environ.get("CI"):
        pytest.fail("redis-server is not installed, but CI tests against it")
    if found is None:
        pytest.skip("redis-server is not installed")
    return found


def _listens(path: Path) -> bool:
    """Whether a connection is accepted: the socket's file is there a moment earlier."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


@pytest.fixture
def redis_factory(redis_binary: str) -> Iterator[Callable[..., str]]:
    """Starts throwaway Redis servers on unix sockets, durable unless told otherwise; returns their URLs."""
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="sr-redis-") as root:

        def start(**settings: str) -> str:
            folder = Path(root, str(len(running)))
            folder.mkdir()
            path = folder / "redis.sock"
            durable = {"appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory-policy": "noeviction"}
            options = {"port": "0", "unixsocket": str(path), "dir": str(folder), **durable}
            options |= {name.replace("_", "-"): value for name, value in settings.items()}
            arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
            running.append(subprocess.Popen([redis_binary, *arguments], stdout=subprocess.DEVNULL))
            until(lambda: _listens(path))
            return f"unix://{path}"

        yield start
        for process in running:
            process.kill()
            process.wait()


@pytest.fixture
def debian_redis(redis_factory: Callable[..., str]) -> str:
    """The URL of a throwaway Redis as distributions ship it, with every write on disk."""
    return redis_factory()


@pytest.fixture(params=["embedded", "external"])
def log_server(request: pytest.FixtureRequest) -> Iterator[LogServer]:
    """A private server, then an external one: what the log promises holds on both."""
    if request.param == "embedded":
        yield request.getfixturevalue("embedded")
        return
    from streamrunner.sinks.server import ExternalServer

    with ExternalServer(request.getfixturevalue("debian_redis")) as server:
        yield server


@pytest.fixture(scope="session")
def model_cache(request: pytest.FixtureRequest) -> Path:
    """Where converted models stay between runs; folders in it are named by the digest of their source."""
    assert request.config.cache is not None
    return request.config.cache.mkdir("streamrunner-models")


@pytest.fixture(scope="session")
def smollm2(model_cache: Path) -> Path:
    """Folder of the real SmolLM2-135M-Instruct; the first run ever converts it (about 30 s)."""
    from streamrunner.engine.convert import resolve_model

    return resolve_model("smollm2-135m-instruct", model_cache).path

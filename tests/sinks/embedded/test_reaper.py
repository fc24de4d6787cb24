"""The reaper acts only when nobody uses the server, and never on a process that is not it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from streamrunner.sinks.embedded import reaper
from streamrunner.sinks.embedded.process import pid_space, start_detached
from streamrunner.sinks.embedded.reaper import stop_server, wait_for_last_user
from streamrunner.sinks.locks import FileLock, try_lock, wait_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server_lock(tmp_path: Path) -> Iterator[FileLock]:
    with FileLock(tmp_path / "server.lock") as lock:
        yield lock


def start_holder(tmp_path: Path, *command: str) -> None:
    with wait_lock(tmp_path / "server.lock", timeout=1) as lock:
        start_detached(command, lock, log=tmp_path / "log")


def test_it_waits_until_the_last_of_several_users_has_gone(tmp_path: Path) -> None:
    path = tmp_path / "users.lock"
    users = [wait_lock(path, shared=True, timeout=0) for _ in range(3)]
    with FileLock(path) as own:
        thread = threading.Thread(target=wait_for_last_user, args=(own.fd, 0.0))
        thread.start()
        for user in users:
            assert thread.is_alive()
            user.close()
        thread.join(5)
        assert not thread.is_alive()
        assert try_lock(path, shared=True) is None, "newcomers wait while the server is being stopped"


def test_a_user_that_comes_during_the_linger_keeps_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "users.lock"
    came = threading.Event()
    newcomer: list[FileLock] = []

    def linger(_: float) -> None:
        if not newcomer:
            newcomer.append(wait_lock(path, shared=True, timeout=1))
            came.set()

    monkeypatch.setattr("streamrunner.sinks.embedded.reaper.time.sleep", linger)
    with FileLock(path) as own:
        thread = threading.Thread(target=wait_for_last_user, args=(own.fd, 1.0))
        thread.start()
        assert came.wait(5)
        thread.join(0.05)
        assert thread.is_alive()
        newcomer[0].close()
        thread.join(5)
        assert not thread.is_alive()


def test_it_ends_the_holder_of_the_lock(tmp_path: Path, server_lock: FileLock) -> None:
    start_holder(tmp_path, "sleep", "60")
    stop_server(server_lock.fd, pid_space())
    assert try_lock(tmp_path / "server.lock") is None, "the reaper itself keeps the lock until it ends"


def test_a_server_that_ignores_the_request_is_killed(
    tmp_path: Path, server_lock: FileLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "_PATIENCE", tuple((number, 1.0) for number, _ in reaper._PATIENCE))
    start_holder(tmp_path, sys.executable, "-c", "import signal,time; signal.signal(15, 1); print(1, flush=True);"
                 "time.sleep(60)")  # fmt: skip
    while "1" not in (tmp_path / "log").read_text():
        time.sleep(0.005)
    begin = time.monotonic()
    stop_server(server_lock.fd, pid_space())
    assert 0.9 < time.monotonic() - begin < 4
    server_lock.close()
    assert try_lock(tmp_path / "server.lock") is not None


@pytest.mark.parametrize("text", ["", "12 pid:[other]", "abc pid:[1]", "-1 pid:[1]", "1"])
def test_a_process_of_another_container_or_no_process_is_never_signalled(
    tmp_path: Path, server_lock: FileLock, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(reaper, "_PATIENCE", tuple((number, 0.0) for number, _ in reaper._PATIENCE))
    signalled: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signalled.append(pid))
    with wait_lock(tmp_path / "server.lock", timeout=0) as holder:
        holder.path.write_text(text)
        stop_server(server_lock.fd, "pid:[1]")
    assert signalled == []


def test_as_a_program_it_needs_nothing_installed_and_ends_when_nobody_is_there(tmp_path: Path) -> None:
    with (
        FileLock(tmp_path / "users.lock") as users,
        FileLock(tmp_path / "server.lock") as server,
        wait_lock(tmp_path / "reaper.lock", timeout=0) as own,
    ):
        descriptors = (users.fd, server.fd, own.fd)
        command = [sys.executable, "-I", "-S", reaper.__file__, *map(str, descriptors), pid_space()]
        done = subprocess.run(command, pass_fds=descriptors, capture_output=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

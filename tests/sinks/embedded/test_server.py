"""The private server's life: shared, surviving what kills its clients or itself, and gone after the last of them."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from streamrunner.sinks.embedded.reaper import LINGER_SECONDS
from streamrunner.sinks.embedded.server import EmbeddedServer
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.locks import try_lock, wait_lock

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from streamrunner.sinks.embedded.files import ServerFiles


def is_held(path: Path) -> bool:
    lock = try_lock(path)
    if lock is not None:
        lock.close()
    return lock is None


def all_gone(files: ServerFiles) -> bool:
    return not is_held(files.server_lock) and not is_held(files.reaper_lock)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_server_keeps_every_write_listens_to_its_user_alone_and_evicts_nothing(
    embedded: EmbeddedServer, files: ServerFiles
) -> None:
    wanted = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "port": "0", "save": ""}
    with embedded.client() as client:
        assert {name: client.config_get(name)[name] for name in wanted} == wanted
    assert (files.folder / "server.sock").stat().st_mode & 0o777 == 0o700
    assert files.folder.stat().st_mode & 0o777 == 0o700


def test_it_runs_in_a_session_of_its_own_and_is_nobodys_child(embedded: EmbeddedServer) -> None:
    assert embedded.pid is not None
    assert os.getsid(embedded.pid) != os.getsid(0)
    with pytest.raises(ChildProcessError):
        os.waitpid(embedded.pid, os.WNOHANG)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has scheduling classes")
def test_it_does_not_preempt_the_engine(embedded: EmbeddedServer) -> None:
    assert embedded.pid is not None
    assert os.sched_getscheduler(embedded.pid) == os.SCHED_BATCH


def test_two_processes_at_once_share_one_server(start_user: Callable[[], subprocess.Popen[str]]) -> None:
    users = [start_user() for _ in range(4)]
    pids = {first_line(user) for user in users}
    assert len(pids) == 1
    assert pids != {""}


def test_a_killed_client_takes_the_server_along_within_five_seconds(
    start_user: Callable[[], subprocess.Popen[str]], files: ServerFiles, eventually: Callable[..., None]
) -> None:
    user = start_user()
    assert first_line(user).isdigit()
    assert is_held(files.server_lock)
    user.kill()
    eventually(lambda: all_gone(files), seconds=5)
    assert not (files.folder / "server.sock").exists()


def test_the_server_stays_while_one_client_is_left(
    start_user: Callable[[], subprocess.Popen[str]], embedded: EmbeddedServer, files: ServerFiles
) -> None:
    user = start_user()
    assert first_line(user) == str(embedded.pid)
    user.kill()
    user.wait()
    assert is_held(files.users_lock), "the reaper acts only when nobody shares this lock"
    assert is_held(files.reaper_lock)
    assert embedded.client().ping()


def test_the_server_ends_also_when_the_data_dir_was_deleted(
    data_dir: Path, files: ServerFiles, eventually: Callable[..., None]
) -> None:
    folder = data_dir / "run"
    server = EmbeddedServer(folder)
    with (folder / "server" / "server.lock").open() as lock_file:
        pid = int(lock_file.read().split()[0])
    shutil.rmtree(folder)
    server.close()
    eventually(lambda: not is_running(pid), seconds=5)


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_a_newcomer_during_the_shutdown_waits_and_gets_a_new_server(data_dir: Path, files: ServerFiles) -> None:
    with EmbeddedServer(data_dir) as first, first.client() as client:
        client.set("k", "v")
        old = first.pid
    reaper = wait_lock(files.users_lock, timeout=5)  # as the reaper does, once nobody shares it
    opened: list[EmbeddedServer] = []
    newcomer = threading.Thread(target=lambda: opened.append(EmbeddedServer(data_dir)))
    newcomer.start()
    assert old is not None
    os.kill(old, signal.SIGTERM)
    while is_held(files.server_lock):
        assert not opened
    reaper.close()
    newcomer.join(10)
    with opened[0] as server, server.client() as client:
        assert client.get("k") == b"v"
        assert server.pid != old


@pytest.mark.parametrize("early_ms", [5, 0, -5, -15])
def test_a_client_that_comes_around_the_shutdown_gets_an_answer(
    data_dir: Path, files: ServerFiles, early_ms: int
) -> None:
    with EmbeddedServer(data_dir) as server, server.client() as client:
        client.set("k", "v")
    # Some come before the shutdown, some during it, some after: whichever it is, the answer must be right.
    time.sleep(LINGER_SECONDS - early_ms / 1000)
    with EmbeddedServer(data_dir) as server, server.client() as client:
        assert client.get("k") == b"v"


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def test_acknowledged_writes_are_back_after_the_server_was_killed(
    embedded: EmbeddedServer, eventually: Callable[..., None]
) -> None:
    with embedded.client() as client:
        for number in range(200):
            client.xadd("s", {"n": number}, id=f"{number + 1}-0")
        old = embedded.pid
        assert old is not None
        os.kill(old, signal.SIGKILL)
        eventually(lambda: not answers(client))
        embedded.revive()
        assert client.xlen("s") == 200
        assert embedded.pid != old


def test_many_clients_may_revive_at_once(data_dir: Path, embedded: EmbeddedServer, files: ServerFiles) -> None:
    others = [EmbeddedServer(data_dir) for _ in range(4)]
    assert embedded.pid is not None
    os.kill(embedded.pid, signal.SIGKILL)
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda server: server.revive(), [embedded, *others]))
    assert len({server.pid for server in [embedded, *others]}) == 1
    assert all(server.client().ping() for server in [embedded, *others])
    for server in others:
        server.close()


def test_a_killed_reaper_is_replaced_by_the_next_client(
    data_dir: Path, embedded: EmbeddedServer, files: ServerFiles, eventually: Callable[..., None]
) -> None:
    os.kill(int(files.reaper_lock.read_text().split()[0]), signal.SIGKILL)
    eventually(lambda: not is_held(files.reaper_lock))
    EmbeddedServer(data_dir).close()
    embedded.close()
    eventually(lambda: all_gone(files), seconds=5)


def test_a_second_server_on_the_dir_is_refused(data_dir: Path, files: ServerFiles) -> None:
    EmbeddedServer(data_dir).close()
    while is_held(files.server_lock):
        os.kill(int(files.server_lock.read_text().split()[0]), signal.SIGTERM)
    with wait_lock(files.server_lock, timeout=5), pytest.raises(SinkError, match=r"server\.lock") as caught:
        EmbeddedServer(data_dir, answer_timeout=0.05)
    assert caught.value.code == "data_dir_locked"
    assert not is_held(files.users_lock), "a refused client must not keep the server's users waiting"


def test_a_closed_hold_gives_no_more_clients(data_dir: Path) -> None:
    server = EmbeddedServer(data_dir)
    server.close()
    server.close()
    for use in (server.client, server.revive):
        with pytest.raises(SinkError) as caught:
            use()
        assert caught.value.code == "log_closed"


def test_a_long_path_puts_the_socket_into_a_short_dir_where_others_find_it(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = data_dir / "run"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    deep = data_dir / ("long" * 25)
    with EmbeddedServer(deep) as first:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(data_dir))
        with EmbeddedServer(deep) as second, second.client() as client:
            assert client.ping()
            assert second.address == first.address
            assert first.address.startswith(f"unix://{runtime}/")
        os.kill(first.pid or 0, signal.SIGKILL)
        os.kill(int((deep / "server" / "reaper.lock").read_text().split()[0]), signal.SIGKILL)


def test_a_data_dir_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match=str(tmp_path / "file")) as caught:
        EmbeddedServer(tmp_path / "file")
    assert caught.value.code == "data_dir_unusable"


def test_a_start_and_an_adoption_are_quick(data_dir: Path) -> None:
    begin = time.monotonic()
    with EmbeddedServer(data_dir):
        started = time.monotonic()
        with EmbeddedServer(data_dir):
            adopted = time.monotonic()
    assert started - begin < 2
    assert adopted - started < 0.5

